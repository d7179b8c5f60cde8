"""What figures are drawn from: runs that learned the same tasks side by side, as means over seeds with their spread."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mcit.reports.figures.style import make_plain
from mcit.reports.identity import find_method_options
from mcit.reports.runs import Group, Run, split_settings
from mcit.reports.splits import find_split

LONGEST, LONGEST_TITLE = (
    14,
    48,
)  # letters of a task's name on an axis, and of a setting's in a title


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the standard deviation of the sample; no deviation where there is one seed."""

    mean: float
    deviation: float | None
    count: int

    def describe(self, digits: int = 2) -> str:
        """`61.55 ± 0.31`, or the value alone."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Series:
    """A group as it is drawn: the runs that count, its name in legends, and what tells it from its siblings."""

    label: str
    method: str
    strength: float | None
    family: str  # the label without the strength: groups that differ in nothing else share it
    runs: tuple[Run, ...]
    finished: bool

    def spread(self, read: Callable[[Run], float | None]) -> Spread | None:
        """A figure of every run, over the runs; None where a run lacks it."""
        return spread([read(run) for run in self.runs])

    @property
    def rows(self) -> int:
        """How many tasks every run has learned."""
        return len(self.runs[0].matrix.rows)


@dataclass(frozen=True)
class Setting:
    """All that learned the same tasks in the same order: the lines of one plot."""

    name: str
    title: str
    track: str
    tasks: tuple[str, ...]
    series: tuple[Series, ...]

    @property
    def short_tasks(self) -> list[str]:
        return [make_plain(task) for task in shorten_tasks(self.tasks)]

    @property
    def classes_seen(self) -> list[int] | None:
        """The number of classes after every task, where tasks are parts of a data set."""
        split = find_split(self.tasks)
        return list(itertools.accumulate(split.sizes)) if split else None


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and sample deviation; None where there is no value, or one of them is undefined."""
    if not values or any(value is None for value in values):
        return None
    return Spread(
        statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
    )


def make_settings(groups: Sequence[Group]) -> list[Setting]:
    """The groups by what they learned, as far as they learned anything."""
    begun = [group for group in groups if any(run.matrix.rows for run in group.runs)]
    made: list[Setting] = []
    for name, members in split_settings(begun).items():
        own = next(
            (group.runs[0] for group in members if group.runs[0].track != "foreign"),
            members[0].runs[0],
        )
        short = re.sub(r"[^\w.+-]+", "-", name).strip("-")
        title = re.sub(r",(?! )", " → ", name)
        if len(title) > LONGEST_TITLE:
            short, title = f"{len(own.tasks)}-tasks", f"{len(own.tasks)} tasks"
        taken = [setting.name for setting in made]
        short = short if short not in taken else f"{short}-{len(made) + 1}"
        made.append(
            Setting(short, make_plain(title), own.track, own.tasks, tuple(_make_series(members)))
        )
    return made


def read_strength(run: Run) -> float | None:
    """How strongly the run's method held weights; None for a method that holds none."""
    found = find_method_options(run.config).get("strength")
    if isinstance(found, (int, float)):
        return float(found)
    told = re.search(
        r"\bstrength (\d[\d.e+-]*)", str(run.scores.get("estimator", ""))
    )  # the method's own default
    return float(told[1]) if told else None


def shorten_tasks(tasks: Sequence[str]) -> list[str]:
    """`cifar100[12-15]` as `12–15` where all tasks are parts of one data set; other long names are cut."""
    split = find_split(tasks)
    if split is None:
        return [task if len(task) <= LONGEST else f"{task[: LONGEST - 1]}…" for task in tasks]
    ends = list(itertools.accumulate(split.sizes))
    starts = [end - size for end, size in zip(ends, split.sizes, strict=True)]
    return [str(a) if b - a == 1 else f"{a}–{b - 1}" for a, b in zip(starts, ends, strict=True)]


def share_seeds(family: Sequence[Series]) -> list[Series]:
    """The strengths of a method with those seeds only that all of them have, so that a line through them is no mix of
    seeds; as they are, where they have no seed in common."""
    common = set.intersection(*({run.seed for run in each.runs} for each in family))
    if not common:
        return list(family)
    return [
        replace(each, runs=tuple(run for run in each.runs if run.seed in common)) for each in family
    ]


def describe_shared(families: Sequence[Sequence[Series]]) -> str:
    """A sentence on what bars, hollow points and lines through several strengths stand for; or nothing."""
    counts = {len(each.runs) for family in families for each in family}
    bars = " Bars are one standard deviation over seeds." if max(counts) > 1 else ""
    hollow = " Hollow points are one seed, of unknown spread." if bars and 1 in counts else ""
    if not bars or all(share_seeds(family) == list(family) for family in families):
        return bars + hollow
    return (
        f"{bars} Lines go through the seeds that all strengths of a method have, hollow points where that is one seed; "
        "filled points are the mean over all seeds of their strength."
    )


def describe_seeds(series: Sequence[Series]) -> str:
    """`n = 3 seeds`; where they differ, what most have and who has more or fewer."""
    counts = Counter(len(each.runs) for each in series)
    usual = counts.most_common(1)[0][0]
    text = "one seed" if usual == 1 else f"n = {usual} seeds"
    others = [
        f"{count} for {', '.join(each.label for each in series if len(each.runs) == count)}"
        for count in sorted(counts, reverse=True)
        if count != usual
    ]
    return text + (f" ({'; '.join(others)})" if others else "")


def describe_mean(series: Sequence[Series]) -> str:
    """What a figure without spread is: the mean over seeds, or the one there is."""
    return (
        "mean over seeds, " if any(len(each.runs) > 1 for each in series) else ""
    ) + describe_seeds(series)


def describe_unfinished(series: Sequence[Series]) -> str:
    """A sentence on what was still running, or nothing."""
    unfinished = [each for each in series if not each.finished]
    names = [each.label for each in unfinished]  # which say how far they got
    return f" Unfinished: {', '.join(names)}." if names else ""


def choose_series(setting: Setting, most: int) -> tuple[list[Series], str]:
    """All, or beyond `most`, so that a plot stays readable, one of the strengths of each method and a note on which."""
    if len(setting.series) <= most:
        return list(setting.series), ""
    families: dict[str, list[Series]] = {}
    for series in setting.series:
        families.setdefault(series.family, []).append(series)
    chosen = [max(family, key=_evidence) for family in families.values()]
    notes = [each.label for each in chosen if len(families[each.family]) > 1]
    note = (
        f" Of several strengths, the one with most seeds, then highest A_last: {'; '.join(notes)}."
        if notes
        else ""
    )
    return chosen, note


def _evidence(series: Series) -> tuple[bool, int, float]:
    return series.finished, len(series.runs), series.spread(lambda run: run.metrics["A_last"]).mean


def _make_series(groups: Sequence[Group]) -> list[Series]:
    """The groups of a setting, those of one method together, the weakest first."""
    made = []
    for group in groups:
        furthest = max(len(run.matrix.rows) for run in group.runs)
        runs = tuple(run for run in group.runs if len(run.matrix.rows) == furthest)
        label = make_plain(group.variant)
        family = re.sub(r"@[^\s\[(]+", "", label)
        made.append(
            Series(label, group.method, read_strength(runs[0]), family, runs, runs[0].complete)
        )
    methods = list(dict.fromkeys(group.method for group in groups))
    return sorted(
        made, key=lambda each: (methods.index(each.method), each.strength or 0.0, each.family)
    )
