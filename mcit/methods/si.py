"""Synaptic intelligence: importance gathered along the way, from the task gradient and the steps it led to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcit.config import ConfigError
from mcit.consolidation import Merge, PathIntegral
from mcit.importance import Importance
from mcit.method import Stage, Step
from mcit.methods._consolidating import Consolidating, is_shared, refuse_estimator


@dataclass
class Si(Consolidating):
    """Path integral of the unmixed task gradient, over the squared motion plus `damping`; negative parts clipped."""

    name = "si"
    merge: Merge = "online"  # importance adds up, the anchor is the latest
    damping: float = 0.1
    path: PathIntegral | None = field(default=None, init=False, repr=False)
    index: int = field(default=0, init=False, repr=False)  # of the task that `path` is for
    gathered: Mapping[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_estimator(self)
        if not self.damping > 0:
            raise ConfigError([f"method.damping must be above 0, found {self.damping:g}"])

    def begin_task(self, stage: Stage) -> None:
        super().begin_task(stage)
        shared = [(n, p) for n, p in stage.learner.named_parameters() if is_shared(n, stage)]
        self.path = self.manager.path = PathIntegral(shared, self.damping)
        if self.gathered is not None and self.gathered["index"] == stage.index:
            self.load_fit_state(self.gathered)  # resumed within the task
        self.index, self.gathered = stage.index, None

    def before_clip(self, stage: Stage, step: Step) -> None:
        super().before_clip(stage, step)
        if self.penalty == "proximal":
            self.path.see_gradient()

    def after_step(self, stage: Stage, step: Step) -> None:
        self.path.see_step()
        super().after_step(stage, step)

    def measure(self, stage: Stage) -> Importance:
        return self.path.importance()

    def state_dict(self) -> Mapping[str, Any]:
        return (
            {**super().state_dict(), **self.fit_state(), "index": self.index} if self.path else {}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.gathered = state or None

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        # as in finetuning, but the path is gathered on the way: of the head too, where a later task widens it
        return None if stage.index else {"path": is_shared(f"heads.{stage.task.head.name}.", stage)}

    def fit_state(self) -> Mapping[str, Any]:
        return {"start": self.path.start, "path": self.path.path}

    def load_fit_state(self, state: Mapping[str, Any]) -> None:
        for part, kept in (("start", self.path.start), ("path", self.path.path)):
            for name, value in kept.items():
                value.copy_(state[part][name])

    def describe(self) -> str:
        return (
            f"path integral of the task gradient (SI): damping {self.damping:g}; negative parts clipped; "
            f"strength {self.strength:g}, {self.describe_other_merge()}{self.penalty} penalty"
        )
