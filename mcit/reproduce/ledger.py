"""A ledger: the figures of a table, the run behind each, and what was measured here."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mcit.config import ConfigError, RunConfig, parse, read_yaml, suggest
from mcit.reports.cells import average
from mcit.reports.runs import Run, read_run
from mcit.sweeps.jobs import Job, identify

LEDGERS = Path(__file__).parent
PLACES = (LEDGERS, LEDGERS.parent / "reports")  # of files of figures: ours, and the paper's
PLACEHOLDER = "DIR"  # of the data root, in commands that are only shown
MATRIX_CELL = re.compile(r"a\[(?P<after>[^,\]]+),(?P<task>[^,\]]+)\]")

Verdict = Literal["agrees", "differs", "not run", "no figure"]


@dataclass(frozen=True)
class Setting:
    """What is learned: a configuration or an order, and where its figures are, `{method}` standing for the row."""

    figures: str
    config: str | None = None
    order: str | None = None
    gigaflop: float | None = None  # of one example, forward and backward


@dataclass(frozen=True)
class Row:
    """A method as it stands in the table."""

    method: str | None = None  # its name in `mcit list`, if the row is called otherwise
    set: tuple[str, ...] = ()
    set_by_setting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """How much is learned: examples of each task, or `per_class`; and what the estimate rests on."""

    examples: Mapping[str, int]
    basis: str


@dataclass(frozen=True)
class Ledger:
    """A table as a file in `mcit/reproduce/` describes it."""

    title: str
    source: str
    data: str | None  # what --data-root must hold
    figures: str  # a JSON file
    tolerance: float  # points
    tolerance_basis: str
    metrics: Mapping[str, str]  # of ours, and where they are in a cell of the figures
    settings: Mapping[str, Setting]
    methods: Mapping[str, Row]
    seeds: tuple[int, ...] = (1,)
    cost: Cost | None = None
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the table, over its seeds: the commands that make it and the figures to meet."""

    setting: str
    method: str  # the row
    jobs: tuple[Job, ...]
    figures: Mapping[str, float | None]
    notes: tuple[str, ...]
    runs: tuple[Run, ...] = field(default=())  # complete ones that were found

    def measured(self, metric: str) -> float | None:
        """The mean over the runs there are."""
        values = [value for run in self.runs if (value := read_metric(run, metric)) is not None]
        return statistics.fmean(values) if values else None

    def judge(self, metric: str, tolerance: float) -> Verdict:
        """Whether what was measured is within the tolerance of the figure."""
        found, figure = self.measured(metric), self.figures[metric]
        if found is None:
            return "not run"
        if figure is None:
            return "no figure"
        return "agrees" if abs(found - figure) <= tolerance else "differs"


def ledger_names() -> list[str]:
    """The tables there are."""
    return sorted(path.stem for path in LEDGERS.glob("*.yaml"))


def read_ledger(name: str) -> Ledger:
    """The table of that name."""
    known = ledger_names()
    if name not in known:
        raise ConfigError([f"no table {name!r}{suggest(name, known)} (tables: {', '.join(known)})"])
    return parse(Ledger, read_yaml(LEDGERS / f"{name}.yaml"))


def choose(
    ledger: Ledger, settings: Sequence[str] = (), methods: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The settings and rows that are asked for, all of them where none is."""
    problems = []
    for what, asked, known in (
        ("setting", settings, ledger.settings),
        ("method", methods, ledger.methods),
    ):
        for name in asked:
            if name not in known:
                problems.append(
                    f"the table has no {what} {name!r}{suggest(name, known)} ({what}s: {', '.join(known)})"
                )
    if problems:
        raise ConfigError(problems)
    return list(settings or ledger.settings), list(methods or ledger.methods)


def make_cells(
    ledger: Ledger,
    output: Path,
    read: Callable[[Sequence[str]], RunConfig],
    settings: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_root: str | None = None,
) -> list[Cell]:
    """The cells that are asked for; `read` makes a configuration of the options of `mcit run`."""
    figures = read_figures(ledger.figures)
    cells = []
    for setting in choose(ledger, settings, methods)[0]:
        for method in choose(ledger, settings, methods)[1]:
            options = make_options(ledger, setting, method, data_root)
            config, jobs = read(options), []
            for seed in seeds or ledger.seeds:
                folder, words = (
                    output / f"{setting}-{method}-seed{seed}",
                    (*options, "--seed", str(seed)),
                )
                jobs.append(Job(folder, words, replace(config, seed=seed), config.method.name))
            found = find_figure(
                figures, ledger.settings[setting].figures.replace("{method}", method)
            )
            wanted = {name: find_figure(found, place) for name, place in ledger.metrics.items()}
            cells.append(Cell(setting, method, tuple(jobs), wanted, ledger.methods[method].notes))
    return cells


def make_options(
    ledger: Ledger, setting: str, method: str, data_root: str | None
) -> tuple[str, ...]:
    """The options of `mcit run` for a cell, without its seed."""
    place, row = ledger.settings[setting], ledger.methods[method]
    words = ["--config", place.config] if place.config else []
    words += ["--order", place.order] if place.order else []
    words += ["--data-root", data_root or PLACEHOLDER] if ledger.data else []
    words += ["--method", row.method or method]
    changes = (*row.set, *row.set_by_setting.get(setting, ()))
    return (*words, *(word for change in changes for word in ("--set", change)))


def find_runs(cells: Sequence[Cell], folders: Sequence[Path]) -> list[Cell]:
    """The cells with those complete runs in the folders, or one level below, that are theirs by all that counts."""
    experiments = []
    for folder in folders:
        for scores in sorted({*folder.glob("scores.json"), *folder.glob("*/scores.json")}):
            run = read_run(scores.parent)
            if not run.complete or not run.config:
                continue
            try:
                experiments.append((identify(parse(RunConfig, dict(run.config))), run))
            except ConfigError:
                continue  # settings that are refused now, as an earlier version's may be, are those of no cell
    filled = []
    for cell in cells:
        wanted = [identify(job.config) for job in cell.jobs]
        found = [
            next((run for identity, run in experiments if identity == one), None) for one in wanted
        ]
        runs = tuple(run for run in found if run is not None)
        filled.append(Cell(cell.setting, cell.method, cell.jobs, cell.figures, cell.notes, runs))
    return filled


def read_metric(run: Run, name: str) -> float | None:
    """A metric of a run by its name: `A_last`, `A_new` as its mean, or `a[vcr,vqa]` for the score on VQA after VCR."""
    cell = MATRIX_CELL.fullmatch(name)
    if cell is None:
        value = run.metrics[name]
        return average(value) if isinstance(value, Sequence) else value
    after, task = run.tasks.index(cell["after"]), run.tasks.index(cell["task"])
    return run.matrix.rows[after][task]


def read_figures(name: str) -> Any:
    """A file of figures; an empty one where nothing has been recorded yet."""
    for place in PLACES:
        if (place / name).is_file():
            return json.loads((place / name).read_text(encoding="utf-8"))
    return {}


def find_figure(data: Any, place: str) -> Any:
    """What is at a dotted place in nested sections and lists; None where there is nothing."""
    for key in place.split("."):
        if isinstance(data, list):
            data = data[int(key)] if int(key) < len(data) else None
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data


def record(ledger: Ledger, cells: Sequence[Cell]) -> dict[str, Any]:
    """The file of figures that these cells make, for a ledger whose figures are measured with this program.

    It says what others need to repeat it, and nothing of where it was made.
    """
    unfinished = [
        f"{cell.setting} {cell.method}" for cell in cells if len(cell.runs) < len(cell.jobs)
    ]
    if unfinished:
        raise ConfigError(
            [
                f"nothing was recorded: {', '.join(unfinished)} not complete; --run makes what is missing"
            ]
        )
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found.setdefault(cell.setting, {})[cell.method] = _record_cell(ledger, cell)
    passport = cells[0].runs[0].passport
    about = {name: passport.get(name) for name in ("mcit", "python", "packages", "threads")}
    return {**about, "seeds": list(ledger.seeds), "cells": found}


def _record_cell(ledger: Ledger, cell: Cell) -> dict[str, Any]:
    seconds = [
        sum(cost for name, cost in run.cost.items() if name.endswith("_seconds"))
        for run in cell.runs
    ]
    means = {metric: round(cell.measured(metric), 2) for metric in ledger.metrics}
    by_seed = {
        m: {str(run.seed): round(read_metric(run, m), 2) for run in cell.runs}
        for m in ledger.metrics
    }
    options = make_options(ledger, cell.setting, cell.method, None)
    command = shlex.join(["mcit", "run", *options, "--seed", str(ledger.seeds[0])])
    return {
        **means,
        "by_seed": by_seed,
        "seconds": round(statistics.fmean(seconds)),
        "command": command,
    }
