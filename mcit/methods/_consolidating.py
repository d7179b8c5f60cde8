"""What the methods that hold weights by their importance have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from mcit.config import ConfigError
from mcit.consolidation import ConsolidationManager, Merge
from mcit.estimator import Estimator, OneClassError
from mcit.importance import Importance, measure_importance
from mcit.method import Method, Stage, Step


@dataclass
class Consolidating(Method):
    """Measure importance after each task, and hold the weights that later tasks share.

    strength: the factor of the pull. It has no default, since no value suits two estimators or two recipes: a
    configuration gives it, or the user does.
    penalty: `gradient` adds the pull to the gradient; `proximal` takes an implicit step after the optimizer's, which
    is stable for any strength.
    """

    looks_ahead = (
        False  # but to see whether anything follows, and whether it widens this head: `key` says so
    )
    strength: float
    estimator: Estimator = Estimator()
    merge: Merge = "sum"
    decay: float = 1.0
    penalty: Literal["gradient", "proximal"] = "gradient"
    manager: ConsolidationManager | None = field(default=None, init=False, repr=False)
    measured: Importance | None = field(
        default=None, init=False, repr=False
    )  # of the task just learned
    state: Mapping[str, Any] | None = field(default=None, init=False, repr=False)
    warning: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.strength) and self.strength >= 0):
            problems.append(f"method.strength must be a number from 0, found {self.strength:g}")
        if not 0 <= self.decay <= 1:
            problems.append(f"method.decay must lie between 0 and 1, found {self.decay:g}")
        if self.merge != "online" and self.decay not in (1.0, type(self).decay):
            problems.append(
                f"method.decay belongs to merge 'online', found merge {self.merge!r}: leave it out"
            )
        if self.estimator.update_buffers:
            problems.append(
                "method.estimator.update_buffers is true, which would refresh BatchNorm's statistics for this method "
                "and not for others: set training.refresh_batchnorm=true, which does so for every method, and leave it "
                "out"
            )
        if problems:
            raise ConfigError(problems)

    def begin_task(self, stage: Stage) -> None:
        if self.manager is None:
            self.manager = ConsolidationManager(
                stage.learner, self.strength, merge=self.merge, decay=self.decay
            )
            if self.state is not None:
                self.manager.load_state_dict(self.state)
        else:
            self.manager.track(stage.learner)
        recipe = stage.task.recipe
        if self.penalty == "gradient" and recipe.optimizer == "sgd":
            self.warning = self.manager.diagnose(recipe.learning_rate, recipe.momentum).warning()

    def before_clip(self, stage: Stage, step: Step) -> None:
        if self.penalty == "gradient":
            ratio = self.manager.add_gradient_(measure=step.logged)
            if step.logged and math.isfinite(
                ratio
            ):  # infinite where the task has no gradient, as one class alone
                step.figures["pull"] = ratio
        if step.logged:
            step.figures["penalty"] = float(self.manager.penalty())

    def after_step(self, stage: Stage, step: Step) -> None:
        if self.penalty == "proximal":
            self.manager.proximal_(step.learning_rate)

    def end_task(self, stage: Stage) -> None:
        if not stage.later:
            return  # nothing comes after that could be held
        old_share = None
        if self.merge == "share":
            old_share = getattr(stage.task, "known", stage.index) / getattr(
                stage.task, "total", stage.index + 1
            )
        try:
            self.measured = self.measure(stage)
        except OneClassError:
            self.measured = constant_importance(
                stage, 0.0, "one class so far: every score is constant"
            )
        self.manager.consolidate(self.measured, old_share)

    def measure(self, stage: Stage) -> Importance:
        """The importance of the weights that later tasks share, for the task just learned."""
        task = stage.task
        return measure_importance(
            stage.learner,
            stage.loader(task, "train"),
            self.estimator,
            forward=lambda learner, batch: (learner(batch, task.head), task.target(batch)),
            only=lambda name: is_shared(name, stage),
            progress=stage.progress,
        )

    def state_dict(self) -> Mapping[str, Any]:
        return self.manager.state_dict() if self.manager else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.manager is None:
            self.state = state or None  # for when there is something to hold
        elif state:
            self.manager.load_state_dict(state)

    def key(self, stage: Stage) -> Mapping[str, Any]:
        widened = any(task.head.name == stage.task.head.name for task in stage.later)
        return {**super().key(stage), "followed": bool(stage.later), "widened": widened}

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        return None if stage.index else {}  # nothing is held yet

    def describe(self) -> str:
        return f"{self.estimator.describe()}; strength {self.strength:g}, {self.describe_merge()}, {self.penalty} penalty"

    def describe_merge(self) -> str:
        """How the importance of one task meets that of those before."""
        return f"merge {self.merge}" + (
            f" (decay {self.decay:g})" if self.merge == "online" else ""
        )

    def describe_other_merge(self) -> str:
        """The same where it is not the method's own, which its name stands for."""
        usual = (self.merge, self.decay) == (type(self).merge, type(self).decay)
        return "" if usual else f"{self.describe_merge()}, "

    def bytes_held(self) -> int:
        return self.manager.bytes_held() if self.manager else 0


def refuse_estimator(method: Consolidating) -> None:
    """For methods that measure without one: an option that would be ignored is a mistake."""
    if method.estimator != Estimator():
        raise ConfigError([f"method {method.name!r} has no estimator: leave method.estimator out"])


def is_shared(name: str, stage: Stage) -> bool:
    """Whether other tasks use the parameter: the encoder's, and those of a head that a later task widens."""
    if not name.startswith("heads."):
        return True
    head = stage.task.head.name
    return name.startswith(f"heads.{head}.") and any(task.head.name == head for task in stage.later)


@torch.no_grad()
def constant_importance(stage: Stage, value: float, note: str) -> Importance:
    """Return the same importance for every weight that is shared."""
    names = {
        n: p for n, p in stage.learner.named_parameters() if p.requires_grad and is_shared(n, stage)
    }
    return Importance({name: torch.full_like(p, value) for name, p in names.items()}, note=note)
