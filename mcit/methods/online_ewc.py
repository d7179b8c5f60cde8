"""Online EWC: one running Fisher that decays, anchored at the latest weights."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidation import Merge
from mcit.estimator import Estimator
from mcit.methods._consolidating import Consolidating


@dataclass
class OnlineEwc(Consolidating):
    """As `ewc`, but the old importance decays and the anchor moves on."""

    name = "online_ewc"
    estimator: Estimator = Estimator(score="plain")
    merge: Merge = "online"
    decay: float = 0.9
