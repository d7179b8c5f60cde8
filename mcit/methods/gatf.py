"""GATF: projected distillation, and Gaussians that follow a running average of linear maps.

GATF, ECCV 2026, https://arxiv.org/abs/2606.25347

Training         that of AdaGauss (mcit/methods/adagauss.py), strength 5
While a task is  P = (cov_old + 0.01 I)^-1 cross,  b = mean - mean_old P, 19 times;
learned          P, b <- 0.9 P, 0.9 b + 0.1 times the new ones, from a network that has not moved
After a task     mu_c <- mu_c P + b,  Sigma_c <- P' Sigma_c P
Answer           the Mahalanobis distance of unit features, with Sigma_c shrunk (`gaussian`)

It is what the public code amounts to: the whitening of its regression cancels, and its residual
network starts at zero in all layers and gets no gradient but for a bias. Differs from it:
statistics are mapped exactly (there estimated from 10,000 draws), and of the training loss, which
is BiCyc's (https://arxiv.org/abs/2606.05675), the cycle terms and the comparison of pairs
(weight 0.05) are left out; of these only the comparison reaches the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.methods.adagauss import AdaGauss


@dataclass
class Gatf(AdaGauss):
    """AdaGauss with a linear transport."""

    name = "gatf"
    carries = Selection(
        "ridge", {"ridge": 0.01, "relative": False, "toward": "zero", "average": 0.9}
    )
    strength: float = option(5.0, help="weight of the projected distillation")
