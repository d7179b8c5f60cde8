"""DPCR: distillation, and a ridge classifier from class sums that follow the network.

He et al., Semantic shift estimation via dual-projection and classifier reconstruction for
exemplar-free class-incremental learning (DPCR), ICML 2025, https://arxiv.org/abs/2503.05423

Training         that of LwF (mcit/methods/lwf.py), strength 10
After a task     T = argmin sum_i ||f_old_i T - f_i||^2 over the new images;  W_c = Pi_c T, with
                 Pi_c the projector onto the span of class c;
                 mu_c <- mu_c W_c,  G_c <- W_c' G_c W_c
Answer           argmax_c f' v_c,  V = (sum_c G_c + gamma I)^-1 [n_c mu_c]_c, unit columns

They are the classifier `ridge` and the transport `ridge` with `project`. What is kept are means and
covariances, from which G_c follows exactly. Differs from the release: the span has a relative
tolerance (there rounding decides its rank), images are not augmented, and the head and the recipe
are the task's (there a cosine head and AutoAugment). gamma is 200, as there for CIFAR-100; it has
2000 for larger images.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.methods.lwf import Lwf


@dataclass
class Dpcr(Lwf):
    """LwF, ridge regression, and a map projected onto every class."""

    name = "dpcr"
    answers = Selection("ridge")
    carries = Selection(
        "ridge",
        {
            "ridge": 1e-9,
            "relative": False,
            "toward": "zero",
            "intercept": False,
            "project": True,
        },
    )
    strength: float = option(10.0, help="weight of the distillation loss; 0 is finetuning")
