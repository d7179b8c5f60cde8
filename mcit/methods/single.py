"""Every task alone, from the pretrained weights: what a task scores without the others, for knowledge transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mcit.method import Method, Stage
from mcit.task import Task, is_class_incremental


@dataclass
class Single(Method):
    """One encoder per task; a task is scored with its own."""

    name = "single"
    looks_ahead = False
    pretrained: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    encoders: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        if not is_class_incremental(tasks):
            return []
        return [
            "method 'single' needs a head per task; class-incremental tasks share one: use 'joint'"
        ]

    def begin_task(self, stage: Stage) -> None:
        encoder = stage.learner.encoder
        if not self.pretrained:
            self.pretrained = _copy(encoder.state_dict())
        encoder.load_state_dict(self.pretrained)

    def end_task(self, stage: Stage) -> None:
        self.encoders[stage.index] = _copy(stage.learner.encoder.state_dict())

    def before_scoring(self, stage: Stage, task: Task) -> None:
        own = self.encoders.get(list(stage.tasks).index(task))
        if own is not None:
            stage.learner.encoder.load_state_dict(own)

    def after_scoring(self, stage: Stage) -> None:
        stage.learner.encoder.load_state_dict(self.encoders[stage.index])

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        return None if stage.index else {}

    def state_dict(self) -> Mapping[str, Any]:
        return {
            "pretrained": self.pretrained,
            "encoders": {str(i): e for i, e in self.encoders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pretrained = dict(state.get("pretrained", {}))
        self.encoders = {
            int(index): encoder for index, encoder in state.get("encoders", {}).items()
        }

    def describe(self) -> str:
        return "each task alone, from the pretrained weights"

    def bytes_held(self) -> int:
        held = [self.pretrained, *self.encoders.values()]
        return sum(t.numel() * t.element_size() for state in held for t in state.values())


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
