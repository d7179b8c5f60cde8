"""Random numbers that depend on a seed and a counter only: the same in any batch, any order and any process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def draw_uniform(seed: int, counter: Tensor) -> Tensor:
    """Return a uniform number in [0, 1) for every entry of `counter`, in double precision (splitmix64)."""
    with np.errstate(over="ignore"):
        bits = counter.cpu().numpy().astype(np.uint64) + np.uint64(seed % 2**64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits + np.uint64(0x9E3779B97F4A7C15)) ^ (bits >> np.uint64(shift))
            bits = bits * np.uint64(factor)
        bits ^= bits >> np.uint64(31)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)
