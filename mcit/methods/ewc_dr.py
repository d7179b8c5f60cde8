"""EWC-DR: importance is measured with negated logits, so that confident examples count.

Liu and Chang, Elastic weight consolidation done right for continual learning, CVPR 2026,
https://arxiv.org/abs/2603.18596

After task t     importance += mean_i (d CE(-z_i, y_i) / d theta)^2, z the logits
In later tasks   grad += strength * importance * (theta - anchor)

The plain gradient is (p - onehot) dz and vanishes with confidence; the negated logits' does not.
Differs from the release: squares are of single examples and nothing is capped, unless the preset
`release` asks for batch means, the cap 1e-4 and the blend of old and new importance by classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.consolidating import ConsolidatingMethod
from mcit.estimator import Estimator


@dataclass
class EwcDr(ConsolidatingMethod):
    """EWC with reversed logits."""

    name = "ewc_dr"
    estimator: Estimator = Estimator(score="reversed")
