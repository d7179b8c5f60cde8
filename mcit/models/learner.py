"""What learns a sequence: one encoder, and a head for every task that brings one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from mcit.config import suggest
from mcit.models.heads import TaskHead
from mcit.task import Batch, Head


class Learner(nn.Module):
    """An encoder and its heads; `processor` makes its inputs where raw texts and images need one.

    The encoder turns a batch into features [batch, views, width] and has an attribute `width`.
    """

    def __init__(self, encoder: nn.Module, processor: Any = None):
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict()
        self.processor = processor
        self._known: dict[str, Head] = {}

    def forward(self, batch: Batch, head: Head) -> Tensor:
        """Logits [batch, outputs] of that head."""
        module = self._find(head)
        features = self.encoder(batch)  # [batch, views, width]
        if features.shape[1] != head.views:
            raise ValueError(
                f"head {head.name!r} needs {head.views} views, the batch has {features.shape[1]}"
            )
        return module(features)

    def grow(self, head: Head) -> None:
        """Add the head, or widen it where it exists; what it had learned stays bit for bit."""
        known = self._known.get(head.name)
        if known is None:
            parameter = next(self.encoder.parameters())
            self.heads[head.name] = (
                TaskHead(head, self.encoder.width).to(parameter.device).train(self.training)
            )
        else:
            _check_growth(known, head)
            self.heads[head.name].grow(head.outputs)
        self._known[head.name] = head

    def outputs(self, head: Head) -> int:
        """How many outputs the head of that name has now."""
        self._find(head)
        return self._known[head.name].outputs

    def activate(self, head: Head) -> None:
        """Let that head train and freeze the others, so that no optimizer decays them; the encoder is left alone."""
        self._find(head)
        for name, module in self.heads.items():
            module.requires_grad_(name == head.name)

    def _find(self, head: Head) -> TaskHead:
        if head.name not in self.heads:
            listed = ", ".join(self.heads) or "none"
            raise LookupError(
                f"unknown head {head.name!r}{suggest(head.name, self.heads)} (heads: {listed})"
            )
        return self.heads[head.name]


def _check_growth(known: Head, head: Head) -> None:
    if head.outputs < known.outputs:
        raise ValueError(
            f"head {head.name!r} has {known.outputs} outputs and cannot shrink to {head.outputs}"
        )
    if replace(head, outputs=known.outputs) != known:
        was, now = (f"{each.kind}, {each.layout}, {each.views} views" for each in (known, head))
        raise ValueError(
            f"head {head.name!r} is ({was}) and cannot become ({now}); give the other task's head a name"
        )
    if head.kind == "choice" and head.outputs != known.outputs:
        raise ValueError(
            f"head {head.name!r} chooses among {known.views} views and cannot have {head.outputs} outputs"
        )
