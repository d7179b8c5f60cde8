"""All tasks at once: the upper bound. The same model is scored after every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class Joint(Method):
    """Everything is learned in the first stage, batches of all tasks in turn; later stages only score."""

    name = "joint"

    def begin_task(self, stage: Stage) -> None:
        if stage.index == 0:
            for task in stage.later:
                stage.learner.grow(task.head)
            stage.learner.heads.requires_grad_(True)

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        if stage.index:
            return []
        last = stage.tasks[-1]
        if not hasattr(last, "all_seen"):
            return list(stage.tasks)
        # parts of one data set are one task, with one softmax over all classes, learned as the first part is
        return [replace(last.all_seen(), recipe=stage.task.recipe)]

    def describe(self) -> str:
        return "all tasks learned together (upper bound)"
