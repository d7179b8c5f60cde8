"""Ridge regression on one-hot labels, from sums that are kept of every class.

He et al., Semantic shift estimation via dual-projection and classifier reconstruction for
exemplar-free class-incremental learning (DPCR), ICML 2025, https://arxiv.org/abs/2503.05423

score_c = f' v_c,   V = (sum_c G_c + gamma I)^-1 [n_c mu_c]_c,   G_c = sum of f f' over class c

and by default each v_c is divided by its length, which takes away the advantage of classes whose
features are long or whose images are many. Differs from the release: the sums of the latest task
are of images without augmentation, like all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Needs
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option
from mcit.errors import ConfigError


@dataclass
class Ridge(Classifier):
    """Least squares with a penalty, solved once per task."""

    name = "ridge"
    gamma: float = option(200.0, help="weight of the penalty; DPCR has 200 and 2000")
    normalize: bool = option(True, help="divide the weights of each class by their length")

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise ConfigError([f"'gamma' must be above 0 and finite, found {self.gamma:g}"])

    def needs(self) -> Needs:
        return Needs(means=True, shared=True)

    def fit(self, known: Known) -> Fitted:
        statistics = known.statistics
        gram = statistics.total_gram()
        gram.diagonal().add_(self.gamma)
        sums = statistics.counts.double().view(-1, 1) * statistics.means.double()
        weight = torch.linalg.solve(gram, sums.T).T  # [classes, width]
        if self.normalize:
            weight = F.normalize(weight, dim=1)
        return {"weight": weight.float()}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        return features @ fitted["weight"].T

    def describe(self) -> str:
        return f"ridge (gamma {self.gamma:g})"
