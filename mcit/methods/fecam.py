"""FeCAM: the network is frozen after the first task; Mahalanobis distances to class means answer.

Goswami et al., FeCAM: exploiting the heterogeneity of class distributions in exemplar-free
continual learning, NeurIPS 2023, https://arxiv.org/abs/2309.14062

First task       all weights learn
Later tasks      no step is taken
Answer           argmin_c g' R_c^-1 g,  g = u(f) - u(mu_c),  u(x) = sqrt(x) / ||sqrt(x)||
                 R_c: covariance of sqrt(f), shrunk twice by 1 on and off the diagonal, as a
                 correlation

It is the classifier `gaussian` with FeCAM's options. Features must not be negative. Differs from
the release: the first task is answered in this way too (there by the head), the head of the first
task is linear (there it compares directions), and the recipe is the task's.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.parse import Selection
from mcit.methods.freeze_encoder import FreezeEncoder


@dataclass
class Fecam(FreezeEncoder):
    """A frozen encoder, and a Gaussian per class."""

    name = "fecam"
    trains_head = False
    answers = Selection(
        "gaussian", {"power": 0.5, "shrinkage": 1.0, "off_diagonal": 1.0, "repeats": 2}
    )

    def describe(self) -> str:
        return "the encoder is frozen after the first task, a Gaussian per class (FeCAM)"
