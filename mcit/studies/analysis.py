"""What the raw scores of a study say: chosen strengths, curves, areas between them, intervals.

curve       what is kept (earlier tasks at the end) over what is learned (A_new), one point a level;
            finetuning, which is stiffness 0, is the first point of every curve
area        integral of kept of one curve less that of another, over what both have learned;
            divided by that width: the mean lead at equal learning, in points
interval    Student's t, of differences paired by seed
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from mcit.studies.plan import Point, StudyPlan
from mcit.studies.records import Record, Scores

LEVEL = 0.05
FINETUNE = "finetune"

Records = Mapping[Point, Record]
# pairs of learned and kept
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Choice:
    """The strength that an entry gets, and the mean A_last of all that were tried."""

    strength: float
    means: Mapping[float, float]

    @property
    def at_edge(self) -> bool:
        """Whether a strength outside of those tried may be better."""
        return len(self.means) > 1 and self.strength in (min(self.means), max(self.means))


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences, and the 95 % interval of Student's t."""

    mean: float
    low: float
    high: float
    count: int


def choose_strengths(plan: StudyPlan, records: Records) -> dict[str, Choice]:
    """Return the chosen strength of every entry whose development runs are all there."""
    choices = {}
    for name, entry in plan.entries.items():
        means = {}
        for strength in entry.strengths:
            points = [Point(name, seed, strength=strength) for seed in plan.development]
            if all(point in records for point in points):
                last = [main_scores(records[point]).last for point in points]
                means[strength] = math.fsum(last) / len(last)
        if means and len(means) == len(entry.strengths):
            best = max(means.values())
            strength = min(strength for strength, mean in means.items() if mean == best)
            choices[name] = Choice(strength, means)
    return choices


def main_scores(record: Record) -> Scores:
    """Return the scores by the run's own classifier, which is its first."""
    return next(iter(record.scores.values()))


def list_classifiers(records: Records) -> list[str]:
    """Return the classifiers that runs were scored by, in order of first appearance."""
    return list(dict.fromkeys(name for record in records.values() for name in record.scores))


def trace(
    plan: StudyPlan, records: Records, *, entry: str, seed: int, classifier: str
) -> list[tuple[float, float]] | None:
    """Return the curve of an entry with one seed, in order of stiffness; None if a level lacks."""
    free = [name for name in plan.entries if plan.method_of(name) == FINETUNE]
    points = [Point(name, seed) for name in free[:1]]
    points += [Point(entry, seed, stiffness=level) for level in sorted(plan.levels)]
    curve = []
    for point in points:
        if point not in records or classifier not in records[point].scores:
            return None
        scores = records[point].scores[classifier]
        curve.append((scores.learned, scores.kept))
    return curve


def lead(first: Curve, second: Curve) -> float | None:
    """Return by how much the first curve is above the second on average, over what both learned.

    It is the area between them divided by its width. Points are joined by straight lines in order
    of what was learned; of points that learned the same, the mean counts. None if the two curves
    have no width in common.
    """
    one = _join_points(first)
    other = _join_points(second)
    low = max(one[0][0], other[0][0])
    high = min(one[0][-1], other[0][-1])
    if not low < high:
        return None
    inner = [x for x in (*one[0], *other[0]) if low < x < high]
    places = sorted({low, high, *inner})
    heights = np.interp(places, *one) - np.interp(places, *other)
    # exact, because both curves are straight between two places
    area = 0.0
    for (left, right), (begin, end) in zip(pairwise(places), pairwise(heights), strict=True):
        area += (right - left) * (begin + end) / 2
    return float(area / (high - low))


def pair(differences: Sequence[float]) -> Interval | None:
    """Return the interval of differences that are paired by seed; None for fewer than two."""
    count = len(differences)
    if count < 2:
        return None
    mean = math.fsum(differences) / count
    error = statistics.stdev(differences) / math.sqrt(count)
    reach = float(stats.t.ppf(1 - LEVEL / 2, count - 1)) * error
    return Interval(mean, mean - reach, mean + reach, count)


def _join_points(curve: Curve) -> tuple[list[float], list[float]]:
    """Return the places and the heights of a curve from left to right."""
    heights: dict[float, list[float]] = {}
    for learned, kept in curve:
        heights.setdefault(learned, []).append(kept)
    places = sorted(heights)
    return places, [math.fsum(heights[place]) / len(heights[place]) for place in places]
