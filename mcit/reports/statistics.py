"""Whether methods differ: ranks, Friedman and Nemenyi, paired tests, bootstrap intervals. Higher scores are better.

Scores are [blocks, methods]: a block is a setting, or a seed of one setting, in which all methods were measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

EXACT = 16  # up to as many differences all assignments of signs are tried
DRAWS = 10_000
FEW = 10  # blocks below which the tables of Friedman and Nemenyi are rough
TINY = 1e-12  # of a scale: sums of the same figures in another order are the same


@dataclass(frozen=True)
class Friedman:
    """Whether methods rank alike: the statistic corrected for ties, and the one of Iman and Davenport, less timid."""

    chi_square: float
    p_chi_square: float
    f: float  # infinite where all blocks agree
    p_f: float


def rank(scores: Sequence[Sequence[float]]) -> np.ndarray:
    """Ranks within each block, 1 for the highest score; ties share the mean of their ranks. [blocks, methods]"""
    return stats.rankdata(-_as_array(scores), axis=1)


def average_ranks(scores: Sequence[Sequence[float]]) -> np.ndarray:
    """The mean rank of each method over the blocks. [methods]"""
    return rank(scores).mean(axis=0)


def friedman(scores: Sequence[Sequence[float]]) -> Friedman:
    """Test that no method ranks consistently above another; needs three methods and two blocks."""
    array = _as_array(scores)
    blocks, methods = array.shape
    if methods < 3 or blocks < 2:
        raise ValueError(
            f"Friedman's test needs 3 methods and 2 blocks, found {methods} and {blocks}"
        )
    ranks = rank(array)
    if (ranks == ranks[0, 0]).all():  # every block is one tie
        return Friedman(0.0, 1.0, 0.0, 1.0)
    chi_square, p_value = stats.friedmanchisquare(*array.T)
    rest = blocks * (methods - 1) - chi_square
    f = (blocks - 1) * chi_square / rest if rest > TINY * blocks * methods else math.inf
    p_f = stats.f.sf(f, methods - 1, (methods - 1) * (blocks - 1))
    return Friedman(float(chi_square), float(p_value), float(f), float(p_f))


def critical_difference(methods: int, blocks: int, alpha: float = 0.05) -> float:
    """Nemenyi: mean ranks that are as far apart as this, or further, differ, whichever pair of methods one looks at."""
    if methods < 2 or blocks < 1:
        raise ValueError(
            f"a critical difference needs 2 methods and a block, found {methods} and {blocks}"
        )
    quantile = stats.studentized_range.ppf(1 - alpha, methods, np.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * blocks)))


def find_cliques(ranks: Sequence[float], difference: float) -> list[list[int]]:
    """Largest sets of methods whose mean ranks lie within the critical difference, best first; by their positions."""
    order = sorted(range(len(ranks)), key=lambda method: ranks[method])
    cliques: list[list[int]] = []
    for start in range(len(order)):
        within = [
            method for method in order[start:] if ranks[method] - ranks[order[start]] < difference
        ]
        if len(within) > 1 and not (cliques and set(within) <= set(cliques[-1])):
            cliques.append(within)
    return cliques


def sign_flip_test(differences: Sequence[float], seed: int = 0) -> float:
    """Two-sided p of paired differences: how often signs at random give a mean as far from 0. Exact up to 16 pairs."""
    values = np.asarray(differences, dtype=float)
    if len(values) <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
        return float((np.abs(signs @ values) >= _just_below(abs(values.sum()), values)).mean())
    signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(DRAWS, len(values)))
    as_far = np.abs(signs @ values) >= _just_below(abs(values.sum()), values)
    return float((as_far.sum() + 1) / (DRAWS + 1))  # the signs that were found are one of the draws


def wilcoxon_test(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed ranks, for differences on unlike scales; pairs that are equal are left out."""
    values = np.asarray(differences, dtype=float)
    values = values[values != 0]
    if not len(values):
        return 1.0
    return float(stats.wilcoxon(values).pvalue)


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of the mean, resampling the values; None for one value, which says nothing of its spread."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return None
    picks = np.random.default_rng(seed).integers(len(array), size=(draws, len(array)))
    low, high = np.quantile(array[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's p values: each test of a family at a level that keeps the chance of any false alarm."""
    order = sorted(range(len(p_values)), key=lambda test: p_values[test])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, test in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[test]))
        adjusted[test] = highest
    return adjusted


def least_p(pairs: int) -> float:
    """The smallest p that `pairs` paired differences can reach, however large they are."""
    return 2.0 ** (1 - pairs)


def warn_about_blocks(kind: str, blocks: int, datasets: Sequence[str] | None = None) -> list[str]:
    """What the tests cannot know: that blocks are few, or not independent of each other."""
    warnings = []
    if blocks < FEW:
        warnings.append(f"{blocks} {kind} are few: Friedman and Nemenyi are rough below {FEW}.")
    if datasets is not None and len(set(datasets)) < blocks:
        distinct = len(set(datasets))
        word = "data set" if distinct == 1 else "data sets"
        warnings.append(
            f"{blocks} {kind} come from {distinct} {word}, so they are not independent: p values are too small, and "
            "differences look surer than they are."
        )
    return warnings


def _as_array(scores: Sequence[Sequence[float]]) -> np.ndarray:
    array = np.asarray(scores, dtype=float)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError("scores must be a full table of figures, [blocks, methods]")
    return array


def _just_below(sum_: float, values: np.ndarray) -> float:
    return sum_ - TINY * float(np.abs(values).sum())
