"""LDC: distillation, and class means that follow the network by a learned linear map.

Gomez-Villa et al., Exemplar-free continual representation learning via learnable drift compensation
(LDC), ECCV 2024, https://arxiv.org/abs/2407.08536

Training         that of LwF (mcit/methods/lwf.py), strength 10
After a task     P = argmin sum_i ||f_old_i P - f_i||^2 over the new images; mu_c <- mu_c P
Answer           the nearest class mean, of unit features and unit means

Differs from the release: P is solved for (ridge 0.01 of the mean square of features, toward zero)
where it takes Adam for 20 epochs, images are not augmented, and the head and the recipe are the
task's (there a cosine head and AutoAugment).
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.methods.lwf import Lwf


@dataclass
class Ldc(Lwf):
    """LwF, the nearest mean, and a linear map."""

    name = "ldc"
    answers = Selection("nearest_mean")
    carries = Selection("ridge", {"intercept": False, "toward": "zero"})
    strength: float = option(10.0, help="weight of the distillation loss; 0 is finetuning")
