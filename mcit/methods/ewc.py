"""Elastic weight consolidation (EWC): the empirical Fisher information of every task, summed.

Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017,
https://arxiv.org/abs/1612.00796

After task t     importance += mean_i (d log p(y_i | x_i) / d theta)^2
In later tasks   grad += strength * importance * (theta - anchor)

Differs from common code: squares are of single examples, not of batch means, and the penalties of
all tasks are kept exactly in one pair of tensors (see mcit/consolidation.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod
from mcit.estimator import Estimator


@dataclass
class Ewc(ConsolidatingMethod):
    """EWC with the empirical Fisher information."""

    name = "ewc"
    estimator: Estimator = Estimator(score="plain")
