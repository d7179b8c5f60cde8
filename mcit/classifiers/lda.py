"""Linear discriminant analysis (LDA): class means and one covariance for all classes.

Fisher, The use of multiple measurements in taxonomic problems, 1936; in continual learning Hayes
and Kanan, Lifelong machine learning with deep streaming linear discriminant analysis, CVPRW 2020,
https://arxiv.org/abs/1909.01520

score_c = mu_c' S^-1 f - mu_c' S^-1 mu_c / 2,   S = Sigma + shrinkage * mean(diag Sigma) I

Sigma is the covariance within classes, pooled over all of them. Differs from streaming LDA: the
covariance is computed task by task and can be carried over by a transport, and shrinkage is
relative to the features' mean variance. All classes have the same prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.class_statistics import Needs
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option
from mcit.errors import ConfigError


@dataclass
class Lda(Classifier):
    """One mean per class and one covariance."""

    name = "lda"
    shrinkage: float = option(
        0.1, help="what is added to the covariance's diagonal, in units of its mean"
    )

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage < math.inf:
            raise ConfigError(
                [
                    f"'shrinkage' must be above 0 and finite, found {self.shrinkage:g}: without it "
                    "the covariance of few examples has no inverse"
                ]
            )

    def needs(self) -> Needs:
        return Needs(means=True, shared=True)

    def fit(self, known: Known) -> Fitted:
        covariance = known.statistics.shared_covariance()
        means = known.statistics.means.double()
        scale = covariance.diagonal().mean()
        # all features may be constant, in a dry run
        ridge = self.shrinkage * scale + torch.finfo(torch.float32).tiny
        covariance.diagonal().add_(ridge)
        weight = torch.linalg.solve(covariance, means.T).T  # [classes, width]
        bias = -(weight * means).sum(dim=1) / 2
        return {"weight": weight.float(), "bias": bias.float()}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        return features @ fitted["weight"].T + fitted["bias"]

    def describe(self) -> str:
        return f"LDA (shrinkage {self.shrinkage:g})"
