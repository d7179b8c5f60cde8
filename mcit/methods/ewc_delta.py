"""EWC on the product of LoRA's matrices (EWC-LoRA): the change of the weight is held, not A and B.

Zheng et al., Revisiting weight regularization for low-rank continual learning, ICLR 2026,
https://arxiv.org/abs/2602.17559

Task t trains a fresh pair, dW = s B A with s = alpha / rank, from dW = 0; pairs before it stay.

After task t     importance = decay * importance + mean_i (d log p(y_i | x_i) / d W)^2
In later tasks   loss += strength / 2 * sum importance * dW^2, which is, with
                 P = strength * s^2 * importance * B A,   grad_A += B^T P,   grad_B += P A^T

The derivative by dW is that by the layer's own weight W, whose per-example squares are formed by
rule. The penalty's gradient needs no graph. With `store` factored, importance is the product of its
row and column sums over their total: exact where it has rank one, and small.

Differs from the public code: squares are of single examples, not of batch means; finished pairs are
added as products, where it adds factors, which gives cross terms; all layers with a pair are held
(there key and value: --set model.lora.targets=[k_proj,v_proj]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.consolidating import TaskForward
from mcit.diagnosis import diagnose
from mcit.errors import ConfigError
from mcit.estimator import Estimator
from mcit.fresh_pairs import FreshPairMethod, check_strength, fresh_pairs
from mcit.importance import Importance, measure_importance
from mcit.method import Outcome, Stage, Step
from mcit.models.lora_pairs import Pair
from mcit.parallel.loading import budget


@dataclass
class EwcDelta(FreshPairMethod):
    """Fisher information of the weights under the pairs; their change is held."""

    name = "ewc_delta"
    measures_importance = True
    # no default: no value suits two estimators or two recipes
    strength: float = option(help="factor of the penalty (public code: 1e7); 0 is none")
    estimator: Estimator = Estimator()
    decay: float = option(1.0, help="factor of the old importance when that of a new task is added")
    store: Literal["full", "factored"] = option(
        "full", help="importance of every weight, or of rows and columns, which is small"
    )
    # by the name of a layer's weight: [outputs, inputs], or rows [outputs] and columns [inputs]
    importance: dict[str, list[Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        if not 0 <= self.decay <= 1:
            raise ConfigError([f"method.decay must lie between 0 and 1, found {self.decay:g}"])

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        if not self.importance or not self.strength:
            return
        penalty = 0.0
        for pair in fresh_pairs(stage):
            held = self.importance[pair.name]
            add_penalty_(pair, held, self.strength)
            if step.logged:
                squares = (pair.scale * pair.product()).square_().mul_(unfold(held))
                penalty += self.strength / 2 * float(squares.sum())
        if step.logged:
            step.statistics["penalty"] = penalty

    def end_task(self, stage: Stage) -> Outcome:
        # after the last task nothing comes that could be held
        if not stage.later:
            return Outcome()
        importance = measure_products(stage, self.estimator)
        for name, value in importance.values.items():
            parts = fold(value.flatten(1), self.store)
            old = self.importance.get(name, [torch.zeros_like(part) for part in parts])
            pairs = zip(old, parts, strict=True)
            self.importance[name] = [self.decay * before + now for before, now in pairs]
        held = {name: unfold(parts) for name, parts in self.importance.items()}
        return Outcome(importance, diagnose(held, self.strength, {}))

    def examples_read(self, stage: Stage) -> int:
        if not stage.later:
            return 0
        return budget(self.estimator.samples, len(stage.task.examples("train")))

    def state_dict(self) -> Mapping[str, Any]:
        return {"importance": self.importance}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        super().restore(stage, state)
        device = next(stage.learner.parameters()).device
        self.importance = {}
        for name, parts in state["importance"].items():
            self.importance[name] = [part.to(device) for part in parts]

    def describe(self) -> str:
        return (
            f"{self.estimator.describe()}; for the weight change made by a fresh LoRA pair: "
            f"strength "
            f"{self.strength:g}, decay {self.decay:g}, {self.store} importance"
        )

    def bytes_held(self) -> int:
        return self.kept + sum(p.nbytes for parts in self.importance.values() for p in parts)


def measure_products(stage: Stage, estimator: Estimator) -> Importance:
    """Return the importance of dW = s B A of every pair, by the name of the layer's weight."""
    weights = {pair.name: pair.weight for pair in fresh_pairs(stage)}
    trained = {name: weight.requires_grad for name, weight in weights.items()}
    try:
        for weight in weights.values():
            weight.requires_grad_(True)
        return measure_importance(
            stage.learner,
            stage.load(stage.task, "train"),
            estimator,
            forward=TaskForward(stage.task, stage.precision),
            only=weights.__contains__,
            progress=stage.progress,
        )
    finally:
        for name, weight in weights.items():
            weight.requires_grad_(trained[name])


@torch.no_grad()
def add_penalty_(pair: Pair, held: Sequence[Tensor], strength: float) -> None:
    """Add the gradient of strength / 2 * sum importance * (s B A)^2 to those of A and B."""
    pair.add_pull_(unfold(held), strength * pair.scale**2)


def fold(value: Tensor, store: str) -> list[Tensor]:
    """Return what is stored of an importance [outputs, inputs]."""
    if store == "full":
        return [value]
    return [value.sum(dim=1), value.sum(dim=0)]


def unfold(held: Sequence[Tensor]) -> Tensor:
    """Return the importance [outputs, inputs] that is stored whole, or as sums."""
    if len(held) == 1:
        return held[0]
    rows, columns = held
    return torch.outer(rows, columns) / rows.sum()
