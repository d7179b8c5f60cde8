"""The base class of methods that learn every task with a fresh LoRA pair.

y = W x + sum_{i<t} scale B_i A_i x + scale B_t A_t x, with A_t, B_t of the task that is learned,
and B_t = 0 at its beginning. Earlier pairs are frozen and act. `finetune` with `fresh_pairs` does
so without protection: what a method gains over it is its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.models.lora_pairs import Pair, find_acting, list_pairs
from mcit.task import Task


@dataclass
class FreshPairMethod(Method):
    """A pair for every task; what was learned before stays as it is."""

    first_task_is_finetuning = True
    needs_lora = True
    # bytes of the pairs of earlier tasks
    kept: int = field(default=0, init=False, repr=False)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        return find_lora_problems(self.name, model)

    def begins_pair(self, stage: Stage) -> bool:
        return stage.index > 0

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.kept = count_kept(stage)
        return ()

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.kept = count_kept(stage)

    def bytes_held(self) -> int:
        return self.kept


def find_lora_problems(name: str, model: ModelConfig) -> list[str]:
    """Return why a method that works on LoRA pairs cannot use this model."""
    if model.lora.rank == 0:
        return [
            f"method {name!r} works on LoRA pairs, and model.lora.rank is 0: add "
            "--set model.lora.rank=8"
        ]
    if model.lora.experts:
        return [
            f"method {name!r} works on the product of LoRA's two matrices, which "
            f"model.lora.experts={model.lora.experts} mixes for every token: leave it out"
        ]
    return []


def check_strength(strength: float) -> None:
    """Raise unless a strength is at least 0."""
    if not (math.isfinite(strength) and strength >= 0):
        raise ConfigError([f"method.strength must be at least 0, found {strength:g}"])


def fresh_pairs(stage: Stage) -> list[Pair]:
    """Return the pairs that train, with the names that weights have in the learner."""
    return list_pairs(stage.learner, find_acting(stage.learner)[-1])


def finished_pairs(stage: Stage) -> list[list[Pair]]:
    """Return the pairs of every earlier task."""
    return [list_pairs(stage.learner, name) for name in find_acting(stage.learner)[:-1]]


def count_kept(stage: Stage) -> int:
    """Return the bytes of the pairs of earlier tasks."""
    return sum(pair.bytes_held() for pairs in finished_pairs(stage) for pair in pairs)
