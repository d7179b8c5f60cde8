"""The base class of methods that hold weights by their importance.

After a task     importance is measured and merged into one importance and one anchor per weight
In later tasks   grad += strength * importance * (weight - anchor)

See mcit/consolidation.py for the merge rules and mcit/estimator.py for the measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mcit.config.options import option
from mcit.consolidation import AUTO, ConsolidationManager, ImportanceType, Merge
from mcit.errors import ConfigError
from mcit.estimator import Estimator, OneClassError
from mcit.importance import Importance, measure_importance
from mcit.method import Method, Outcome, Stage, Step
from mcit.parallel.loading import budget
from mcit.task import Batch, Recipe, Task


@dataclass
class ConsolidatingMethod(Method):
    """Measure importance after each task, and hold the weights that later tasks share."""

    first_task_is_finetuning = True
    works_sharded = True
    # an importance and an anchor
    bytes_per_weight = 8
    measures_importance = True

    # no default: no value suits two estimators or two recipes
    strength: float | Literal["auto"] = option(
        help="factor of the penalty; 0 is finetuning; auto is the one that gives `stiffness`"
    )
    estimator: Estimator = Estimator()
    merge: Merge = option(
        "sum", help="how a task's importance is merged with that of earlier tasks"
    )
    decay: float = option(1.0, help="factor of the old importance, for merge `online`")
    penalty: Literal["gradient", "proximal"] = option(
        "gradient",
        help="`gradient` adds the pull to the gradient; `proximal` takes an implicit step after "
        "the optimizer's, which is stable for any strength",
    )
    importance_dtype: ImportanceType = option(
        "float32",
        help=(
            "data type of the kept importance: bfloat16 takes half the memory and keeps three "
            "digits"
        ),
    )
    stiffness: float | None = option(
        None,
        help="for strength auto: the mean of strength * importance over all held weights after the "
        "first task; none: the configuration's `stiffness`",
        newer=True,
    )
    manager: ConsolidationManager | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = find_strength_problems(self.strength, self.stiffness)
        if not 0 <= self.decay <= 1:
            problems.append(f"method.decay must lie between 0 and 1, found {self.decay:g}")
        if self.merge != "online" and self.decay not in (1.0, type(self).decay):
            problems.append(
                f"method.decay belongs to merge 'online', found merge {self.merge!r}: leave it out"
            )
        if self.estimator.update_buffers:
            problems.append(
                "method.estimator.update_buffers is true, which would refresh BatchNorm's "
                "statistics for this method and not for others: set "
                "training.refresh_batchnorm=true, which does so for every method"
            )
        if problems:
            raise ConfigError(problems)

    @property
    def active_manager(self) -> ConsolidationManager:
        """Return the manager, which the first task or a checkpoint makes."""
        if self.manager is None:
            raise RuntimeError("there is no manager yet: call begin_task or restore first")
        return self.manager

    def begin_task(self, stage: Stage) -> Sequence[str]:
        if self.manager is None:
            self.manager = self._make_manager(stage)
        else:
            self.manager.track(stage.learner)
        recipe = stage.task.recipe
        if self.penalty == "proximal" or recipe.optimizer != "sgd":
            return ()
        warning = self.manager.diagnose(recipe.learning_rate, recipe.momentum).warning()
        return () if warning is None else (warning,)

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        if self.penalty == "gradient":
            ratio = self.active_manager.add_gradient_(measure=step.logged)
            # infinite if the task has no gradient, as with one class alone
            if ratio is not None and math.isfinite(ratio):
                step.statistics["pull"] = ratio
        if step.logged:
            step.statistics["penalty"] = float(self.active_manager.penalty())

    def after_step(self, stage: Stage, step: Step) -> None:
        if self.penalty == "proximal":
            self.active_manager.proximal_(step.learning_rate)

    def end_task(self, stage: Stage) -> Outcome:
        manager = self.active_manager
        importance = None
        # after the last task nothing comes that could be held
        if stage.later:
            importance = self._measure_or_zero(stage)
            manager.consolidate(importance, self._old_fraction(stage))
        diagnosis = manager.diagnose() if manager.importance else None
        return Outcome(importance, diagnosis)

    def measure(self, stage: Stage) -> Importance:
        """Return the importance of shared weights for the task just learned."""
        return measure_importance(
            stage.learner,
            stage.load(stage.task, "train"),
            self.estimator,
            forward=TaskForward(stage.task, stage.precision),
            only=stage.is_shared,
            progress=stage.progress,
        )

    def examples_read(self, stage: Stage) -> int:
        if not stage.later:
            return 0
        return budget(self.estimator.samples, len(stage.task.examples("train")))

    def state_dict(self) -> Mapping[str, Any]:
        return {} if self.manager is None else self.manager.state_dict()

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.manager = self._make_manager(stage)
        if state:
            self.manager.load_state_dict(state)

    def explain_divergence(self, recipe: Recipe) -> list[str]:
        if self.manager is None or not self.manager.importance:
            return []
        if recipe.optimizer == "sgd":
            diagnosis = self.manager.diagnose(recipe.learning_rate, recipe.momentum)
        else:
            diagnosis = self.manager.diagnose()
        lines = [f"the penalty: {diagnosis.describe()}"]
        warning = diagnosis.warning()
        if warning is not None:
            lines.append(warning)
        return lines

    def describe(self) -> str:
        merge = self.describe_merge()
        measured = self.estimator.describe()
        return f"{measured}; {self.describe_strength()}, {merge}, {self.penalty} penalty"

    def describe_strength(self) -> str:
        """Return the strength, or what decides it, in words."""
        if self.strength == AUTO:
            return f"strength auto (mean stiffness {self.stiffness:g})"
        return f"strength {self.strength:g}"

    def describe_merge(self) -> str:
        """Return the merge rule in words."""
        if self.merge == "online":
            return f"merge online (decay {self.decay:g})"
        return f"merge {self.merge}"

    def bytes_held(self) -> int:
        return 0 if self.manager is None else self.manager.bytes_held()

    def _make_manager(self, stage: Stage) -> ConsolidationManager:
        return ConsolidationManager(
            stage.learner,
            self.strength,
            stiffness=self.stiffness,
            merge=self.merge,
            decay=self.decay,
            importance_dtype=self.importance_dtype,
        )

    def _measure_or_zero(self, stage: Stage) -> Importance:
        try:
            return self.measure(stage)
        except OneClassError:
            note = "there is one class so far, so every score is constant"
            return constant_importance(stage, 0.0, note)

    def _old_fraction(self, stage: Stage) -> float | None:
        """Return the fraction of old classes, or of old tasks, for merge `share`."""
        if self.merge != "share":
            return None
        span = stage.task.span
        if span is None:
            return stage.index / (stage.index + 1)
        return span.known / span.total


@dataclass(frozen=True)
class TaskForward:
    """Logits and target of a task's batch, as `measure_importance` wants them."""

    task: Task
    precision: Callable[[], AbstractContextManager] = nullcontext

    def __call__(self, learner: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        with self.precision():
            logits = learner(batch, self.task.head).logits
        # 16 bits cannot tell a confident answer from a certain one
        wide = torch.promote_types(logits.dtype, torch.float32)
        return logits.to(wide), self.task.target(batch)


def find_strength_problems(strength: float | Literal["auto"], stiffness: float | None) -> list[str]:
    """Return what is wrong with a strength, and with the stiffness that strength auto aims at."""
    if strength == AUTO:
        if stiffness is None:
            return [
                "method.strength is auto, which needs a mean stiffness to aim at, and the "
                "configuration gives none: pass --set method.stiffness=..., such as 0.3"
            ]
        if not 0 < stiffness < math.inf:
            return [f"method.stiffness must be a number above 0, found {stiffness:g}"]
        return []
    problems = []
    if not (math.isfinite(strength) and strength >= 0):
        problems.append(f"method.strength must be at least 0, found {strength:g}")
    if stiffness is not None:
        problems.append(
            f"method.stiffness is the aim of strength auto, found strength {strength:g}: leave one "
            "of them out"
        )
    return problems


def refuse_estimator(method: ConsolidatingMethod) -> None:
    """Raise if a method that measures without an estimator was given one."""
    if method.estimator != Estimator():
        raise ConfigError([f"method {method.name!r} has no estimator: leave method.estimator out"])


@torch.no_grad()
def constant_importance(stage: Stage, value: float, note: str) -> Importance:
    """Return the same importance for every weight that is shared."""
    values = {}
    for name, parameter in stage.learner.named_parameters():
        if parameter.requires_grad and stage.is_shared(name):
            values[name] = torch.full_like(parameter, value)
    return Importance(values, note=note)
