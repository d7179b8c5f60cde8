"""Elastic weight consolidation: the empirical Fisher of every task, summed."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.estimator import Estimator
from mcit.methods._consolidating import Consolidating


@dataclass
class Ewc(Consolidating):
    """Squared gradients of the negative log-likelihood; the penalties of all tasks, exactly."""

    name = "ewc"
    estimator: Estimator = Estimator(score="plain")
