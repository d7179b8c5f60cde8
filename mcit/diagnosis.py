"""How stiff a penalty is, and whether steps against it are stable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.parallel.sharded import combine, local

# A weight counts as free when its stiffness is below this share of the mean.
NEAR_ZERO = 1e-3


@dataclass(frozen=True)
class Diagnosis:
    """Scale and stability of a penalty. Stiffness is strength times importance, the unit in which methods compare."""

    weights: int
    mean_stiffness: float
    max_stiffness: float
    share_capped: float
    share_near_zero: float
    capped_by_tensor: Mapping[str, float]
    limit: float | None = (
        None  # stiffness beyond which explicit steps diverge, if the step is known
    )
    share_unstable: float = 0.0

    def warning(self) -> str | None:
        """What to do where gradient steps would diverge; None where they would not."""
        if self.limit is None or self.max_stiffness <= self.limit:
            return None
        return (
            f"stiffness reaches {self.max_stiffness:.3g} and steps are stable only below {self.limit:.3g} "
            f"({self.share_unstable:.2%} of the weights are beyond): lower the strength, cap the importance, "
            "or use the proximal penalty, which is stable for any"
        )

    def figures(self) -> dict[str, float]:
        """Mean and maximum of the stiffness, and the shares of capped and of nearly free weights in percent."""
        return {
            "mean": self.mean_stiffness,
            "max": self.max_stiffness,
            "capped": 100 * self.share_capped,
            "near_zero": 100 * self.share_near_zero,
        }

    def describe(self) -> str:
        """One line for logs and reports."""
        return (
            f"mean stiffness {self.mean_stiffness:.3g}, max {self.max_stiffness:.3g}, "
            f"capped {self.share_capped:.2%}, near zero {self.share_near_zero:.2%} of {self.weights:,} weights"
        )


@torch.no_grad()
def diagnose(
    importance: Mapping[str, Tensor],
    strength: float,
    capped: Mapping[str, float],
    learning_rate: float | None = None,
    momentum: float = 0.0,
) -> Diagnosis:
    """The diagnosis of importance held with a strength; of sharded importance, every process must ask."""
    held = [(tensor, local(tensor)) for tensor in importance.values()]
    weights = sum(tensor.numel() for tensor in importance.values())
    if not weights:
        return Diagnosis(0, 0.0, 0.0, 0.0, 0.0, {})
    mean = (
        float(combine((tensor, part.sum(dtype=torch.float64)) for tensor, part in held)) / weights
    )
    top = float(
        combine(
            ((t, part.max() if part.numel() else part.new_zeros(())) for t, part in held), "max"
        )
    )
    limit = 2 * (1 + momentum) / learning_rate if learning_rate else None
    low, beyond = combine(
        (tensor, _count(part, NEAR_ZERO * mean, strength, limit)) for tensor, part in held
    ).tolist()
    return Diagnosis(
        weights,
        strength * mean,
        strength * top,
        sum(capped.get(name, 0.0) * tensor.numel() for name, tensor in importance.items())
        / weights,
        low / weights,
        dict(capped),
        limit,
        beyond / weights,
    )


def _count(part: Tensor, near_zero: float, strength: float, limit: float | None) -> Tensor:
    """How many weights are free, and how many stiffer than the limit."""
    low = (part <= near_zero).sum()
    return torch.stack(
        [low, torch.zeros_like(low) if limit is None else (part * strength > limit).sum()]
    )
