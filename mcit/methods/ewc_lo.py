"""EWC on log-odds: this project's own proposal, which neither vanishes with confidence nor guards the lowest logit."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.estimator import Estimator
from mcit.methods._consolidating import Consolidating


@dataclass
class EwcLo(Consolidating):
    """Squared gradients of the log-odds of the label."""

    name = "ewc_lo"
    estimator: Estimator = Estimator(score="log_odds")
