"""Stiffness of a penalty: how strongly it holds weights, and whether gradient steps are stable.

stiffness = strength * importance
strength auto = stated mean stiffness / mean importance
SGD with momentum m is stable if stiffness < 2 (1 + m) / learning rate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.errors import ConfigError
from mcit.parallel.sharded import reduce_parts, to_local

# a weight counts as free if its stiffness is below this fraction of the mean
NEAR_ZERO = 1e-3
# the largest number of single precision, in which networks are trained
LARGEST_STRENGTH = 3.4028234663852886e38


@dataclass(frozen=True)
class Diagnosis:
    """Scale and stability of a penalty, in units of stiffness, in which all methods compare.

    weights: Number of weights that are held.
    strength: Factor of the penalty.
    mean_stiffness: Mean over all of them.
    max_stiffness: The largest.
    share_capped: Fraction of the weights whose importance is at the cap.
    share_near_zero: Fraction that is free to move.
    capped_by_tensor: Fraction at the cap by parameter name.
    limit: Stiffness above which gradient steps diverge, if the step is known.
    share_unstable: Fraction of the weights above that limit.
    """

    weights: int
    strength: float
    mean_stiffness: float
    max_stiffness: float
    share_capped: float
    share_near_zero: float
    capped_by_tensor: Mapping[str, float]
    limit: float | None = None
    share_unstable: float = 0.0

    def warning(self) -> str | None:
        """Return what to do if gradient steps would diverge, or None if they would not."""
        if self.limit is None or self.max_stiffness <= self.limit:
            return None
        return (
            f"stiffness reaches {self.max_stiffness:.3g} and steps are stable only below "
            f"{self.limit:.3g} ({self.share_unstable:.2%} of the weights are above that): lower "
            f"the "
            "strength, cap the importance, or use the proximal penalty, which is always stable"
        )

    def to_dict(self) -> dict[str, float]:
        """Return the strength, mean and maximum stiffness, the percentages capped and near zero."""
        return {
            "strength": self.strength,
            "mean": self.mean_stiffness,
            "max": self.max_stiffness,
            "capped": 100 * self.share_capped,
            "near_zero": 100 * self.share_near_zero,
        }

    def describe(self) -> str:
        """Return one line for logs and reports."""
        return (
            f"mean stiffness {self.mean_stiffness:.3g}, max {self.max_stiffness:.3g}, "
            f"capped {self.share_capped:.2%}, near zero {self.share_near_zero:.2%} "
            f"of {self.weights:,} weights"
        )


@torch.no_grad()
def diagnose(
    importance: Mapping[str, Tensor],
    strength: float,
    capped: Mapping[str, float],
    learning_rate: float | None = None,
    momentum: float = 0.0,
) -> Diagnosis:
    """Return the diagnosis of importance held with a strength.

    If the importance is sharded, every process must call.
    """
    weights = sum(tensor.numel() for tensor in importance.values())
    if not weights:
        return Diagnosis(
            weights=0,
            strength=strength,
            mean_stiffness=0.0,
            max_stiffness=0.0,
            share_capped=0.0,
            share_near_zero=0.0,
            capped_by_tensor={},
        )
    parts = [(tensor, to_local(tensor)) for tensor in importance.values()]
    mean = find_mean(importance)
    tops = [(tensor, _find_max(part)) for tensor, part in parts]
    limit = 2 * (1 + momentum) / learning_rate if learning_rate else None
    low = [(tensor, (part <= NEAR_ZERO * mean).sum()) for tensor, part in parts]
    unstable = 0.0
    if limit is not None:
        beyond = [(tensor, (part * strength > limit).sum()) for tensor, part in parts]
        unstable = float(reduce_parts(beyond))
    at_cap = 0.0
    for name, tensor in importance.items():
        at_cap += capped.get(name, 0.0) * tensor.numel()
    return Diagnosis(
        weights=weights,
        strength=strength,
        mean_stiffness=strength * mean,
        max_stiffness=strength * float(reduce_parts(tops, "max")),
        share_capped=at_cap / weights,
        share_near_zero=float(reduce_parts(low)) / weights,
        capped_by_tensor=dict(capped),
        limit=limit,
        share_unstable=unstable / weights,
    )


@torch.no_grad()
def find_mean(importance: Mapping[str, Tensor]) -> float:
    """Return the mean importance of all weights; if it is sharded, every process must call."""
    weights = sum(tensor.numel() for tensor in importance.values())
    if not weights:
        return 0.0
    sums = []
    for tensor in importance.values():
        sums.append((tensor, to_local(tensor).sum(dtype=torch.float64)))
    return float(reduce_parts(sums)) / weights


def find_strength(importance: Mapping[str, Tensor], stiffness: float) -> float:
    """Return the strength that gives this importance a mean stiffness; 0 if all of it is 0.

    Raise a ConfigError if no strength does: the mean is negative, or too close to 0.
    """
    mean = find_mean(importance)
    if mean == 0:
        return 0.0
    strength = stiffness / mean
    if not 0 < strength <= LARGEST_STRENGTH:
        raise ConfigError(
            [
                f"no strength gives a mean stiffness of {stiffness:g}: the mean importance is "
                f"{mean:.3g}, and it must be positive and not vanishing; give a strength instead "
                "of 'auto', or measure another importance. Nothing was changed"
            ]
        )
    return strength


def _find_max(part: Tensor) -> Tensor:
    # a process may hold no row of a small tensor
    if not part.numel():
        return part.new_zeros(())
    return part.max()
