"""Scores of runs that are kept in a table's file of numbers, and tables made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcit.reports.formats import Table
from mcit.reports.groups import Group, group_runs
from mcit.reports.runs import Run, Scores, check_scores, make_run
from mcit.reports.tables import compare_groups
from mcit.reproduce.expected import ExpectedResults

# what a recorded row needs of scores.json; everything else follows from it
KEPT = ("method", "seed", "track", "estimator", "tasks", "chance", "matrix", "seen", "embedded")
# the same where tasks are answered in words
KEPT_OF_TEXT = ("views", "zero_shot")


def keep_scores(run: Run) -> dict[str, Any]:
    """Return the part of a run's scores that is recorded."""
    scores = dataclasses.asdict(run.scores)
    kept = {name: scores[name] for name in KEPT}
    if run.text:
        kept |= {name: scores[name] for name in KEPT_OF_TEXT}
    kept["metrics"] = {}
    if run.matrix.class_incremental:
        kept["metrics"]["A_old"] = scores["metrics"]["A_old"]
    return kept


def read_kept(kept: Mapping[str, Any], path: Path) -> Run:
    """Return a run of what `keep_scores` kept of it in the file `path`."""
    scores: Scores = check_scores(kept, path)
    return make_run(scores.method, scores, path)


def read_groups(table: ExpectedResults, setting: str) -> list[Group]:
    """Return the recorded runs of a setting, a group for each row of the table."""
    recorded = table.read_numbers()["cells"][setting]
    groups = []
    for name, row in table.methods.items():
        runs = tuple(read_kept(kept, table.path) for kept in recorded[name]["runs"])
        (group,) = group_runs(runs)
        groups.append(dataclasses.replace(group, remark=row.remark))
    return groups


def compare_recorded(table: ExpectedResults, setting: str) -> Table:
    """Return the recorded runs of a setting side by side."""
    return compare_groups(read_groups(table, setting), "recorded")
