"""O-LoRA: a LoRA pair for every task, in directions that earlier pairs do not read.

Wang et al., Orthogonal subspace learning for language model continual learning, EMNLP Findings
2023, https://arxiv.org/abs/2310.14152

Task t trains a fresh pair A_t, B_t next to those before it, which are frozen and act.

In later tasks   loss += strength * sum_{i<t} sum_jk |A_i A_t^T|_jk + shrink * (|A_t| + |B_t|)
which is         grad_A += strength * sign(A_t A^T) A + shrink * A_t / |A_t|, with A all earlier A_i
                 one below the other, and grad_B += shrink * B_t / |B_t|

Differs from the public code: the gradient is added directly, without a graph; finished pairs are
added as products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.fresh_pairs import FreshPairMethod, check_strength, finished_pairs, fresh_pairs
from mcit.method import Stage, Step
from mcit.models.lora_pairs import Pair


@dataclass
class Olora(FreshPairMethod):
    """Fresh pairs whose A is pushed to be orthogonal to those of earlier tasks."""

    name = "olora"
    works_sharded = True
    # no default: the penalty grows with the number of layers and their widths
    strength: float = option(help="factor of the overlaps (published: 0.5; MCITlib: 0.05); 0: none")
    shrink: float = option(0.0, help="factor of the norms of the fresh pair (published: 0)")

    def __post_init__(self) -> None:
        check_strength(self.strength)
        if not (math.isfinite(self.shrink) and self.shrink >= 0):
            raise ConfigError([f"method.shrink must be at least 0, found {self.shrink:g}"])

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        earlier = finished_pairs(stage)
        if not earlier or not (self.strength or self.shrink):
            return
        total = 0.0
        for number, pair in enumerate(fresh_pairs(stage)):
            old = [pairs[number] for pairs in earlier]
            overlap = add_penalty_(pair, old, self.strength, self.shrink)
            if step.logged:
                total += float(overlap)
        if step.logged:
            step.statistics["penalty"] = self.strength * total

    def describe(self) -> str:
        return (
            "a LoRA pair for every task, orthogonal to the earlier ones (O-LoRA): strength "
            f"{self.strength:g}, shrink {self.shrink:g}"
        )


@torch.no_grad()
def add_penalty_(pair: Pair, earlier: Sequence[Pair], strength: float, shrink: float) -> Tensor:
    """Add the penalty's gradient to that of a fresh pair; return the sum of the overlaps."""
    old = torch.cat([before.a.detach().flatten(1) for before in earlier])  # [all ranks, inputs]
    overlaps = pair.a.detach().flatten(1) @ old.T  # [rank, all ranks]
    if strength:
        _add(pair.a, strength * (overlaps.sign() @ old))
    if shrink:
        for matrix in (pair.a, pair.b):
            size = matrix.detach().norm()
            # a matrix that is zero has no direction to shrink along
            if float(size):
                _add(matrix, shrink / size * matrix.detach())
    return overlaps.abs().sum()


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.add_(gradient.view_as(parameter).to(parameter.grad.dtype))
