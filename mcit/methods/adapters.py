"""One low-rank adapter per task on a frozen encoder, switched when a task is scored: nothing can be forgotten."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import peft
from peft.tuners.tuners_utils import BaseTunerLayer

from mcit.config import ConfigError
from mcit.method import Method, Stage
from mcit.task import Task, is_class_incremental


@dataclass
class Adapters(Method):
    """The encoder's own weights never move; each task has an adapter and a head of its own."""

    name = "adapters"
    looks_ahead = False
    rank: int = 16
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError([f"method.rank must be a number from 1, found {self.rank}"])

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        if not is_class_incremental(tasks):
            return []
        return ["method 'adapters' needs a ViLT, whose linear layers have adapters beside them"]

    def begin_task(self, stage: Stage) -> None:
        vilt = stage.learner.encoder.vilt
        vilt.requires_grad_(False)
        config = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=list(self.targets)
        )
        with warnings.catch_warnings():
            # several adapters side by side, which peft warns of, is what is wanted here
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            peft.inject_adapter_in_model(config, vilt, adapter_name=_label(stage.task))
        _switch(stage, stage.task)

    def before_scoring(self, stage: Stage, task: Task) -> None:
        _switch(stage, task)

    def after_scoring(self, stage: Stage) -> None:
        _switch(stage, stage.task)

    def describe(self) -> str:
        return f"one adapter per task: rank {self.rank} beside {', '.join(self.targets)} of the frozen encoder"


def _label(task: Task) -> str:
    return task.name.replace(".", "_")


def _switch(stage: Stage, task: Task) -> None:
    for module in stage.learner.encoder.modules():
        if isinstance(module, BaseTunerLayer):
            module.set_adapter(_label(task))
