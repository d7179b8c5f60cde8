"""EWC-DR: EWC whose importance is measured with the logits reversed, so that confident examples still count."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.estimator import Estimator
from mcit.methods._consolidating import Consolidating


@dataclass
class EwcDr(Consolidating):
    """Squared gradients of the negative log-likelihood of the negated logits."""

    name = "ewc_dr"
    estimator: Estimator = Estimator(score="reversed")
