"""EWC on log-odds: importance that neither vanishes with confidence nor guards the lowest logit.

This project's own proposal, in the frame of Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796

After task t     importance += mean_i (d logit p(y_i | x_i) / d theta)^2
In later tasks   grad += strength * importance * (theta - anchor)

logit p = log p - log(1 - p) = z_y - logsumexp(z without y). Its gradient is that of the plain score
divided by -(1 - p): dz_y - sum_k q_k dz_k with q the softmax over the wrong classes. It stays of
order one however confident the network is, and points at the strongest rivals of the right answer,
where negated logits (EWC-DR) point at the least likely class.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod
from mcit.estimator import Estimator


@dataclass
class EwcLo(ConsolidatingMethod):
    """EWC with the log-odds of the label."""

    name = "ewc_lo"
    estimator: Estimator = Estimator(score="log_odds")
