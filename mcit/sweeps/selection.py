"""The rule that picks a method's strength from the runs of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcit.errors import ConfigError
from mcit.metrics import average_seen
from mcit.reports.runs import read_run
from mcit.sweeps.jobs import Job

# after one task nothing can have been forgotten, and all strengths score the same
LEAST_SEEN = 2


@dataclass(frozen=True)
class Choice:
    """The strength that a method gets, and what it was picked from."""

    order: str
    method: str
    strength: float
    # the tasks that decided
    seen: tuple[str, ...]
    seeds: tuple[int, ...]
    # by strength, the mean of A_t over the tasks seen for every seed
    tried: Mapping[float, tuple[float, ...]]

    @property
    def at_edge(self) -> bool:
        """Whether a strength outside of those tried may be better."""
        return len(self.tried) > 1 and self.strength in (min(self.tried), max(self.tried))

    def describe(self) -> str:
        """Return a line for reports."""
        means = []
        for strength, values in sorted(self.tried.items()):
            means.append(f"{strength:g}: {statistics.fmean(values):.2f}")
        edge = " (at the edge of the grid: try further)" if self.at_edge else ""
        return f"{self.method}: strength {self.strength:g}{edge}, from {', '.join(means)}"

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of selection.json."""
        tried = []
        for strength, values in sorted(self.tried.items()):
            tried.append({"strength": strength, "values": list(values)})
        return {
            "order": self.order,
            "method": self.method,
            "strength": self.strength,
            "seen": list(self.seen),
            "seeds": list(self.seeds),
            "tried": tried,
            "at_edge": self.at_edge,
        }


def describe_rule(seen: int) -> str:
    """Return what the selection looks at."""
    return (
        f"the strength with the highest mean of A_1..A_{seen}, averaged over the selection seeds; "
        f"the smaller one in a tie. Only the first {seen} tasks are looked at, as if the later "
        "ones had not come yet"
    )


def check_seen(jobs: Sequence[Job], seen: int) -> None:
    """Raise a ConfigError if strengths cannot be picked by so many tasks."""
    if seen < LEAST_SEEN:
        raise ConfigError(
            [
                f"--select needs at least {LEAST_SEEN} tasks, found {seen}: after the first, all "
                "strengths score the same"
            ]
        )
    fewest = min(len(job.plan.tasks) for job in jobs)
    if seen > fewest:
        raise ConfigError(
            [f"--select {seen}: the order has {fewest} tasks; choose by that many or fewer"]
        )


def select(jobs: Sequence[Job], seen: int) -> list[Choice]:
    """Return the best strength of each order and method, by A_t after the first `seen` tasks.

    The jobs are those that are done; a strength counts only if it has as many runs as the others.
    """
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job.strength is not None:
            groups.setdefault((job.order, job.method), []).append(job)
    return [_choose(group, seen) for group in groups.values()]


def keep_chosen(jobs: Sequence[Job], choices: Sequence[Choice]) -> list[Job]:
    """Return the jobs at the chosen strengths, and those of methods that have none to choose."""
    chosen = {(choice.order, choice.method): choice.strength for choice in choices}
    return [
        job for job in jobs if job.strength == chosen.get((job.order, job.method), job.strength)
    ]


def _choose(jobs: Sequence[Job], seen: int) -> Choice:
    values: dict[float, list[float]] = {}
    for job in jobs:
        if job.strength is None:
            continue
        averages = average_seen(read_run(job.folder).matrix)
        values.setdefault(job.strength, []).append(statistics.fmean(averages[:seen]))
    most = max(map(len, values.values()))
    tried = {
        strength: tuple(values[strength])
        for strength in sorted(values)
        if len(values[strength]) == most
    }
    means = {strength: statistics.fmean(scores) for strength, scores in tried.items()}
    first = jobs[0]
    return Choice(
        order=first.order,
        method=first.method,
        strength=max(means, key=means.__getitem__),
        seen=tuple(task.name for task in first.plan.tasks[:seen]),
        seeds=tuple(dict.fromkeys(job.seed for job in jobs)),
        tried=tried,
    )
