"""Methods at equal stiffness.

Strength is a plain factor of stiffness, so it is enough to measure each method once, at strength 1
after the first task:

    strength of a method = strength of the reference * mean stiffness of the reference / its own
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcit.checkpoint import Phase
from mcit.errors import ConfigError, DivergedError
from mcit.files import make_folder, read_object, write_json
from mcit.method import Stage
from mcit.reports.formats import SIGNIFICANT, Cell, Column, Note, Row, Table, TableKind
from mcit.reports.groups import Group
from mcit.runner.plan import Plan
from mcit.runner.stage_cache import StageCache
from mcit.session import Session

EXPLANATION = (
    "Stiffness is strength times importance, the factor of the pull that holds a weight. "
    "Strength is a plain factor, so the mean stiffness after the first task, where all methods "
    "have the same weights, is measured once at strength 1 and scaled. Later it differs again, "
    "because the weights differ, importance is measured at them, and each method merges tasks by "
    "its own rule (a sum grows with every task, a decay or a blend does not). Equal means do not "
    "make equal shapes: where importance is uneven, a few weights carry the stiffness."
)


def measure_stiffness(plan: Plan, cache: Path, progress: bool = False) -> float:
    """Return the plan's mean stiffness after the first task.

    The first task's steps are taken from the stage cache if another method has taken them.
    """
    name = plan.config.method.name
    if len(plan.tasks) < 2:
        raise ConfigError(
            ["--match needs an order of at least two tasks: after the last one nothing is held"]
        )
    session = Session(plan, progress=progress)
    stage = session.stage(0)
    stages = StageCache(cache, plan, session.trainer, session.learner)
    session.begin(stage)
    _fit(session, stage, stages)
    try:
        diagnosis = session.conclude(stage).diagnosis
    except FloatingPointError as error:
        raise DivergedError(f"{name} after the first task: {error}") from error
    if diagnosis is None or not diagnosis.mean_stiffness > 0:
        raise ConfigError(
            [f"method {name!r} holds no weight after the first task: it cannot be matched"]
        )
    return diagnosis.mean_stiffness


def match_strengths(
    stiffness: Mapping[str, float], reference: str, strengths: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return the strengths, to four digits, that give each method the reference's mean stiffness.

    stiffness: by method, at strength 1. strengths: of the reference.
    """
    matched = {}
    for method, own in stiffness.items():
        factor = stiffness[reference] / own
        matched[method] = tuple(float(f"{strength * factor:.4g}") for strength in strengths)
    matched[reference] = tuple(strengths)
    return matched


def describe_match(
    stiffness: Mapping[str, float], reference: str, matched: Mapping[str, Sequence[float]]
) -> list[str]:
    """Return one line for each method."""
    lines = []
    for method, own in stiffness.items():
        listed = ", ".join(f"{strength:g}" for strength in matched[method])
        line = f"{method}: mean stiffness {own:.3g} at strength 1, so strength {listed}"
        if method == reference:
            line += " (the reference)"
        lines.append(line)
    return lines


def tabulate_stiffness(groups: Sequence[Group]) -> Table:
    """Return the mean stiffness after every task, averaged over seeds."""
    tasks = groups[0].tasks
    rows = []
    for group in groups:
        series = [[after["mean"] for after in run.scores.stiffness] for run in group.runs]
        cells = [Cell(statistics.fmean(values)) for values in zip(*series, strict=True)]
        if cells:
            # some methods measure nothing after the last task
            empty = [None] * (len(tasks) - len(cells))
            rows.append(Row(group.label, (*cells, *empty), group.paper_name))
    return Table(
        kind=TableKind.STIFFNESS,
        name="stiffness",
        title="Mean stiffness after each task",
        columns=(Column("method"), *(Column(task, SIGNIFICANT) for task in tasks)),
        rows=tuple(rows),
        notes=(Note(EXPLANATION),),
    )


class StiffnessFile:
    """Mean stiffnesses at strength 1, each with the experiment it was measured in."""

    def __init__(self, path: Path):
        self.path = path
        self.entries = read_object(path) or {}

    def find(self, method: str, experiment: Mapping[str, Any]) -> float | None:
        """Return what was measured for the method in this very experiment."""
        entry = self.entries.get(method)
        if entry is None or entry["experiment"] != experiment:
            return None
        return entry["mean_stiffness"]

    def add(self, method: str, experiment: Mapping[str, Any], mean: float) -> None:
        """Keep a measurement, so that a sweep that continues need not repeat it."""
        self.entries[method] = {"mean_stiffness": mean, "experiment": experiment}
        make_folder(self.path.parent, "--output")
        write_json(self.path, self.entries)


def _fit(session: Session, stage: Stage, stages: StageCache) -> None:
    """Take the first task's steps, or restore what the same steps of another method led to."""
    entry = stages.find_fit(stage, print)
    if entry is not None:
        session.restore_fit(entry)
        return
    begun = time.perf_counter()
    steps = session.fit(stage)
    extra = {"steps": steps, "seconds": time.perf_counter() - begun}
    stages.store_fit(stage, session.capture(stage, Phase.FITTED, extra=extra))
