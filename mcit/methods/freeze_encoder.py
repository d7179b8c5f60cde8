"""The backbone is frozen, and only heads and classifiers learn: a control.

Srinivasan et al., CLiMB: a continual learning benchmark for vision-and-language tasks,
NeurIPS 2022, https://arxiv.org/abs/2206.09059

A pretrained backbone stays as it is. One that starts at random learns the first task and is frozen
then, BatchNorm's statistics included: with `--classifier lda` it is what class-incremental methods
have to beat, since it learns nothing after the first task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class FreezeEncoder(Method):
    """Nothing is forgotten, and nothing but heads is learned once the backbone is trained."""

    name = "freeze_encoder"
    steps_move_network_only = True

    def begin_task(self, stage: Stage) -> Sequence[str]:
        stage.learner.encoder.requires_grad_(not is_frozen(stage))
        return ()

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        if is_frozen(stage) and not self.trains_head:
            return []
        return [stage.task]

    def begin_fit(self, stage: Stage) -> None:
        if is_frozen(stage):
            stage.learner.encoder.eval()

    def describe(self) -> str:
        return "the encoder is frozen"


def is_frozen(stage: Stage) -> bool:
    """Whether the backbone has learned what it will: before the run, or in the first task."""
    return stage.learner.encoder.pretrained or stage.index > 0
