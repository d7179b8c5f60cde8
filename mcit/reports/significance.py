"""Whether methods differ: mean ranks (Friedman, Nemenyi) and paired differences. Higher is better.

Scores are [blocks, methods]. A block is a setting, or a seed of the only setting, in which all
methods were measured. See Demsar, Statistical comparisons of classifiers over multiple data sets,
JMLR 2006, https://jmlr.org/papers/v7/demsar06a.html
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import optimize, stats

from mcit.reports.formats import (
    COUNT,
    P_VALUE,
    Cell,
    Column,
    Content,
    Note,
    Row,
    Table,
    TableKind,
)
from mcit.reports.groups import Group, Groups, average, split_settings
from mcit.reports.runs import Run
from mcit.reports.tables import mark_best, read_average, read_last

LEVEL = 0.05
# the share of experiments that find a difference of the size that is called detectable
POWER = 0.8
# methods up to which every pair is compared
MOST = 6
# blocks below which the approximations behind the tests are rough
FEW = 10
# groups that were measured in fewer blocks than this share of the most are left out
SHARE = 0.75
MEASURES = {"A_last": read_last, "A_avg": read_average}
TESTS = {"seeds": "the exact test of sign flips", "settings": "Wilcoxon's signed ranks"}

Scores = Sequence[Sequence[float]] | np.ndarray


def average_ranks(scores: Scores) -> np.ndarray:
    """Return the mean rank of each method over the blocks, 1 for the best; ties share ranks."""
    return stats.rankdata(-np.asarray(scores, dtype=float), axis=1).mean(axis=0)


def critical_difference(methods: int, blocks: int, alpha: float = LEVEL) -> float:
    """Return Nemenyi's difference: mean ranks at least this far apart differ."""
    quantile = stats.studentized_range.ppf(1 - alpha, methods, np.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * blocks)))


def friedman_p(scores: Scores) -> float:
    """Return Friedman's p value that no method ranks consistently above another."""
    # the statistic of nothing but ties is 0 / 0
    with np.errstate(invalid="ignore"):
        p_value = stats.friedmanchisquare(*np.asarray(scores, dtype=float).T).pvalue
    return float(np.nan_to_num(p_value, nan=1.0))


def sign_flip_test(differences: Sequence[float]) -> float:
    """Return the two-sided p value of paired differences, exact for up to 13 of them."""
    found = stats.permutation_test(
        (np.asarray(differences, dtype=float),),
        np.mean,
        permutation_type="samples",
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def wilcoxon_test(differences: Sequence[float]) -> float:
    """Return the two-sided p value of Wilcoxon's signed ranks; equal pairs are left out."""
    if not any(differences):
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean; it needs at least two values."""
    rng = np.random.default_rng(0)
    found = stats.bootstrap((values,), np.mean, method="percentile", rng=rng)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def detectable_difference(spread: float, count: int, power: float = POWER) -> float:
    """Return the true difference that so many pairs would show, four times out of five.

    It is that of a two-sided paired t test at the level of 0.05. spread: standard deviation of the
    paired differences. See Cohen, Statistical power analysis for the behavioral sciences, 1988.
    """
    free = count - 1
    limit = stats.t.ppf(1 - LEVEL / 2, free)
    # of the standard deviation that the pairs give, over the true one
    ratio = stats.chi(free, scale=1 / math.sqrt(free))

    def find_excess(shift: float) -> float:
        """Return the power at a difference of so many standard errors, above the one wanted."""

        def find_power(found: float) -> float:
            return stats.norm.cdf(shift - limit * found) + stats.norm.cdf(-shift - limit * found)

        return ratio.expect(find_power) - power

    shift = optimize.brentq(find_excess, 0.0, 10 * limit)
    return float(spread * shift / math.sqrt(count))


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's p values, which keep the risk of any false alarm among several tests."""
    values = np.asarray(p_values, dtype=float)
    order = values.argsort()
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, factors * values[order]))
    return adjusted.tolist()


@dataclass(frozen=True)
class Comparison:
    """The scores of groups in blocks: settings, or the seeds of one setting."""

    kind: str
    groups: list[Group]
    blocks: list[str]
    # by measure, [blocks, groups]
    scores: dict[str, np.ndarray]
    # what the tests cannot know
    limits: list[Note]

    @property
    def ranks(self) -> np.ndarray:
        """The mean ranks of the groups by A_avg."""
        return average_ranks(self.scores["A_avg"])

    @property
    def difference(self) -> float:
        """How far apart mean ranks must be to differ."""
        return critical_difference(len(self.groups), len(self.blocks))

    @property
    def has_ranks(self) -> bool:
        return len(self.groups) > 2


def compare(groups: Groups) -> Comparison | None:
    """Return the scores by settings if there are several, else by seeds; None if they are few."""
    settings = split_settings([group for group in groups if group.ranked])
    kind = "settings" if len(settings) > 1 else "seeds"
    runs: dict[tuple[str, str], list[Run]] = {}
    first: dict[str, Group] = {}
    for setting, members in settings.items():
        for group in members:
            first.setdefault(group.name, group)
            for run in group.runs:
                block = setting.name if kind == "settings" else run.seed
                if block is not None:
                    runs.setdefault((group.name, str(block)), []).append(run)
    count = Counter(name for name, _ in runs)
    most = max(count.values(), default=0)
    names = [name for name in first if count[name] >= SHARE * most]
    every = dict.fromkeys(block for _, block in runs)
    blocks = [block for block in every if all((name, block) in runs for name in names)]
    if len(names) < 2 or len(blocks) < 2:
        return None
    scores = {}
    for measure, read in MEASURES.items():
        scores[measure] = np.empty((len(blocks), len(names)))
        for row, block in enumerate(blocks):
            for column, name in enumerate(names):
                values = [read(run) for run in runs[name, block]]
                scores[measure][row, column] = average(values)
    left_out = [name for name in first if name not in names]
    datasets = {setting.dataset for setting in settings}
    limits = _find_limits(kind, len(blocks), len(datasets), left_out)
    return Comparison(kind, [first[name] for name in names], blocks, scores, limits=limits)


def make_significance_tables(comparison: Comparison | None) -> list[Table]:
    """Return mean ranks of three or more groups, and paired differences."""
    if comparison is None:
        return []
    tables = [_tabulate_pairs(comparison)]
    if comparison.has_ranks:
        tables.insert(0, _tabulate_ranks(comparison))
    return tables


def _tabulate_ranks(comparison: Comparison) -> Table:
    ranks = [average_ranks(scores) for scores in comparison.scores.values()]
    rows = []
    for place in comparison.ranks.argsort(kind="stable"):
        group = comparison.groups[place]
        cells = [Cell(float(column[place])) for column in ranks]
        rows.append(Row(group.name, cells, group.paper_name, ranked=True))
    count = f"{len(comparison.blocks)} {comparison.kind}"
    difference = f"{comparison.difference:.3f}"
    notes = [
        Note(f"1 is best; ties share their ranks. {count}: {', '.join(comparison.blocks)}."),
        Note(
            f"Nemenyi's critical difference at {LEVEL:g} is {difference}: mean ranks closer than "
            f"that cannot be told apart.",
            latex=f"Nemenyi's critical difference at {LEVEL:g}: {difference}.",
        ),
    ]
    friedman = friedman_p(comparison.scores["A_avg"])
    notes.append(Note(f"Friedman's p-value for equal ranks by A_avg is {friedman:.2g}."))
    columns = [Column("method"), *(Column(name, context="mean rank by") for name in MEASURES)]
    marked = mark_best(rows, range(len(MEASURES)), best=min)
    notes += comparison.limits
    title = f"Mean ranks over {count}"
    return Table(TableKind.RANKS, "ranks", title, columns, marked, notes)


def _tabulate_pairs(comparison: Comparison) -> Table:
    kind = comparison.kind
    means = comparison.scores["A_last"].mean(axis=0)
    order = (-means).argsort(kind="stable")
    pairs = list(combinations(order, 2))
    if len(order) > MOST:
        # the best with each other one
        pairs = pairs[: len(order) - 1]
    test = sign_flip_test if kind == "seeds" else wilcoxon_test
    rows = []
    for measure, scores in comparison.scores.items():
        listed = [scores[:, first] - scores[:, second] for first, second in pairs]
        p_values = adjust_holm([test(differences) for differences in listed])
        for pair, differences, p_value in zip(pairs, listed, p_values, strict=True):
            first, second = (comparison.groups[place] for place in pair)
            low, high = bootstrap_interval(differences)
            spread = float(differences.std(ddof=1))
            detectable = detectable_difference(spread, len(differences))
            numbers = (len(differences), differences.mean(), low, high, detectable, p_value)
            cells: list[Content] = [measure, *(Cell(float(number)) for number in numbers)]
            paper = f"{first.paper_name} vs {second.paper_name}"
            rows.append(Row(f"{first.name} vs {second.name}", cells, paper))
    columns = [
        Column("pair"),
        Column("measure"),
        Column("n", COUNT),
        Column("difference", "+.2f"),
        Column("95 % low", "+.2f"),
        Column("95 % high", "+.2f"),
        Column("detectable", ".2f"),
        Column("p", P_VALUE),
    ]
    notes = [
        Note(
            f"First minus second, in points, paired by {kind[:-1]}; p is two-sided, by "
            f"{TESTS[kind]}, adjusted after Holm; the interval is a bootstrap over {kind}.",
            latex=f"Differences in points; two-sided $p$ by {TESTS[kind]}, adjusted after Holm; "
            f"bootstrap interval over {kind}.",
        ),
        Note(
            f"Detectable: the true difference that {len(comparison.blocks)} {kind} with this "
            f"spread would show 4 times out of 5; a smaller one would usually be missed.",
            latex="Detectable: the true difference that is found with a power of 0.8.",
        ),
    ]
    # the smallest p that differences of one sign have, times Holm's first factor
    least = min(1.0, len(pairs) * 2.0 ** (1 - len(comparison.blocks)))
    if least >= LEVEL:
        count = f"{len(comparison.blocks)} {kind} and {len(pairs)} comparisons"
        text = f"{count} cannot give a p below {least:g}: nothing here can be significant."
        notes.append(Note(text))
    notes += comparison.limits
    title = f"Paired differences over {kind}"
    return Table(TableKind.PAIRS, "pairs", title, columns, rows, notes)


def _find_limits(kind: str, blocks: int, datasets: int, left_out: Sequence[str]) -> list[Note]:
    """Return what the tests cannot know."""
    texts = []
    if left_out:
        texts.append(f"Left out because they have fewer {kind}: {', '.join(left_out)}.")
    if blocks < FEW:
        texts.append(f"{blocks} {kind} are few: tests are rough, and intervals too narrow.")
    if kind == "seeds":
        texts.append("Seeds of one setting say nothing about other data or other orders.")
    elif datasets < blocks:
        texts.append(
            f"{blocks} settings come from {datasets} data sets: they are not independent, and "
            f"p-values are too small."
        )
    return [Note(text, detail=True) for text in texts]
