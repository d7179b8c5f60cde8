"""A control: every weight held alike. What a method gains over this is what its importance is worth."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidation import Merge
from mcit.importance import Importance
from mcit.method import Stage
from mcit.methods._consolidating import Consolidating, constant_importance, refuse_estimator


@dataclass
class L2Anchor(Consolidating):
    """Importance 1 everywhere, anchored at the latest weights."""

    name = "l2_anchor"
    merge: Merge = "latest"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_estimator(self)

    def measure(self, stage: Stage) -> Importance:
        return constant_importance(stage, 1.0, "importance 1 for every weight (control)")

    def describe(self) -> str:
        held = f"strength {self.strength:g}, {self.describe_other_merge()}{self.penalty} penalty"
        return f"importance 1 for every weight (control); {held}"
