"""Memory aware synapses: how much the length of the output reacts to each weight, without labels."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.estimator import Estimator
from mcit.methods._consolidating import Consolidating


@dataclass
class Mas(Consolidating):
    """Absolute gradients of the length of the logit vector."""

    name = "mas"
    estimator: Estimator = Estimator(score="output_norm")
