"""The cells of a table: the runs behind each, and whether its expected numbers are met."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from mcit.errors import ConfigError
from mcit.reports import formats
from mcit.reports.runs import Run, read_run
from mcit.reports.tables import SECONDS
from mcit.reproduce.baselines import comparison_key
from mcit.reproduce.expected import ExpectedResults, find_place
from mcit.reproduce.recorded import keep_scores
from mcit.sweeps.jobs import Job, make_job

Verdict = Literal["agrees", "differs", "not run", "no number"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Cell:
    """A setting and a method of a table: the runs of all seeds, and the numbers to meet."""

    setting: str
    # the row
    method: str
    jobs: tuple[Job, ...]
    # by metric; None: the table has none
    expected: Mapping[str, float | None]
    # the complete ones that were found
    runs: tuple[Run, ...] = ()

    @property
    def missing(self) -> list[Job]:
        """Return the runs that are still to be made."""
        found = {run.seed for run in self.runs}
        return [job for job in self.jobs if job.seed not in found]

    def measured(self, metric: str) -> float | None:
        """Return the mean over the runs there are."""
        if not self.runs:
            return None
        return statistics.fmean(read_metric(run, metric) for run in self.runs)

    def judge(self, metric: str, tolerance: float) -> Verdict:
        """Return whether what was measured is within the tolerance of the number expected."""
        measured = self.measured(metric)
        expected = self.expected[metric]
        if measured is None:
            return "not run"
        if expected is None:
            return "no number"
        return "agrees" if abs(measured - expected) <= tolerance else "differs"


def make_cells(
    table: ExpectedResults,
    output: Path,
    *,
    settings: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_root: str | None = None,
) -> list[Cell]:
    """Return the cells that are asked for, all of them if none are."""
    cells = []
    for setting in settings or table.settings:
        for method in methods or table.methods:
            jobs = []
            for seed in seeds or table.seeds:
                folder = output / f"{setting}-{method}-seed{seed}"
                options = table.options_of(setting, method, seed, data_root=data_root)
                jobs.append(make_job(folder, options))
            numbers = table.find_numbers(setting, method)
            expected = {name: find_place(numbers, place) for name, place in table.metrics.items()}
            cells.append(Cell(setting, method, tuple(jobs), expected))
    return cells


def find_runs(cells: Sequence[Cell], folders: Sequence[Path]) -> list[Cell]:
    """Return the cells with their complete runs in the folders, or one level below.

    A run belongs to a cell if it is the same experiment, wherever it is and however it was started.
    """
    found = []
    for folder in folders:
        for scores in sorted({*folder.glob("scores.json"), *folder.glob("*/scores.json")}):
            run = read_run(scores.parent)
            if run.complete:
                found.append(run)
    filled = []
    for cell in cells:
        runs = []
        for job in cell.jobs:
            experiment = job.plan.experiment()
            same = [run for run in found if run.provenance.get("experiment") == experiment]
            runs += same[:1]
        filled.append(replace(cell, runs=tuple(runs)))
    return filled


def read_metric(run: Run, name: str) -> float:
    """Return a metric of a run: `A_last`, the mean of `A_new`, or `a[vcr,vqa]` of VQA after VCR.

    `zero_shot[vqa]` is the score on VQA before any task was learned.
    """
    for task, score in zip(run.tasks, run.zero_shot or (), strict=False):
        if name == f"zero_shot[{task}]":
            return score
    for after, row in zip(run.tasks, run.matrix.rows, strict=False):
        for task, score in zip(run.tasks, row, strict=False):
            if name == f"a[{after},{task}]":
                return score
    value = run.metrics[name]
    if isinstance(value, Sequence):
        return statistics.fmean(value)
    return value


def count_verdicts(table: ExpectedResults, cells: Sequence[Cell]) -> Counter[Verdict]:
    """Return how many numbers are met, and how many are not."""
    return Counter(cell.judge(name, table.tolerance) for cell in cells for name in table.metrics)


def tabulate(table: ExpectedResults, cells: Sequence[Cell]) -> formats.Table:
    """Return one row for each number: what it should be, what it is here, and the verdict."""
    source = "paper" if table.published else "recorded"
    columns = [formats.Column(name) for name in ("setting", "method", "metric", source, "here")]
    columns.append(formats.Column("difference", "+.2f"))
    columns += [formats.Column(name) for name in ("runs", "verdict")]
    rows = []
    for cell in cells:
        runs = f"{len(cell.runs)} of {len(cell.jobs)}"
        for metric, expected in cell.expected.items():
            measured = cell.measured(metric)
            difference = None
            if measured is not None and expected is not None:
                # plus zero, since a small negative number is rounded to -0.0
                difference = round(measured - expected, 2) + 0.0
            numbers = [_to_cell(expected), _to_cell(measured), _to_cell(difference)]
            verdict: str = cell.judge(metric, table.tolerance)
            if verdict == "differs":
                verdict = verdict.upper()
            texts = (cell.method, metric, *numbers, runs, verdict)
            rows.append(formats.Row(cell.setting, texts))
    return formats.Table(
        kind=formats.TableKind.EXPECTED,
        name="expected",
        title=table.title,
        columns=tuple(columns),
        rows=tuple(rows),
        notes=tuple(formats.Note(text) for text in _describe(table, cells)),
    )


def record(table: ExpectedResults, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the file of numbers that these cells lead to.

    It says what others need to repeat it, and nothing of where it was made.
    """
    unfinished = [f"{cell.setting} {cell.method}" for cell in cells if cell.missing]
    if unfinished:
        listed = ", ".join(unfinished)
        raise ConfigError(
            [f"nothing was recorded: {listed} not complete; --run makes what is missing"]
        )
    recorded: dict[str, dict[str, Any]] = {}
    for cell in cells:
        recorded.setdefault(cell.setting, {})[cell.method] = _record_cell(table, cell)
    provenance = cells[0].runs[0].provenance
    about = {name: provenance.get(name) for name in ("mcit", "python", "packages", "threads")}
    return {**about, "seeds": list(table.seeds), "cells": recorded}


def _record_cell(table: ExpectedResults, cell: Cell) -> dict[str, Any]:
    means = {}
    by_seed = {}
    for metric in table.metrics:
        values = {str(run.seed): read_metric(run, metric) for run in cell.runs}
        means[metric] = round(statistics.fmean(values.values()), 2)
        by_seed[metric] = {seed: round(value, 2) for seed, value in values.items()}
    options = table.options_of(cell.setting, cell.method, table.seeds[0])
    recorded = {
        **means,
        "by_seed": by_seed,
        "seconds": round(statistics.fmean(_count_seconds(run) for run in cell.runs)),
        "command": shlex.join(["mcit", "run", *options.words()]),
    }
    if table.keep_scores:
        recorded["key"] = comparison_key(cell.runs[0].provenance)
        recorded["runs"] = [keep_scores(run) for run in cell.runs]
    return recorded


def _count_seconds(run: Run) -> float:
    return sum(run.cost.get(name, 0.0) for name in SECONDS)


def _to_cell(value: float | None) -> formats.Cell | None:
    return None if value is None else formats.Cell(value)


def _describe(table: ExpectedResults, cells: Sequence[Cell]) -> list[str]:
    """Return the lines under a table: the verdicts, and what to know before judging."""
    counts = count_verdicts(table, cells)
    lines = [", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])]
    lines.append(f"tolerance {table.tolerance:g} points: {table.tolerance_basis}")
    lines += [f"deviation: {text}" for text in table.deviations]
    for method in dict.fromkeys(cell.method for cell in cells):
        lines += [f"{method}: {note}" for note in table.methods[method].notes]
    return lines
