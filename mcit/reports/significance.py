"""Tables of whether methods differ: mean ranks with their critical difference, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from mcit.reports import statistics
from mcit.reports.cells import average
from mcit.reports.formats import Table
from mcit.reports.runs import Group, split_settings
from mcit.reports.splits import find_split

METRICS = ("A_last", "A_avg")
MOST = 6  # methods up to which every pair is shown
LEVEL = 0.05

Blocks = dict[str, Mapping[str, float]]  # by block: the metrics


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of methods by A_avg over blocks, and how far apart they must be to differ."""

    methods: list[str]
    ranks: list[float]
    difference: float
    blocks: int
    kind: str


@dataclass(frozen=True)
class Comparison:
    """What methods scored in blocks: in settings (means over seeds), or with the seeds of one setting."""

    kind: str  # settings, or seeds
    scores: Mapping[str, Blocks]  # by method
    datasets: Mapping[str, str] | None = None  # by setting
    left_out: tuple[str, ...] = ()  # methods that were run in some settings only

    def common(self, methods: Sequence[str]) -> list[str]:
        """The blocks in which all of these methods were measured."""
        return [
            block
            for block in self.scores[methods[0]]
            if all(block in self.scores[name] for name in methods)
        ]

    def table(self, metric: str, methods: Sequence[str]) -> list[list[float]]:
        """The scores of methods in their common blocks. [blocks, methods]"""
        return [
            [self.scores[name][block][metric] for name in methods] for block in self.common(methods)
        ]


def compare_groups(groups: Sequence[Group]) -> Comparison | None:
    """Complete groups by settings where there are several, else by seeds; None where there is nothing to compare."""
    settings = split_settings([group for group in groups if group.ranked])
    scores: dict[str, Blocks] = {}
    if len(settings) > 1:
        for setting, members in settings.items():
            for group in members:
                means = {
                    metric: average([run.metrics[metric] for run in group.runs])
                    for metric in METRICS
                }
                scores.setdefault(group.variant, {})[setting] = means
        splits = {setting: find_split(members[0].tasks) for setting, members in settings.items()}
        datasets = {
            setting: split.dataset if split else setting for setting, split in splits.items()
        }
        kept = _keep_whole(scores)
        left_out = tuple(name for name in scores if name not in kept)
        return Comparison("settings", kept, datasets, left_out) if len(kept) > 1 else None
    for group in next(iter(settings.values()), []):
        scores[group.variant] = {
            str(run.seed): run.metrics for run in group.runs if run.seed is not None
        }
    return Comparison("seeds", scores) if len(scores) > 1 else None


def _keep_whole(scores: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """The methods that were run in as many settings as any; all, where that is but one: it has nothing to face.

    One that was run here and there would leave all others without a setting in common.
    """
    most = max((len(blocks) for blocks in scores.values()), default=0)
    whole = {name: blocks for name, blocks in scores.items() if len(blocks) == most}
    return whole if len(whole) > 1 else dict(scores)


def make_significance_tables(groups: Sequence[Group]) -> list[Table]:
    """Mean ranks and paired differences, as far as there are methods and blocks enough for either."""
    found = compare_groups(groups)
    return [] if found is None else [*tabulate_ranks(found), *tabulate_pairs(found)]


def rank_groups(groups: Sequence[Group]) -> Ranking | None:
    """The mean ranks of at least three methods over at least two common blocks; None where there are fewer."""
    found = compare_groups(groups)
    methods = list(found.scores) if found else []
    blocks = len(found.common(methods)) if found else 0
    if len(methods) < 3 or blocks < 2:
        return None
    ranks = [float(value) for value in statistics.average_ranks(found.table("A_avg", methods))]
    difference = statistics.critical_difference(len(methods), blocks, LEVEL)
    return Ranking(methods, ranks, difference, blocks, found.kind)


def tabulate_ranks(found: Comparison) -> list[Table]:
    """Mean ranks of at least three methods over at least two common blocks, with the tests that go with them."""
    methods = list(found.scores)
    blocks = found.common(methods)
    if len(methods) < 3 or len(blocks) < 2:
        return []
    tables = {metric: found.table(metric, methods) for metric in METRICS}
    ranks = {
        metric: [float(value) for value in statistics.average_ranks(table)]
        for metric, table in tables.items()
    }
    order = sorted(range(len(methods)), key=lambda method: ranks["A_avg"][method])
    values = [[None, *(ranks[metric][method] for metric in METRICS)] for method in order]
    rows = [
        [methods[m], *(f"{value:.2f}" for value in row[1:])]
        for m, row in zip(order, values, strict=True)
    ]
    difference = statistics.critical_difference(len(methods), len(blocks), LEVEL)
    notes = [f"1 is best; ties share their ranks. {len(blocks)} {found.kind}: {', '.join(blocks)}."]
    for metric in METRICS:
        notes.append(f"{metric}: {_describe_friedman(statistics.friedman(tables[metric]))}")
        notes.append(f"{metric}: {_describe_nemenyi(methods, ranks[metric], difference)}")
    datasets = [found.datasets[block] for block in blocks] if found.datasets else None
    notes += statistics.warn_about_blocks(found.kind, len(blocks), datasets)
    notes += [*_tell_left_out(found), *([_limit_seeds()] if found.kind == "seeds" else [])]
    best = frozenset(
        (row, column)
        for column in (1, 2)
        for row in range(len(rows))
        if values[row][column] == min(v[column] for v in values)
    )
    header = ["method", *(f"mean rank by {metric}" for metric in METRICS)]
    return [
        Table(
            "ranks",
            f"Mean ranks over {len(blocks)} {found.kind}",
            header,
            rows,
            notes,
            best,
            values,
        )
    ]


def tabulate_pairs(found: Comparison) -> list[Table]:
    """Paired differences of methods over the blocks that each pair has in common, at least two."""
    pairs = [pair for pair in _choose_pairs(found) if len(found.common(pair)) > 1]
    if not pairs:
        return []
    columns = {metric: _compare_pairs(found, metric, pairs) for metric in METRICS}
    header = [
        "pair",
        "n",
        *(
            f"{metric} {word}"
            for metric in METRICS
            for word in ("difference", "95 % interval", "p")
        ),
    ]
    rows = []
    for number, pair in enumerate(pairs):
        cells = [cell for metric in METRICS for cell in columns[metric][number]]
        rows.append([f"{pair[0]} vs {pair[1]}", str(len(found.common(pair))), *cells])
    return [
        Table(
            "pairs",
            f"Paired differences over {found.kind}",
            header,
            rows,
            _describe_pairs(found, pairs),
        )
    ]


def _choose_pairs(found: Comparison) -> list[tuple[str, str]]:
    """All pairs of a few methods, the one that is better on average first; of many, the best with each other."""
    means = {
        name: average([block["A_last"] for block in blocks.values()]) or 0.0
        for name, blocks in found.scores.items()
    }
    order = sorted(means, key=lambda name: -means[name])
    return (
        list(combinations(order, 2))
        if len(order) <= MOST
        else [(order[0], name) for name in order[1:]]
    )


def _compare_pairs(
    found: Comparison, metric: str, pairs: Sequence[tuple[str, str]]
) -> list[list[str]]:
    listed = [[a - b for a, b in found.table(metric, pair)] for pair in pairs]
    test = statistics.sign_flip_test if found.kind == "seeds" else statistics.wilcoxon_test
    p_values = statistics.adjust_holm([test(differences) for differences in listed])
    cells = []
    for differences, p_value in zip(listed, p_values, strict=True):
        low, high = statistics.bootstrap_interval(differences)
        mean = average(differences)
        cells.append(
            [
                f"{mean:+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{p_value:.3f}" if p_value >= 0.001 else "below 0.001",
            ]
        )
    return cells


def _describe_pairs(found: Comparison, pairs: Sequence[tuple[str, str]]) -> list[str]:
    counts = [len(found.common(pair)) for pair in pairs]
    names = {"seeds": "the exact test of sign flips", "settings": "Wilcoxon's signed ranks"}
    notes = [
        f"First minus second, in points, paired by {found.kind[:-1]}; p is two-sided, by {names[found.kind]}, adjusted "
        f"for the number of comparisons after Holm; the interval is a bootstrap of the mean over {found.kind}."
    ]
    least = min(1.0, len(pairs) * statistics.least_p(max(counts)))  # as Holm's first step has it
    if least >= LEVEL:
        what = (
            f"{max(counts)} {found.kind} and {len(pairs)} comparison{'s' if len(pairs) > 1 else ''}"
        )
        notes.append(f"{what} cannot give a p below {least:g}: nothing here can be significant.")
    if min(counts) < 5:
        notes.append(
            f"Intervals of fewer than 5 {found.kind} are too narrow: take them for the range that was seen."
        )
    if len(found.scores) > MOST:
        notes.append("The best on average was chosen after looking, which favours it.")
    datasets = (
        [found.datasets[block] for block in found.common(pairs[0])] if found.datasets else None
    )
    if datasets and len(set(datasets)) < len(datasets):
        notes += statistics.warn_about_blocks(found.kind, len(datasets), datasets)[-1:]
    return [*notes, *_tell_left_out(found), *([_limit_seeds()] if found.kind == "seeds" else [])]


def _describe_friedman(test: statistics.Friedman) -> str:
    corrected = f"Iman-Davenport F {test.f:.2f}, p {test.p_f:.2g}"
    return f"Friedman χ² {test.chi_square:.2f}, p {test.p_chi_square:.2g}; {corrected}."


def _describe_nemenyi(methods: Sequence[str], ranks: Sequence[float], difference: float) -> str:
    cliques = statistics.find_cliques(ranks, difference)
    alike = "; ".join(", ".join(methods[method] for method in clique) for clique in cliques)
    found = f"not told apart: {alike}" if cliques else "all are told apart"
    return f"Nemenyi's critical difference at {LEVEL:g} is {difference:.3f}; {found}."


def _tell_left_out(found: Comparison) -> list[str]:
    return [
        f"Left out, for they were run in some settings only: {', '.join(found.left_out)}."
    ] * bool(found.left_out)


def _limit_seeds() -> str:
    return "Seeds of one setting: what is found holds for this setting, and for no other data or order."
