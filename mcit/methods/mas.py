"""Memory aware synapses (MAS): how much the output's length reacts to each weight.

Aljundi et al., Memory aware synapses: learning what (not) to forget, ECCV 2018,
https://arxiv.org/abs/1711.09601

After task t     importance += mean_i |d ||z_i||_2 / d theta|, z the logits
In later tasks   grad += strength * importance * (theta - anchor)

The paper squares the norm; common code (FACIL) does not. `estimator.norm=squared_l2` is the former.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod
from mcit.estimator import Estimator


@dataclass
class Mas(ConsolidatingMethod):
    """MAS: absolute gradients of the length of the logit vector."""

    name = "mas"
    estimator: Estimator = Estimator(score="output_norm")
