"""The nearest class mean (NCM).

Mensink et al., Distance-based image classification: generalizing to new classes at near-zero cost,
TPAMI 2013; in class-incremental learning Rebuffi et al., iCaRL, CVPR 2017,
https://arxiv.org/abs/1611.07725

score_c = - ||f - mu_c||^2, by default of f and mu_c divided by their lengths ("cosine").

Differs from iCaRL: means are of all training images of a class, and not of exemplars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Needs
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option


@dataclass
class NearestMean(Classifier):
    """One mean per class."""

    name = "nearest_mean"
    metric: Literal["cosine", "euclid"] = option(
        "cosine", help="`cosine` compares directions, `euclid` features as they are"
    )

    def needs(self) -> Needs:
        return Needs(means=True)

    def fit(self, known: Known) -> Fitted:
        return {"means": self._place(known.statistics.means)}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        # exact differences: the usual expansion loses the digits that decide
        mode = "donot_use_mm_for_euclid_dist"
        return -torch.cdist(self._place(features), fitted["means"], compute_mode=mode).square()

    def describe(self) -> str:
        return f"nearest mean ({self.metric})"

    def _place(self, features: Tensor) -> Tensor:
        if self.metric == "cosine":
            return F.normalize(features, dim=1)
        return features
