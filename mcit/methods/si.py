"""Synaptic intelligence (SI): importance gathered along the path of training.

Zenke et al., Continual learning through synaptic intelligence, ICML 2017,
https://arxiv.org/abs/1703.04200

During task t    path -= g * step, g the task's own gradient before the penalty is added
After task t     importance += max(0, path) / ((theta - theta_start)^2 + damping)
                 anchor = theta
In later tasks   grad += strength * importance * (theta - anchor)

Differs from FACIL, which keeps negative parts (`clip=none`) and has no factor 1/2 in its penalty:
its lambda is half our strength.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mcit.config.options import option
from mcit.consolidating import ConsolidatingMethod, refuse_estimator
from mcit.consolidation import ConsolidationManager, Merge
from mcit.errors import ConfigError
from mcit.importance import Importance
from mcit.method import Stage, Step
from mcit.parallel.sharded import distribute, from_local, to_local
from mcit.path_integral import SIGNS, Clip, PathIntegral


@dataclass
class Si(ConsolidatingMethod):
    """SI, by default with negative parts of the path clipped."""

    name = "si"
    # the steps are, but the path is gathered along them
    first_task_is_finetuning = False
    # importance adds up, the anchor is the latest
    merge: Merge = "online"
    damping: float = option(0.1, help="added to the squared motion of a weight")
    clip: Clip = option(
        "relu",
        help="negative parts of the path, which raised the loss: `relu` drops them, `abs` counts "
        "them as positive, `none` keeps them, as FACIL does",
        newer=True,
    )
    path: PathIntegral | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_estimator(self)
        if not self.damping > 0:
            raise ConfigError([f"method.damping must be above 0, found {self.damping:g}"])
        if self.clip == "none" and self.penalty == "proximal":
            raise ConfigError(
                [
                    "method.clip none keeps negative importance, which an implicit step cannot "
                    "hold: set method.penalty=gradient, or method.clip=relu"
                ]
            )

    def begin_task(self, stage: Stage) -> Sequence[str]:
        warnings = super().begin_task(stage)
        self._begin_path(stage)
        return warnings

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        super().on_gradients_ready(stage, step)
        # with a gradient penalty the manager has shown the path the unmixed gradient
        if self.penalty == "proximal":
            self.active_path.see_gradient()

    def after_step(self, stage: Stage, step: Step) -> None:
        self.active_path.see_step()
        super().after_step(stage, step)

    def measure(self, stage: Stage) -> Importance:
        return self.active_path.importance()

    @property
    def active_path(self) -> PathIntegral:
        """Return the path of the present task; a task or a checkpoint begins it."""
        if self.path is None:
            raise RuntimeError("no path was begun: call begin_task or restore first")
        return self.path

    def examples_read(self, stage: Stage) -> int:
        return 0

    def state_dict(self) -> Mapping[str, Any]:
        if self.path is None:
            return {}
        return {
            "manager": super().state_dict(),
            "start": self._name_parts(self.path.start),
            "path": self._name_parts(self.path.path),
        }

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        super().restore(stage, state.get("manager", {}))
        path = self._begin_path(stage)
        for saved, kept in ((state["start"], path.start), (state["path"], path.path)):
            for name, value in kept.items():
                value.copy_(to_local(distribute(saved[name], path.parameters[name].detach())))

    def describe(self) -> str:
        held = f"{self.describe_strength()}, {self.describe_merge()}, {self.penalty} penalty"
        return (
            f"path integral of the task gradient (SI): damping {self.damping:g}; "
            f"{SIGNS[self.clip]}; {held}"
        )

    def _make_manager(self, stage: Stage) -> ConsolidationManager:
        manager = super()._make_manager(stage)
        # a state that is loaded may have negative importance, by the path's clip
        manager.path = self._make_path(stage)
        return manager

    def _name_parts(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's parts as the sharded tensors that they are parts of."""
        parameters = self.active_path.parameters
        return {name: from_local(part, parameters[name].detach()) for name, part in parts.items()}

    def _begin_path(self, stage: Stage) -> PathIntegral:
        path = self._make_path(stage)
        self.path = path
        self.active_manager.path = path
        return path

    def _make_path(self, stage: Stage) -> PathIntegral:
        shared = []
        for name, parameter in stage.learner.named_parameters():
            if stage.is_shared(name):
                shared.append((name, parameter))
        return PathIntegral(shared, self.damping, self.clip)
