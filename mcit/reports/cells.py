"""From the figures of runs to the cells of tables: means and spreads, what is best, what chance would give."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mcit.reports.formats import CELL, UNDEFINED, Table
from mcit.reports.runs import Group, Run
from mcit.reports.splits import ClassSplit


def format_spread(
    values: Sequence[float | None], lost: Sequence[float | None] | None = None
) -> str:
    """Mean ± standard deviation of one value per seed, with the mean of what was `lost` in brackets."""
    mean = average(values)
    if mean is None:
        return UNDEFINED
    text = f"{mean:.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
    if lost is None:
        return text
    share = average(lost)
    return f"{text} ({UNDEFINED if share is None else f'{share:.2f}'})"


def average(values: Sequence[float | None]) -> float | None:
    """The mean; None of nothing, and where one value is undefined."""
    return None if not values or None in values else math.fsum(values) / len(values)


def list_averages(run: Run) -> list[float | None]:
    """A_last, A_avg and A_new of a run."""
    return [run.metrics["A_last"], run.metrics["A_avg"], average(run.metrics["A_new"])]


def format_averages(group: Group) -> list[str]:
    """A_last, A_avg and A_new of a group; undefined before the last task was learned."""
    if not group.complete:
        return [UNDEFINED] * 3
    return [format_spread(values) for values in zip(*map(list_averages, group.runs), strict=True)]


def format_old(group: Group) -> str:
    """A_old of a group: its mean over the tasks after the first."""
    if not group.complete:
        return UNDEFINED
    return format_spread([average(run.metrics["A_old"][1:]) for run in group.runs])


def format_stiffness(group: Group) -> list[str]:
    """Mean stiffness after the first task and at the end, and the percent of capped weights; the means over seeds."""
    found = [run.scores.get("stiffness") for run in group.runs]
    if not all(found):
        return [UNDEFINED] * 3
    ends = [(after[0]["mean"], after[-1]["mean"], after[-1]["capped"]) for after in found]
    first, last, capped = (statistics.fmean(values) for values in zip(*ends, strict=True))
    return [f"{first:.3g}", f"{last:.3g}", f"{capped:.2f}"]


def find_chance(groups: Sequence[Group]) -> Sequence[float] | None:
    """The chance levels of the tasks; None where no run states them."""
    stated = [
        run.matrix.chance
        for group in groups
        for run in group.runs
        if run.scores.get("chance") is not None
    ]
    return stated[0] if stated else None


def average_chance(chance: Sequence[float], split: ClassSplit | None) -> list[float]:
    """A_last and A_avg of a guess: among all classes seen, or of each task by itself."""
    seen = chance if split else [sum(chance[: t + 1]) / (t + 1) for t in range(len(chance))]
    return [seen[-1], sum(seen) / len(seen)]


def read_value(cell: str) -> float | None:
    """The figure that a cell begins with, to sort by."""
    found = CELL.fullmatch(cell)
    return float(found[1]) if found else None


def read_values(rows: Sequence[Sequence[str]]) -> list[list[float | None]]:
    """The figures of all cells but those of the first column."""
    return [[None, *(read_value(cell) for cell in row[1:])] for row in rows]


def find_best(
    values: Sequence[Sequence[float | None]], ranked: Sequence[int], first: int
) -> frozenset[tuple[int, int]]:
    """The cells with the highest figure of their column, among rows that may be best, from column `first` on.

    What prints alike is alike. One row alone is not the best of anything.
    """
    best = set()
    for column in range(first, len(values[0]) if values else 0):
        found = {row: values[row][column] for row in ranked if values[row][column] is not None}
        if len(found) > 1:
            best |= {(row, column) for row, value in found.items() if value == max(found.values())}
    return frozenset(best)


def describe_methods(groups: Sequence[Group]) -> list[str]:
    """For each group the estimator and the stiffness that it ended with; for results of others, where they are from."""
    lines = []
    for group in groups:
        run = group.runs[0]
        if run.track == "foreign":
            lines.append(
                f"{group.variant}: from {run.scores['file']}; how it was made is not stated."
            )
            continue
        parts = [f"{group.variant}: {run.scores['estimator']}"]
        if run.scores.get("diagnoses"):
            whose = f" (seed {run.seed})" if len(group.runs) > 1 else ""
            parts.append(f"at the end{whose} {run.scores['diagnoses'][-1]}")
        lines.append("; ".join(parts) + ".")
    return lines


def list_seeds(groups: Sequence[Group]) -> str:
    """The seeds of every group, told once where they are the same: `ewc, mas: 1, 2, 3; si: 1`."""
    found: dict[str, list[str]] = {}
    for group in groups:
        seeds = ", ".join("not stated" if seed is None else str(seed) for seed in group.seeds)
        found.setdefault(seeds, []).append(group.variant)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(variants)}: {seeds}" for seeds, variants in found.items())


def make_slug(text: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def name_apart(tables: Sequence[Table]) -> list[Table]:
    """The tables, none with the name of another."""
    seen: Counter[str] = Counter()
    named = []
    for table in tables:
        seen[table.name] += 1
        count = seen[table.name]
        named.append(table if count == 1 else replace(table, name=f"{table.name}-{count}"))
    return named
