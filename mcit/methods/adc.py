"""ADC: distillation, and class means that follow adversarial examples of their class.

Goswami et al., Resurrecting old classes with new data for exemplar-free continual learning (ADC),
CVPR 2024, https://arxiv.org/abs/2405.19074

Training         that of LwF (mcit/methods/lwf.py), strength 10
After a task     new images are changed until the old network sees class c in them;
                 mu_c += mean of f(x) - f_old(x) over them (mcit/transports/attack.py)
Answer           the nearest class mean, of unit features and unit means

Differs from the release: images are not augmented before they are changed, and the head and the
recipe are the task's (there a cosine head and AutoAugment).
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.methods.lwf import Lwf


@dataclass
class Adc(Lwf):
    """LwF, the nearest mean, and attacked images."""

    name = "adc"
    answers = Selection("nearest_mean")
    carries = Selection("attack")
    strength: float = option(10.0, help="weight of the distillation loss; 0 is finetuning")
