"""FeTrIL: the network is frozen after the first task; old classes borrow features of new ones.

Petit et al., FeTrIL: feature translation for exemplar-free class-incremental learning, WACV 2023,
https://arxiv.org/abs/2211.13131

First task       all weights learn
Later tasks      no step is taken; an old class c borrows the features of the new class n whose mean
                 is nearest, x - mu_n + mu_c
Answer           a linear support vector machine per class, on real new and borrowed old features

The translation and the machines are the classifier `svm`; what is kept is one mean per class.
Differs from the release as PyCIL does: means are compared by angle (`classifier.neighbor`). Differs
from both: the recipe is the task's, and not theirs (CIFAR at 224 pixels, AugMix, Lookahead).
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config.parse import Selection
from mcit.methods.freeze_encoder import FreezeEncoder


@dataclass
class Fetril(FreezeEncoder):
    """A frozen encoder, and machines on translated features."""

    name = "fetril"
    trains_head = False
    answers = Selection("svm")

    def describe(self) -> str:
        return "the encoder is frozen after the first task, old classes borrow features (FeTrIL)"
