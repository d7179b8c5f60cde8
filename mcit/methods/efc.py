"""EFC++: features move freely where the answers do not depend on them.

Magistri et al., Elastic feature consolidation for cold start exemplar-free incremental learning
(EFC), ICLR 2024, https://arxiv.org/abs/2402.03917; EFC++, 2025, https://arxiv.org/abs/2503.10439

After task t     E = mean_x W' (diag p - p p') W: how fast the answers p change with the features
In later tasks   loss += mean_x (f - f_old)' (strength E + damping I) (f - f_old),
                 BatchNorm fixed
Old means        move by the displacement of new images, weighed by E (transport `displacement`)
Answer           a softmax layer fitted to new features and draws from old classes (`softmax`)

E is the Fisher information of the answers about the features, as EWC's is about the weights, and is
replaced after every task. It is that of the classifier `softmax`, or of the head if another one
answers. Differs from the release: classes have one head with biases that widens, E is of images
without augmentation, no task has rotation labels, and the recipe is the task's (there Adam).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcit.class_statistics import ClassStatistics, Needs
from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.models.norms import freeze_norms, hold_statistics
from mcit.models.teacher import Teacher
from mcit.task import Batch, Output, Recipe, Task, Track


@dataclass
class Efc(Method):
    """Features are held in the directions that matter to the answers."""

    name = "efc"
    first_task_is_finetuning = True
    answers = Selection("softmax")
    carries = Selection("displacement", {"kernel": "fisher", "sigma": 0.2})
    strength: float = option(10.0, help="weight of directions that the answers depend on")
    damping: float = option(0.1, help="weight of all directions alike")
    fixed_norms: bool = option(True, help="BatchNorm does not learn after the first task")
    old: Teacher | None = field(default=None, init=False, repr=False)
    # E [width, width]
    sensitivity: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name in ("strength", "damping"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                problems.append(f"method.{name} must be at least 0, found {value:g}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            "method 'efc' is for class-incremental orders such as shapes:5x4, whose tasks share "
            "one head"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = None
        if stage.index > 0:
            self.old = Teacher(stage.learner)
            if self.fixed_norms:
                freeze_norms(stage.learner.encoder)
        return ()

    def begin_fit(self, stage: Stage) -> None:
        if stage.index > 0 and self.fixed_norms:
            hold_statistics(stage.learner.encoder)

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        if self.old is None or not (self.strength or self.damping):
            return None
        before = self.old(batch, stage.task.head).features
        moved = (output.features - before).float()  # [batch, width]
        return self.measure(moved).mean()

    def measure(self, moved: Tensor) -> Tensor:
        """Return the squared length [batch] of displacements [batch, width] in the metric of E."""
        lengths = self.damping * moved.square().sum(dim=1)
        if self.sensitivity is not None and self.strength:
            self.sensitivity = self.sensitivity.to(moved.device)
            lengths = lengths + self.strength * ((moved @ self.sensitivity) * moved).sum(dim=1)
        return lengths

    def needs(self) -> Needs:
        return Needs(sensitivity=True)

    def see_statistics(self, stage: Stage, statistics: ClassStatistics) -> None:
        self.sensitivity = statistics.sensitivity

    def state_dict(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {}
        if self.old is not None:
            state["old"] = self.old.state_dict()
        if self.sensitivity is not None:
            state["sensitivity"] = self.sensitivity
        return state

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.sensitivity = state.get("sensitivity")
        self.old = None
        if "old" in state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def explain_divergence(self, recipe: Recipe) -> list[str]:
        if self.sensitivity is None:
            return []
        largest = float(torch.linalg.eigvalsh(self.sensitivity.double())[-1])
        stiffest = self.strength * largest + self.damping
        return [f"features are held with up to {stiffest:.3g} times their squared displacement"]

    def describe(self) -> str:
        weights = f"strength {self.strength:g}, damping {self.damping:g}"
        return f"features held where the answers depend on them (EFC++): {weights}"

    def bytes_held(self) -> int:
        return 0 if self.old is None else self.old.bytes_held()
