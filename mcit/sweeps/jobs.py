"""The runs of a grid: their folders, their words, and which of them are done."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mcit.errors import ConfigError, DataError
from mcit.files import read_object
from mcit.reports.runs import Run, read_run
from mcit.runner.plan import Plan, resolve
from mcit.runner.run_folder import PROVENANCE, holds_run, refuse_differences
from mcit.sweeps.grid import Grid, RunOptions, find_conflicts

State = Literal["done", "begun", "new"]


@dataclass(frozen=True, eq=False)
class Job:
    """A run to be made: its folder, its options as words of `mcit run`, and its plan."""

    folder: Path
    # without --output
    words: tuple[str, ...]
    plan: Plan = field(repr=False)
    # None: what the configuration says
    strength: float | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def order(self) -> str:
        return ",".join(self.plan.config.order)

    @property
    def method(self) -> str:
        return self.plan.config.method.name

    @property
    def seed(self) -> int:
        return self.plan.config.seed

    @property
    def command(self) -> str:
        """Return what a user would type."""
        return shlex.join(["mcit", "run", *self.words, "--output", str(self.folder)])


def make_job(folder: Path, options: RunOptions, strength: float | None = None) -> Job:
    """Return the job of these options; raise a ConfigError with all that is wrong with them."""
    return Job(folder, tuple(options.words()), resolve(options.load()), strength)


def plan_jobs(grid: Grid, output: Path) -> list[Job]:
    """Return every run of a grid; raise all that is wrong with them as one error."""
    jobs = []
    problems = dict.fromkeys(find_conflicts(grid))
    for order, method in itertools.product(grid.orders or (None,), grid.methods):
        prefix = ""
        if order is not None and len(grid.orders) > 1:
            prefix = order.replace(" ", "").replace(",", "-").replace(":", "-") + "-"
        for strength, seed in itertools.product(grid.strengths_of(method), grid.seeds):
            label = method if strength is None else f"{method}@{strength:g}"
            folder = output / f"{prefix}{label}-seed{seed}"
            options = grid.options_of(order, method, seed, strength=strength)
            try:
                jobs.append(make_job(folder, options, strength))
            except ConfigError as error:
                problems.update(dict.fromkeys(error.problems))
    for name, count in Counter(job.name for job in jobs).items():
        if count > 1:
            problems[f"two runs would be called {name}"] = None
    if problems:
        raise ConfigError(problems)
    return jobs


def find_state(job: Job) -> State:
    """Return how much of the run its folder holds; raise if it holds another experiment."""
    if not holds_run(job.folder):
        return "new"
    provenance = read_object(job.folder / PROVENANCE) or {}
    experiment = provenance.get("experiment")
    if not isinstance(experiment, dict):
        # missing or damaged: a resumed run compares its checkpoints, and writes the file again
        return "begun"
    refuse_differences(job.folder, experiment, job.plan.experiment())
    run = read_scores(job)
    return "done" if run is not None and run.complete else "begun"


def read_scores(job: Job) -> Run | None:
    """Return the run of a job as far as it got; None if its files are missing or damaged.

    Damaged files are written again when the run is resumed.
    """
    try:
        return read_run(job.folder)
    except DataError:
        return None
