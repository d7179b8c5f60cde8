"""RegLoRA: of every task's change of the weights, the largest entries are not changed again.

Chen et al., SEFE: superficial and essential forgetting eliminator for multimodal continual
instruction tuning, ICML 2025, https://arxiv.org/abs/2505.02486

Task t trains a fresh pair A, B; pairs before it stay.

After task t     of each layer, the entries of B A with the largest absolute values are marked
In later tasks   loss += strength * mean over layers, mean over marked entries of |B A|
which is, with P = strength / (layers * marked) * sign(B A) at marked entries,
                 grad_A += B^T P,   grad_B += P A^T

Differs from the public code: marks are bits, 1 / 32 of the memory of the weights and the same
however many tasks there were, where it keeps lists of indices; an entry that several tasks mark
counts once. SEFE also rewrites training data into other answer styles with a language model; this
is its other half alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.fresh_pairs import FreshPairMethod, check_strength, fresh_pairs
from mcit.method import Outcome, Stage, Step
from mcit.models.lora_pairs import Pair


@dataclass
class Reglora(FreshPairMethod):
    """Fresh pairs that leave the main entries of earlier changes alone."""

    name = "reglora"
    works_sharded = True
    # no default: a configuration or the user chooses it
    strength: float = option(help="factor of the marked entries (published: 2500); 0 is none")
    fraction: float = option(0.02, help="fraction of a layer's entries marked by each task")
    # by the name of a layer's weight: eight entries in a byte
    marks: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                [f"method.fraction must be above 0 and at most 1, found {self.fraction:g}"]
            )

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        if not self.marks or not self.strength:
            return
        pairs = fresh_pairs(stage)
        total = 0.0
        for pair in pairs:
            penalty = add_penalty_(pair, self.marks[pair.name], self.strength / len(pairs))
            if step.logged:
                total += float(penalty)
        if step.logged:
            step.statistics["penalty"] = total

    def end_task(self, stage: Stage) -> Outcome:
        if stage.later:
            for pair in fresh_pairs(stage):
                found = mark_largest(pair.product(), self.fraction)
                old = self.marks.get(pair.name, torch.zeros_like(found))
                self.marks[pair.name] = old | found
        return Outcome()

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.marks)

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        super().restore(stage, state)
        device = next(stage.learner.parameters()).device
        self.marks = {name: marks.to(device) for name, marks in state.items()}

    def describe(self) -> str:
        return (
            f"the {self.fraction:.0%} largest changes of every task are not changed again "
            f"(RegLoRA): strength {self.strength:g}"
        )

    def bytes_held(self) -> int:
        return self.kept + sum(marks.nbytes for marks in self.marks.values())


@torch.no_grad()
def add_penalty_(pair: Pair, marks: Tensor, strength: float) -> Tensor:
    """Add the gradient of strength * mean |B A| over marked entries, and return that penalty."""
    product = pair.product()
    marked = unpack(marks, product.numel()).view_as(product)
    factor = strength / marked.sum()
    pair.add_gradient_(product.sign() * marked * factor)
    return factor * (product.abs() * marked).sum()


def mark_largest(product: Tensor, fraction: float) -> Tensor:
    """Return bits, packed, that are set at the entries of the largest absolute values."""
    count = max(1, round(fraction * product.numel()))
    largest = product.abs().flatten().topk(count).indices
    bits = torch.zeros(product.numel(), dtype=torch.bool, device=product.device)
    bits[largest] = True
    return pack(bits)


def pack(bits: Tensor) -> Tensor:
    """Return bits [entries] as bytes [entries / 8], the first in the lowest place."""
    padded = F.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    places = 2 ** torch.arange(8, device=bits.device, dtype=torch.uint8)
    return (padded * places).sum(dim=1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of bytes."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    return ((packed[:, None] >> places) & 1).bool().flatten()[:count]
