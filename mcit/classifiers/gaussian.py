"""One Gaussian per class: the Mahalanobis distance to each class mean.

Goswami et al., FeCAM: exploiting the heterogeneity of class distributions in exemplar-free
continual learning, NeurIPS 2023, https://arxiv.org/abs/2309.14062; Rypesc et al., Task-recency
bias strikes back: adapting covariances in exemplar-free class incremental learning (AdaGauss),
NeurIPS 2024, https://arxiv.org/abs/2409.18265

score_c = - g' R_c^-1 g,   g = u(f) - u(mu_c),   u(x) = x^power / ||x^power||
S_c     = Sigma_c + shrinkage * mean(diag) I + off_diagonal * mean(off-diagonal) (1 - I)
R_c     = S_c divided by the standard deviations of its rows and columns (`correlation`)

Neither has a prior or a determinant. The defaults are AdaGauss's; FeCAM has power 0.5 and shrinks
twice, with 1 on and off the diagonal. `ledoit_wolf` chooses the shrinkage by itself:
S_c = (1 - a_c) Sigma_c + a_c mean(diag) I. With `diagonal`, R_c is the diagonal of S_c divided by
its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Needs, raise_features
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.task import Task


@dataclass
class Gaussian(Classifier):
    """A mean and a covariance per class."""

    name = "gaussian"
    power: float = option(
        1.0, help="exponent for non-negative features (Tukey's transform); 1 for none"
    )
    shrinkage: float = option(3.0, help="added to the diagonal, in units of the mean variance")
    off_diagonal: float = option(
        0.0, help=("added off the diagonal, in units of the mean covariance")
    )
    repeats: int = option(1, help="how often the covariance is shrunk")
    ledoit_wolf: bool = option(False, help="shrink as Ledoit and Wolf estimate it, instead")
    correlation: bool = option(True, help="divide covariances by standard deviations")
    diagonal: bool = option(False, help="use variances only")

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.power <= 1:
            problems.append(f"'power' must be above 0 and at most 1, found {self.power:g}")
        for name in ("shrinkage", "off_diagonal"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                problems.append(f"'{name}' must be at least 0 and finite, found {value:g}")
        if self.repeats < 1:
            problems.append(f"'repeats' must be at least 1, found {self.repeats}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if self.power == 1 or not model.signed_features:
            return []
        cause = f"those of {model.name!r} may be"
        if model.bottleneck is not None:
            cause = f"those of a bottleneck (model.bottleneck={model.bottleneck}) may be"
        return [
            f"classifier 'gaussian' raises features to the power {self.power:g}, which negative "
            f"features do not have, and {cause}; pass --set classifier.power=1"
        ]

    def needs(self) -> Needs:
        return Needs(means=True, powers=frozenset({self.power}))

    def fit(self, known: Known) -> Fitted:
        statistics = known.statistics
        means = self._place(statistics.means)
        shrinkages = statistics.shrinkages[self.power]
        inverses = []
        # one class at a time: all of them in double precision would take twice the room
        for covariance, share in zip(
            statistics.covariances[self.power], shrinkages.double(), strict=True
        ):
            shrunk = self.shrink(covariance.double(), share)
            inverses.append(invert(self._scale(shrunk)).float())
        inverse = torch.stack(inverses)  # [classes, width, width]
        return {"means": means, "inverse": inverse, "moved": _times(means, inverse)}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        placed = self._place(features)
        inverse = fitted["inverse"]
        # of all classes in one product: [batch, classes, width]
        turned = torch.tensordot(placed, inverse, dims=([1], [1])) - fitted["moved"]
        away = placed.unsqueeze(1) - fitted["means"]
        return -(turned * away).sum(dim=2)

    def shrink(self, covariance: Tensor, share: Tensor) -> Tensor:
        """Return a covariance [width, width] nearer to a multiple of the identity."""
        if self.ledoit_wolf:
            mean = covariance.diagonal().mean()
            return (1 - share) * covariance + share * mean * torch.eye(len(covariance)).double()
        for _ in range(self.repeats):
            covariance = self._shrink_once(covariance)
        return covariance

    def _shrink_once(self, covariance: Tensor) -> Tensor:
        identity = torch.eye(len(covariance), dtype=covariance.dtype)
        outside = covariance[(identity == 0) & (covariance != 0)]
        on = self.shrinkage * covariance.diagonal().mean()
        off = self.off_diagonal * outside.sum() / max(len(outside), 1)
        return covariance + on * identity + off * (1 - identity)

    def _scale(self, covariance: Tensor) -> Tensor:
        variances = covariance.diagonal()
        if self.diagonal:
            return torch.diag(F.normalize(variances, dim=0))
        if not self.correlation:
            return covariance
        # a feature that never varies has no correlation with any other
        deviations = variances.sqrt().clamp_min(torch.finfo(torch.float32).tiny)
        return covariance / deviations.unsqueeze(0) / deviations.unsqueeze(1)

    def _place(self, features: Tensor) -> Tensor:
        return F.normalize(raise_features(features, self.power), dim=1)

    def describe(self) -> str:
        if self.ledoit_wolf:
            shrunk = "shrunk by Ledoit and Wolf"
        else:
            shrunk = f"shrinkage {self.shrinkage:g}"
        kind = "variances" if self.diagonal else "covariance"
        return f"Gaussian ({kind} per class, {shrunk}, power {self.power:g})"


def invert(matrix: Tensor) -> Tensor:
    """Return the inverse of a covariance, or its pseudo-inverse if it has none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    smallest = factor.diagonal().min()
    # what rounding makes positive is not
    tolerance = len(matrix) * torch.finfo(torch.float32).eps * matrix.diagonal().max().sqrt()
    if int(failed) or not bool(smallest > tolerance):
        return torch.linalg.pinv(matrix, hermitian=True)
    return torch.cholesky_inverse(factor)


def _times(means: Tensor, inverse: Tensor) -> Tensor:
    """Return mu_c' R_c^-1 [classes, width]."""
    return torch.einsum("cd,cde->ce", means, inverse)
