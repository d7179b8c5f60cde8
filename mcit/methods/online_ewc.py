"""Online EWC: one running Fisher information that decays, anchored at the latest weights.

Schwarz et al., Progress & compress: a scalable framework for continual learning, ICML 2018,
https://arxiv.org/abs/1805.06370

After task t     importance = decay * importance + mean_i (d log p(y_i | x_i) / d theta)^2
                 anchor = theta
In later tasks   grad += strength * importance * (theta - anchor)
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod
from mcit.consolidation import Merge
from mcit.estimator import Estimator


@dataclass
class OnlineEwc(ConsolidatingMethod):
    """EWC whose old importance decays and whose anchor moves on."""

    name = "online_ewc"
    estimator: Estimator = Estimator(score="plain")
    merge: Merge = "online"
    decay: float = 0.9
