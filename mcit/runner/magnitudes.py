"""How large importance is, as numbers and as a histogram for trackers.

Values of a network spread over many powers of ten, so they are counted by their logarithm, in
bins that are the same for every task and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.parallel.sharded import full

# powers of ten; what is smaller or larger is counted in the outer bins
LOWEST = -16
HIGHEST = 4
BINS_PER_DECADE = 4


@dataclass(frozen=True)
class Magnitudes:
    """Statistics of all values of an importance, and a histogram of those above zero."""

    mean: float
    largest: float
    # share of values that are exactly zero
    zero: float
    # of log10(value); one more edge than counts
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def measure_magnitudes(values: Mapping[str, Tensor]) -> Magnitudes:
    """Return the magnitudes of all tensors together; where they are sharded, all processes call."""
    bins = (HIGHEST - LOWEST) * BINS_PER_DECADE
    counts = torch.zeros(bins, dtype=torch.int64)
    total = 0.0
    largest = 0.0
    zeros = 0
    number = 0
    for tensor in values.values():
        value = full(tensor).detach().float()
        positive = value[value > 0]
        total += float(value.double().sum())
        number += value.numel()
        zeros += value.numel() - positive.numel()
        if positive.numel():
            largest = max(largest, float(positive.max()))
            places = (positive.log10() - LOWEST) * BINS_PER_DECADE
            places = places.floor().long().clamp(0, bins - 1)
            counts += torch.bincount(places.cpu(), minlength=bins)
    edges = tuple(LOWEST + place / BINS_PER_DECADE for place in range(bins + 1))
    count = max(number, 1)
    return Magnitudes(total / count, largest, zeros / count, edges, tuple(counts.tolist()))
