"""The contract of a backbone: what it reads, its layers from bottom to top, and where LoRA goes.

A backbone is one file in `mcit/models/`. Everything that the rest of the program needs to know of
a network is a member here; nobody looks into it.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from mcit.config.schema import LoraConfig
from mcit.errors import ConfigError
from mcit.models.lora_experts import expert_layers
from mcit.models.lora_pairs import use_adapters
from mcit.spelling import suggest
from mcit.task import Batch


@dataclass(frozen=True)
class Layer:
    """A part of a backbone that is frozen as one, and is a row of a report."""

    name: str
    # of its parameters' names within the backbone
    prefixes: tuple[str, ...]
    # what it belongs to: a modality, or a stage
    group: str
    # embeddings come below the blocks, top above them
    role: Literal["embeddings", "block", "top"] = "block"


class Backbone(nn.Module, ABC):
    """A network that computes features [batch, views, width] of a batch."""

    # what the tasks it can learn are about: `images`, or `images` and `texts`
    reads: ClassVar[frozenset[str]]
    # the layers that get LoRA adapters unless a configuration names others
    lora_targets: tuple[str, ...] = ()
    # whether its weights were learned before the run
    pretrained: bool = True
    # methods of `entry` besides its forward by which passes begin
    entry_methods: tuple[str, ...] = ()
    width: int

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Return features [batch, views, width]."""

    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """Return the parts of the network from bottom to top."""

    def network(self) -> nn.Module:
        """Return the module that adapters are put into and that `save_pretrained` writes."""
        return self

    def entry(self) -> nn.Module:
        """Return the module whose forward every pass begins with; weights are sharded below it."""
        return self

    def freeze_bottom(self, count: int) -> None:
        """Freeze the embeddings and the first `count` blocks."""
        blocks = [layer for layer in self.layers() if layer.role == "block"]
        frozen = [layer for layer in self.layers() if layer.role == "embeddings"]
        frozen += blocks[:count]
        prefixes = tuple(prefix for layer in frozen for prefix in layer.prefixes)
        for name, parameter in self.named_parameters():
            if name.startswith(prefixes):
                parameter.requires_grad_(False)

    def count_blocks(self) -> int:
        """Return the number of blocks between embeddings and top."""
        return sum(layer.role == "block" for layer in self.layers())

    def add_adapter(self, name: str, lora: LoraConfig) -> None:
        """Put a LoRA adapter next to the layers it names; it trains, and acts alone."""
        # imported late: peft takes a second
        import peft
        from peft.tuners.tuners_utils import cast_adapter_dtype

        network = self.network()
        config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=self.find_targets(lora),
        )
        if lora.experts:
            config._register_custom_module(expert_layers(lora.experts))
        with warnings.catch_warnings():
            # several adapters next to each other, which peft warns of, may be what is wanted
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            peft.inject_adapter_in_model(config, network, adapter_name=name)
        # adapters train, and half precision is too coarse for steps
        cast_adapter_dtype(network, name)
        self.use_adapter(name)

    def use_adapter(self, name: str) -> None:
        """Let one adapter act and train; the others rest."""
        use_adapters(self, [name])

    def find_targets(self, lora: LoraConfig) -> list[str]:
        """Return the names of the layers that get adapters; raise if one is not there."""
        targets = list(lora.targets or self.lora_targets)
        known = set()
        for path, module in self.network().named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                # a layer that has an adapter already is inside a wrapper of its name
                known.add(path.removesuffix(".base_layer").rpartition(".")[2])
        self.refuse_targets([target for target in targets if target not in known], known)
        return targets

    def refuse_targets(self, unknown: Sequence[str], known: Iterable[str]) -> None:
        """Raise if layers are named that the network does not have."""
        listed = ", ".join(sorted(set(known)))
        problems = []
        for target in unknown:
            near = suggest(target, set(known))
            problems.append(
                f"model.lora.targets: the network has no layer {target!r}{near} (layers: {listed})"
            )
        if problems:
            raise ConfigError(problems)

    def describe_adapters(self) -> list[str]:
        """Return a line on every adapter: where it is, and how many weights it has."""
        from peft.tuners.lora import LoraLayer

        places: dict[str, dict[str, int]] = {}
        weights: Counter[str] = Counter()
        for path, module in self.network().named_modules():
            if not isinstance(module, LoraLayer):
                continue
            for name in module.lora_A:
                # layers of the same place in every block are one entry
                kind = re.sub(r"\.\d+\.", ".*.", path)
                found = places.setdefault(name, {})
                found[kind] = found.get(kind, 0) + 1
                for part in (module.lora_A[name], module.lora_B[name]):
                    weights[name] += sum(p.numel() for p in part.parameters())
        lines = []
        for name, found in places.items():
            listed = ", ".join(found)
            count = sum(found.values())
            lines.append(
                f"LoRA adapter {name!r} ({weights[name]:,} weights) on {count} layers: {listed}"
            )
        return lines


def describe_parameters(module: nn.Module) -> dict[str, Any]:
    """Return how many weights a module has, and how many of them train."""
    parameters = list(module.parameters())
    return {
        "weights": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
    }
