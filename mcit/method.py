"""What a method is: a dataclass whose fields are its hyper-parameters, and a few hooks that do nothing by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils.data import DataLoader

from mcit.config import to_dict
from mcit.task import Batch, Recipe, Task


@dataclass
class Step:
    """One optimizer step, as hooks see it."""

    number: int  # from 0, within the task
    total: int
    learning_rate: float
    recipe: Recipe
    logged: bool  # whether figures that cost time are wanted now
    figures: dict[str, float] = field(
        default_factory=dict
    )  # what the progress bar and the log show


@dataclass
class Stage:
    """Where a run is: the learner, the tasks, and which of them is being learned."""

    learner: nn.Module
    tasks: Sequence[Task]
    index: int
    seed: int
    loader: Callable[
        [Task, str], DataLoader
    ]  # of a task's split, whole; the training split shuffled
    progress: bool = False

    @property
    def task(self) -> Task:
        return self.tasks[self.index]

    @property
    def earlier(self) -> Sequence[Task]:
        return self.tasks[: self.index]

    @property
    def later(self) -> Sequence[Task]:
        return self.tasks[self.index + 1 :]


@dataclass
class Method:
    """A continual-learning method. A file in `mcit/methods/` defines exactly one; the file's name is its label.

    The hooks arrive in this order for every task: begin_task, tasks_to_fit, then for every optimizer step extra_loss,
    before_clip and after_step, then end_task; and before_scoring for every task that is scored.
    """

    name: ClassVar[str]
    looks_ahead: ClassVar[bool] = (
        True  # whether the tasks to come can change what it does with this one
    )

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        """Why the method cannot learn these tasks, if so; asked before anything is built or written."""
        return []

    def begin_task(self, stage: Stage) -> None:
        """The learner has its head for the task, and only that head trains; no step has been taken."""

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        """What is trained on at this stage."""
        return [stage.task]

    def extra_loss(self, stage: Stage, batch: Batch, logits: Tensor) -> Tensor | None:
        """A term that autograd must see, such as distillation; a quadratic penalty belongs in `before_clip`."""
        return None

    def extra_batch(self, stage: Stage, step: Step) -> tuple[Task, Batch] | None:
        """A batch of another task to take one more step on, with the same optimizer."""
        return None

    def before_clip(self, stage: Stage, step: Step) -> None:
        """Gradients are synchronised, unscaled and not yet clipped: the place for a penalty's gradient."""

    def after_step(self, stage: Stage, step: Step) -> None:
        """The optimizer has moved the weights."""

    def end_task(self, stage: Stage) -> None:
        """The weights are final for the task: measure importance, fill a buffer."""

    def before_scoring(self, stage: Stage, task: Task) -> None:
        """`task`, of those seen, is about to be scored."""

    def after_scoring(self, stage: Stage) -> None:
        """All tasks seen have been scored."""

    def state_dict(self) -> Mapping[str, Any]:
        """All that a resumed run needs, tensors and JSON values only; asked for between steps and between tasks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The counterpart of `state_dict`.

        Within a task it arrives just before the task's begin_task, when the learner has the heads and adapters of
        the tasks before and not yet its weights, so that what begin_task takes from the weights must be in the state
        too; between two tasks it arrives before the next begin_task.
        """

    def key(self, stage: Stage) -> Mapping[str, Any]:
        """What of the method decides a stage, besides all before it: a stage cache goes by it."""
        later = list(stage.later) if self.looks_ahead else []
        return {"name": self.name, "options": to_dict(self), "later": later}

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        """What of the method decides the steps alone: nothing ({}) where it trains as finetuning does.

        None where they are not shared with other methods or options.
        """
        return None

    def fit_state(self) -> Mapping[str, Any]:
        """What steps that are shared leave in the method itself."""
        return {}

    def load_fit_state(self, state: Mapping[str, Any]) -> None:
        """The steps after begin_task were taken elsewhere; the learner has the weights they led to."""

    def describe(self) -> str:
        """One line for reports: what is measured and how it is held. Write it: only the method itself knows."""
        return "no description"

    def bytes_held(self) -> int:
        """Memory that the method adds."""
        return 0
