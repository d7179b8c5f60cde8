"""CLiMB's control: the encoder stays as it was pretrained, only the heads learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.method import Method, Stage
from mcit.task import Task, is_class_incremental


@dataclass
class FreezeEncoder(Method):
    """Nothing is forgotten, and nothing but the heads is learned."""

    name = "freeze_encoder"
    looks_ahead = False

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        if not is_class_incremental(tasks):
            return []
        return [
            "method 'freeze_encoder' needs a pretrained encoder; that of class-incremental tasks starts at random"
        ]

    def begin_task(self, stage: Stage) -> None:
        stage.learner.encoder.requires_grad_(False)

    def describe(self) -> str:
        return "the encoder is frozen"
