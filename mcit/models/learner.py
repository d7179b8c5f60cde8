"""The network that learns a sequence: one backbone, and a head for every task that brings one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from mcit.config.parse import parse, to_dict
from mcit.config.schema import LoraConfig
from mcit.models.backbone import Backbone
from mcit.models.heads import TaskHead
from mcit.models.lora_pairs import find_acting, use_adapters
from mcit.models.taps import add_taps, fold_taps
from mcit.spelling import suggest
from mcit.task import Batch, Head, Output


class Learner(nn.Module):
    """A backbone and its heads; `processor` makes the inputs of raw texts and images, if needed."""

    def __init__(self, encoder: Backbone, processor: Any = None):
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict()
        self.processor = processor
        self._known: dict[str, Head] = {}
        self._adapters: dict[str, LoraConfig] = {}
        self._tapped = False

    def forward(self, batch: Batch, head: Head, extra: Head | None = None) -> Output:
        """Return features [batch, views * width] and the logits [batch, outputs] of that head.

        The outputs of an extra head follow those of the first.
        """
        module = self._find(head)
        features = self.encoder(batch)  # [batch, views, width]
        if features.shape[1] != head.views:
            found = features.shape[1]
            raise ValueError(f"head {head.name!r} needs {head.views} views, the batch has {found}")
        logits = module(features)
        if extra is not None:
            logits = torch.cat([logits, self._find(extra)(features)], dim=1)
        return Output(features.flatten(1), logits)

    def answer(self, features: Tensor, head: Head, extra: Head | None = None) -> Tensor:
        """Return the logits of heads of one view about features [batch, width], as `forward`."""
        heads = [head] if extra is None else [head, extra]
        return torch.cat([self._find(each)(features.unsqueeze(1)) for each in heads], dim=1)

    def predict(self, batch: Batch, head: Head) -> Any:
        """Return what is scored: logits [batch, outputs] in single precision."""
        return self(batch, head).logits.float()

    def read_logits(self, logits: Tensor, batch: Batch) -> Any:
        """Return what logits of a batch that is learned from stand for, as `predict` returns it."""
        return logits

    def lacks(self, head: Head) -> bool:
        """Whether the head must be grown before it can answer: it is not there, or too small."""
        return self.outputs(head) < head.outputs

    def grow(self, head: Head) -> None:
        """Add the head, or widen it if it exists; what it has learned stays bit for bit."""
        known = self._known.get(head.name)
        if known is None:
            parameter = next(self.encoder.parameters())
            added = TaskHead(head, self.encoder.width).to(parameter.device)
            self.heads[head.name] = added.train(self.training)
        else:
            _check_growth(known, head)
            # a choice has one row for all of its outputs, and must not get more
            if head.outputs > known.outputs:
                self._find(head).grow(head.outputs)
        self._known[head.name] = head

    def drop(self, head: Head) -> None:
        """Remove the head of that name."""
        self._find(head)
        del self.heads[head.name]
        del self._known[head.name]

    @property
    def known_heads(self) -> Mapping[str, Head]:
        """Return the heads as they are now."""
        return self._known

    def outputs(self, head: Head) -> int:
        """Return how many outputs the head of that name has now; 0 if there is none."""
        known = self._known.get(head.name)
        return 0 if known is None else known.outputs

    def activate(self, head: Head) -> None:
        """Let that head train and freeze the others, so that no optimizer decays them."""
        self._find(head)
        for name, module in self.heads.items():
            module.requires_grad_(name == head.name)

    def let_train(self, head: Head) -> None:
        """Let a head train besides the one that is active."""
        self._find(head).requires_grad_(True)

    def add_taps(self) -> None:
        """Give every 3x3 convolution of the backbone a 1x1 convolution beside it, which trains."""
        add_taps(self.encoder)
        self._tapped = True

    def fold_taps(self) -> None:
        """Add what such convolutions have learned to those they stand beside, and remove them."""
        fold_taps(self.encoder)
        self._tapped = False

    def head_of(self, parameter: str) -> str | None:
        """Return the head that a parameter belongs to, None for the backbone's."""
        part, _, rest = parameter.partition(".")
        if part != "heads":
            return None
        return rest.partition(".")[0]

    def classifier_weight(self, head: Head) -> str:
        """Return the name of the matrix that turns the last features of a head into its logits."""
        last = len(self._find(head).layers) - 1
        return f"heads.{head.name}.layers.{last}.weight"

    def add_adapter(self, name: str, lora: LoraConfig) -> None:
        """Put a LoRA adapter into the backbone; it trains, and acts alone."""
        self.encoder.add_adapter(name, lora)
        self._adapters[name] = lora

    def begin_pair(self, name: str) -> None:
        """Put a fresh LoRA pair next to the adapters that act, and freeze those; all of them act.

        The pair has the settings of the first adapter. If it is there already, nothing happens.
        """
        if name in self._adapters:
            return
        acting = find_acting(self.encoder)
        if not acting:
            raise ValueError("a fresh LoRA pair needs a backbone with LoRA, and this one has none")
        self.add_adapter(name, self._adapters[acting[0]])
        use_adapters(self.encoder, [*acting, name])

    def frozen_copy(self) -> Learner:
        """Return the learner as it is now, frozen and in eval mode; the processor is shared."""
        memo = {id(self.processor): self.processor}
        return copy.deepcopy(self, memo).requires_grad_(False).eval()

    def structure(self) -> dict[str, Any]:
        """Return what was added since the learner was built, as JSON: heads, adapters, taps."""
        structure: dict[str, Any] = {
            "heads": [asdict(head) for head in self._known.values()],
            "adapters": {name: to_dict(lora) for name, lora in self._adapters.items()},
            "acting": find_acting(self.encoder),
        }
        if self._tapped:
            structure["taps"] = True
        return structure

    def rebuild(self, structure: Mapping[str, Any]) -> None:
        """Add what of `structure` is missing, to load weights into."""
        for head in structure["heads"]:
            self.grow(parse(Head, head))
        for name, lora in structure["adapters"].items():
            if name not in self._adapters:
                self.add_adapter(name, parse(LoraConfig, lora))
        if structure["acting"]:
            use_adapters(self.encoder, structure["acting"])
        if structure.get("taps") and not self._tapped:
            self.add_taps()

    def _find(self, head: Head) -> TaskHead:
        if head.name not in self.heads:
            listed = ", ".join(self.heads) or "none"
            near = suggest(head.name, self.heads)
            raise LookupError(f"unknown head {head.name!r}{near} (heads: {listed})")
        return cast(TaskHead, self.heads[head.name])


def _check_growth(known: Head, head: Head) -> None:
    if head.outputs < known.outputs:
        raise ValueError(
            f"head {head.name!r} has {known.outputs} outputs and cannot shrink to {head.outputs}"
        )
    if replace(head, outputs=known.outputs) != known:
        was = f"{known.kind}, {known.layout}, {known.views} views"
        now = f"{head.kind}, {head.layout}, {head.views} views"
        raise ValueError(
            f"head {head.name!r} is ({was}) and cannot become ({now}); give the other head "
            f"another name"
        )
    if head.kind == "choice" and head.outputs != known.outputs:
        raise ValueError(
            f"head {head.name!r} chooses among {known.views} views "
            f"and cannot have {head.outputs} outputs"
        )
