"""One LoRA adapter per task on a frozen backbone, switched when a task is scored.

Hu et al., LoRA: low-rank adaptation of large language models, ICLR 2022,
https://arxiv.org/abs/2106.09685

y = W x + (alpha / rank) B_t A_t x, with A_t, B_t of the task that is learned or scored. Task
identity must be known at test time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcit.config.options import option
from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.task import Task, Track


@dataclass
class Adapters(Method):
    """The backbone's own weights never move; each task has an adapter and a head of its own."""

    name = "adapters"
    rank: int = option(16, help="rank of the adapters")
    alpha: float = option(16.0, help="scale of the adapters is alpha / rank")
    targets: tuple[str, ...] = option(
        (), help="layers that get adapters; none: what the backbone suggests"
    )
    held: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError([f"method.rank must be at least 1, found {self.rank}"])

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is not Track.CLASSES:
            return []
        return [
            "method 'adapters' must know the task at test time, which class-incremental runs "
            "do not tell; choose another method"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        stage.learner.encoder.requires_grad_(False)
        lora = LoraConfig(rank=self.rank, alpha=self.alpha, targets=self.targets)
        stage.learner.add_adapter(_label(stage.task), lora)
        self.held += _count_bytes(stage)
        return ()

    def before_scoring(self, stage: Stage, task: Task) -> None:
        stage.learner.encoder.use_adapter(_label(task))

    def after_scoring(self, stage: Stage) -> None:
        stage.learner.encoder.use_adapter(_label(stage.task))

    def state_dict(self) -> dict[str, int]:
        return {"held": self.held}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.held = state["held"]
        stage.learner.encoder.use_adapter(_label(stage.task))

    def describe(self) -> str:
        layers = ", ".join(self.targets) or "the layers that the backbone suggests"
        return f"one adapter per task: rank {self.rank} on {layers} of the frozen encoder"

    def bytes_held(self) -> int:
        return self.held


def _label(task: Task) -> str:
    return task.name.replace(".", "_")


def _count_bytes(stage: Stage) -> int:
    """Return the size of the adapter that trains now: nothing else of the backbone does."""
    return sum(p.nbytes for p in stage.learner.encoder.parameters() if p.requires_grad)
