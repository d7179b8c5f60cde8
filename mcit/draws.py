"""Random numbers that depend on a seed and a counter only, never on batch, order or process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STEP = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def draw_uniform(seed: int, counter: Tensor) -> Tensor:
    """Return a double in [0, 1) for every entry of `counter`, by the mixing steps of splitmix64."""
    with np.errstate(over="ignore"):
        bits = counter.cpu().numpy().astype(np.uint64)
        bits = bits + np.uint64(seed % 2**64) * STEP
        for shift, factor in ROUNDS:
            bits = (bits + STEP) ^ (bits >> np.uint64(shift))
            bits = bits * np.uint64(factor)
        bits ^= bits >> np.uint64(31)
    # a double has 53 bits of precision
    fraction = (bits >> np.uint64(11)).astype(np.float64)
    return torch.from_numpy(fraction * 2.0**-53)


def draw_classes(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return classes [rows] drawn from softmax(logits) [rows, classes] by `uniform` [rows]."""
    below = logits.detach().double().softmax(dim=1).cumsum(dim=1)
    reached = uniform.to(below)[:, None] * below[:, -1:]
    return (below < reached).sum(dim=1).clamp_max(logits.shape[1] - 1)
