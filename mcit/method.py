"""The contract of a method: a dataclass of hyper-parameters, with hooks that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from mcit.class_statistics import ClassStatistics, Needs
from mcit.classifier import Scorer
from mcit.config.parse import Selection
from mcit.config.schema import ModelConfig
from mcit.task import Batch, Head, Output, Recipe, Split, Task

if TYPE_CHECKING:
    from mcit.consolidation import Diagnosis
    from mcit.importance import Importance
    from mcit.models.learner import Learner
    from mcit.parallel.loading import SplitLoader


class Loading(Protocol):
    """Reads the examples of a task's split."""

    def __call__(self, task: Task, split: Split) -> SplitLoader: ...


@dataclass
class Step:
    """One optimizer step, as hooks see it."""

    # from 0, within the task
    number: int
    total: int
    learning_rate: float
    recipe: Recipe
    # compute expensive statistics on this step
    logged: bool
    # shown by the progress bar and written to the log
    statistics: dict[str, float] = field(default_factory=dict)


@dataclass
class Stage:
    """Where a run is: the learner, the tasks, and which of them is being learned."""

    learner: Learner
    tasks: Sequence[Task]
    index: int
    seed: int
    # `load(task, "train")` in shuffled batches, `load(task, "plain")` without augmentation in file
    # order
    load: Loading
    # `with precision():` is the precision in which gradients are formed
    precision: Callable[[], AbstractContextManager] = nullcontext
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

    @property
    def head_widens(self) -> bool:
        """Whether a later task adds outputs to this task's head."""
        return any(task.head.name == self.task.head.name for task in self.later)

    def is_shared(self, name: str) -> bool:
        """Whether later tasks use the parameter: it is the backbone's, or of a head that widens."""
        head = self.learner.head_of(name)
        if head is None:
            return True
        return head == self.task.head.name and self.head_widens


@dataclass(frozen=True)
class Outcome:
    """What a method found at the end of a task."""

    importance: Importance | None = None
    # how stiff the penalty is from now on
    diagnosis: Diagnosis | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass
class Method:
    """A continual-learning method; a file in `mcit/methods/` defines one and has its name.

    The hooks of a task come in this order: begins_pair, begin_task, tasks_to_fit, begin_fit; for
    every optimizer step prepare_batch, loss, extra_loss, on_gradients_ready, after_step and
    extra_batch; end_task, see_statistics; classifier, before_scoring for every task that is scored,
    after_scoring.

    `lwf+ewc_lo` is a combination: the hooks of both run in that order and extra losses add up. What
    tasks_to_fit, prepare_batch, loss, extra_batch and classifier return can come from one method
    only, and two that define the same one are refused (mcit/composite.py).
    """

    name: ClassVar[str]
    # Whether the steps of the first task are those of finetuning, so that runs can share them.
    first_task_is_finetuning: ClassVar[bool] = False
    # Bytes that it keeps for every weight that trains, for estimates of memory.
    bytes_per_weight: ClassVar[int] = 0
    # Whether steps change nothing but the network, so that runs of the same options share them.
    steps_move_network_only: ClassVar[bool] = False
    # What answers and what carries class statistics over, unless the run names others; a method
    # that was published together with them says so here.
    answers: ClassVar[Selection] = Selection("head")
    carries: ClassVar[Selection] = Selection("none")
    # Whether it works on LoRA pairs, and refuses a backbone without them.
    needs_lora: ClassVar[bool] = False
    # Whether it keeps examples of earlier tasks: it is not exemplar-free, and tables say so.
    keeps_examples: ClassVar[bool] = False
    # Whether `end_task` measures importance; of methods that are combined, one may.
    measures_importance: ClassVar[bool] = False
    # Whether it changes the steps that all other hooks have led to, such as by a projection: in a
    # combination it comes last.
    comes_last: ClassVar[bool] = False
    # Whether it can be part of no combination, as bounds on what others can reach.
    stands_alone: ClassVar[bool] = False
    # Whether its head learns every task; one that does not cannot answer.
    trains_head: ClassVar[bool] = True
    # Whether every step's loss looks at all heads that train, where that is more than one.
    uses_every_head: ClassVar[bool] = False

    # Whether it works on weights of which every process holds a part (FSDP2).
    works_sharded: ClassVar[bool] = False

    def parts(self) -> Sequence[Method]:
        """Return the methods that this one is made of: itself, unless it is a combination."""
        return [self]

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        """Return why the method cannot learn these tasks with this model; nothing is built yet."""
        return []

    def begins_pair(self, stage: Stage) -> bool:
        """Whether the task trains a fresh LoRA pair; those before it stay, frozen and acting."""
        return False

    def begin_task(self, stage: Stage) -> Sequence[str]:
        """Prepare for a task and return warnings.

        The learner has its head for the task, and only that head trains; no step has been taken.
        """
        return ()

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        """Return the tasks to train on at this stage."""
        return [stage.task]

    def begin_fit(self, stage: Stage) -> None:
        """The learner is in train mode and the first step is about to be taken."""

    def prepare_batch(self, stage: Stage, task: Task, batch: Batch) -> Batch:
        """Return the batch to train on, on the device: rotated images, pseudo-examples."""
        return batch

    def extra_head(self, stage: Stage, task: Task) -> Head | None:
        """Return a head whose logits follow the task's in the learner's output, mostly none.

        By default it is that of the task's recipe, which the trainer adds and drops; one of the
        method's own is grown in begin_task.
        """
        return task.extra_head

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        """Return the loss of a batch, by default the task's.

        A loss of one's own compares all outputs with `task.target(batch)`: a recipe may have added
        rotated images and their outputs.
        """
        return task.loss(output.logits, batch)

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        """Return a term that autograd must see, such as distillation.

        The gradient of a quadratic penalty belongs in `on_gradients_ready`.
        """
        return None

    def extra_batch(self, stage: Stage, step: Step) -> tuple[Task, Batch] | None:
        """Return a batch of another task to take one more step on, with the same optimizer."""
        return None

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        """Add a penalty's gradient: gradients are synchronized, unscaled and not yet clipped."""

    def after_step(self, stage: Stage, step: Step) -> None:
        """The optimizer has moved the weights."""

    def end_task(self, stage: Stage) -> Outcome:
        """Measure importance or fill a buffer: the weights are final for the task."""
        return Outcome()

    def needs(self) -> Needs:
        """Return the statistics of classes that the method itself looks at, in see_statistics."""
        return Needs()

    def see_statistics(self, stage: Stage, statistics: ClassStatistics) -> None:
        """The statistics of all classes seen are measured, as the network has them now."""

    def classifier(self, stage: Stage) -> Scorer | None:
        """Return what answers from features when tasks are scored; None for the learner's head.

        A run can name other classifiers, which need no method (mcit/classifiers/); this one is
        called `head` then.
        """
        return None

    def before_scoring(self, stage: Stage, task: Task) -> None:
        """`task`, of those seen, is about to be scored."""

    def after_scoring(self, stage: Stage) -> None:
        """All tasks seen have been scored."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return all that a resumed run needs, tensors and JSON values only.

        It is asked for between steps and between tasks.
        """
        return {}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        """Take up a state where it was saved, inside or after the task of `stage`.

        It comes instead of begin_task and replaces whatever the method held. The learner is as it
        was: heads, adapters, weights, and which of them train.
        """

    def explain_divergence(self, recipe: Recipe) -> list[str]:
        """Return lines on what of the method may have made training diverge."""
        return []

    def examples_read(self, stage: Stage) -> int:
        """Return how many examples `end_task` reads, for estimates of time."""
        return 0

    def describe(self) -> str:
        """Return one line for reports: what is measured and how it is held."""
        return "no description"

    def bytes_held(self) -> int:
        """Return the memory that the method adds between tasks."""
        return 0
