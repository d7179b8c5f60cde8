"""Old means follow the new images around them: the mean displacement of features, by nearness.

Yu et al., Semantic drift compensation for class-incremental learning (SDC), CVPR 2020,
https://arxiv.org/abs/2004.00440

mu_c += sum_i w_ic (f_i - f_old_i) / sum_i w_ic over the images i of the new task
w_ic  = exp(-||f_old_i - mu_c||^2 / (2 sigma^2)) + 1e-5

With the kernel `fisher`, as EFC does it (Magistri et al., Elastic feature consolidation for cold
start exemplar-free incremental learning, ICLR 2024, https://arxiv.org/abs/2402.03917; sigma 0.2):
w_ic  = exp(-d_ic / (2 sigma^2)),   d_ic = (f_old_i - mu_c)' E (f_old_i - mu_c)
with all d_ic brought to 0..1, and E = mean over examples of W' (diag p - p p') W: how fast the
head's probabilities p change with the features.

Differs from the release: images are not augmented. Covariances stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mcit.class_statistics import ClassStatistics, Needs
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.transport import Drift, Transport

# far from all images, a mean moves by their plain average
FLOOR = 1e-5


@dataclass
class Displacement(Transport):
    """Means move by a weighted average of what the new images do."""

    name = "displacement"
    sigma: float = option(0.3, help="width of the kernel; SDC has 0.3, EFC 0.2")
    kernel: Literal["euclid", "fisher"] = option(
        "euclid", help="how nearness is measured: as in SDC, or as in EFC"
    )

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise ConfigError([f"'sigma' must be above 0 and finite, found {self.sigma:g}"])

    def needs(self) -> Needs:
        return Needs(means=True, sensitivity=self.kernel == "fisher")

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        before = drift.before.values.double()
        after = drift.after.values.double()
        weights = self.weigh(statistics, before)  # [classes, examples]
        shifts = weights @ (after - before) / weights.sum(dim=1, keepdim=True)
        return statistics.shift_means(shifts)

    def weigh(self, statistics: ClassStatistics, before: Tensor) -> Tensor:
        """Return the weights [classes, examples] of features [examples, width]."""
        means = statistics.means.double()
        if statistics.sensitivity is None or self.kernel == "euclid":
            squared = torch.cdist(means, before).square()
            return torch.exp(-squared / (2 * self.sigma**2)) + FLOOR
        metric = statistics.sensitivity.double()
        rows = []
        for mean in means:
            away = before - mean
            rows.append(((away @ metric) * away).sum(dim=1))
        squared = torch.stack(rows)
        span = (squared.max() - squared.min()).clamp_min(torch.finfo(torch.float32).tiny)
        return torch.exp(-(squared - squared.min()) / span / (2 * self.sigma**2))

    def describe(self) -> str:
        return f"displacement ({self.kernel}, sigma {self.sigma:g})"
