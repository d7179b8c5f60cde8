"""Every task alone, from the pretrained weights: the reference of knowledge transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from mcit.config.schema import ModelConfig
from mcit.method import Method, Outcome, Stage
from mcit.task import Task, Track


@dataclass
class Single(Method):
    """One backbone per task; a task is scored with its own."""

    name = "single"
    stands_alone = True
    first_task_is_finetuning = True
    pretrained: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    encoders: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is not Track.CLASSES:
            return []
        return [
            "method 'single' needs a head per task; class-incremental tasks share one: use 'joint'"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        encoder = stage.learner.encoder
        if not self.pretrained:
            self.pretrained = _copy_changing(encoder)
        encoder.load_state_dict(self.pretrained, strict=False)
        return ()

    def end_task(self, stage: Stage) -> Outcome:
        self.encoders[stage.index] = _copy_changing(stage.learner.encoder)
        return Outcome()

    def before_scoring(self, stage: Stage, task: Task) -> None:
        own = self.encoders.get(list(stage.tasks).index(task))
        if own is not None:
            stage.learner.encoder.load_state_dict(own, strict=False)

    def after_scoring(self, stage: Stage) -> None:
        stage.learner.encoder.load_state_dict(self.encoders[stage.index], strict=False)

    def state_dict(self) -> Mapping[str, Any]:
        encoders = {str(index): encoder for index, encoder in self.encoders.items()}
        return {"pretrained": self.pretrained, "encoders": encoders}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.pretrained = dict(state["pretrained"])
        self.encoders = {int(index): encoder for index, encoder in state["encoders"].items()}

    def describe(self) -> str:
        return "each task alone, from the pretrained weights"

    def bytes_held(self) -> int:
        held = [self.pretrained, *self.encoders.values()]
        return sum(tensor.nbytes for state in held for tensor in state.values())


def _copy_changing(encoder: nn.Module) -> dict[str, Tensor]:
    """Return what training changes: weights that train, and buffers; a frozen base is left out."""
    frozen = {name for name, weight in encoder.named_parameters() if not weight.requires_grad}
    changing = {}
    for name, tensor in encoder.state_dict().items():
        if name not in frozen:
            changing[name] = tensor.detach().clone()
    return changing
