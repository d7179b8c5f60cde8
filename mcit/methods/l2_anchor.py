"""L2 anchor, a control: every weight is held alike, at the weights of the last task.

In later tasks   grad += strength * (theta - anchor)

What a consolidating method gains over it, at equal stiffness, is the worth of its importance.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod, constant_importance, refuse_estimator
from mcit.consolidation import Merge
from mcit.importance import Importance
from mcit.method import Stage


@dataclass
class L2Anchor(ConsolidatingMethod):
    """Importance 1 everywhere, anchored at the latest weights."""

    name = "l2_anchor"
    merge: Merge = "latest"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_estimator(self)

    def measure(self, stage: Stage) -> Importance:
        return constant_importance(stage, 1.0, "importance 1 for every weight (control)")

    def examples_read(self, stage: Stage) -> int:
        return 0

    def describe(self) -> str:
        held = f"{self.describe_strength()}, {self.describe_merge()}, {self.penalty} penalty"
        return f"importance 1 for every weight (control); {held}"
