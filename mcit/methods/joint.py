"""All tasks at once: the upper bound. The same model is scored after every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class Joint(Method):
    """Everything is learned in the first stage, tasks in turn; later stages only score."""

    name = "joint"
    works_sharded = True
    stands_alone = True

    def begin_task(self, stage: Stage) -> Sequence[str]:
        if stage.index == 0:
            for task in stage.later:
                stage.learner.grow(task.head)
                stage.learner.let_train(task.head)
        return ()

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        if stage.index > 0:
            return []
        together = stage.tasks[-1].all_seen()
        if together is None:
            return list(stage.tasks)
        # parts of one data set are one task, with one softmax over all classes, learned as the
        # first is
        return [replace(together, recipe=stage.task.recipe)]

    def describe(self) -> str:
        return "all tasks learned together (upper bound)"
