"""Runs as processes of their own: which are done, and making the others side by side."""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from mcit.errors import ConfigError, DataError
from mcit.files import CONSOLE_LOG, make_folder, read_object
from mcit.reports.runs import Run, read_run
from mcit.runner.plan import Plan, resolve
from mcit.runner.run_folder import PROVENANCE, holds_run, refuse_differences
from mcit.sweeps.grid import Grid, RunOptions, find_conflicts

# Not `python -m mcit`, which looks for modules in the working folder before all others: a file
# evaluate.py there would be executed. Python 3.10 does not know the option -P, which prevents that.
START = """
import sys
sys.path[:] = [place for place in sys.path if place]
sys.argv[0] = "mcit"
from mcit.cli import main
sys.exit(main())
"""
PROGRAM = (sys.executable, "-c", START, "run")
# seconds between two looks at the processes
PAUSE = 0.2
# seconds that an interrupted run has to stop by itself
GRACE = 30.0

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


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    job: Job
    code: int
    last_line: str

    def describe(self) -> str:
        log = self.job.folder / CONSOLE_LOG
        return f"{self.job.name} failed (code {self.code}): {self.last_line} (see {log})"


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


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_once: int = 1,
    threads: int = 1,
    gpus: Sequence[str] = (),
    extra: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[Failure]:
    """Make the runs, and return those that failed; one that fails does not stop the others.

    at_once: processes at a time. extra: words that every run gets. say: receives a line on every
    run that ends. Ctrl-C, or a signal that ends this process, stops all runs before it is passed
    on as KeyboardInterrupt.
    """
    console = Console(stderr=True, highlight=False)
    say = say or functools.partial(console.print, soft_wrap=True, markup=False)
    bars = _Bars(console, len(jobs))
    pool = _ProcessPool(program, threads, gpus, extra)
    waiting = deque(jobs)
    failures = []
    with _interruptible(), bars.progress, pool:
        while waiting or pool.running:
            while waiting and len(pool.running) < at_once:
                pool.start(waiting.popleft())
            for run in pool.collect():
                failure = run.find_failure()
                if failure is None:
                    say(run.describe_success())
                else:
                    failures.append(failure)
                    say(failure.describe())
                bars.finish(run.job)
            bars.show([run.job for run in pool.running])
            time.sleep(PAUSE)
    return failures


def last_line(path: Path) -> str:
    """Return the last line of a log that says what went wrong, or that says anything."""
    lines = []
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    # the lines after an error of ours are its details
    errors = [line for line in lines if line.startswith("mcit: ")]
    if not lines:
        return "it printed nothing"
    return (errors or lines)[-1]


def stop(processes: Sequence[subprocess.Popen], grace: float = GRACE) -> None:
    """Ask processes and their children to stop as Ctrl-C would, and end those that do not."""
    _signal(processes, signal.SIGINT)
    end = time.monotonic() + grace
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            time.sleep(PAUSE)
    finally:
        # a second Ctrl-C waits no longer
        _signal(processes, signal.SIGKILL)
        for process in processes:
            process.wait()


@dataclass(frozen=True)
class _Running:
    """A process that makes a run."""

    job: Job
    process: subprocess.Popen
    gpu: str | None
    started: float

    def find_failure(self) -> Failure | None:
        code = self.process.returncode
        if code == 0:
            return None
        return Failure(self.job, code, last_line(self.job.folder / CONSOLE_LOG))

    def describe_success(self) -> str:
        minutes = (time.monotonic() - self.started) / 60
        run = read_scores(self.job)
        if run is None:
            return f"{self.job.name}: {minutes:.1f} min"
        return f"{self.job.name}: A_last {run.metrics['A_last']:.2f}, {minutes:.1f} min"


class _ProcessPool:
    """The runs under way; leaving its `with` block ends them."""

    def __init__(
        self, program: Sequence[str], threads: int, gpus: Sequence[str], extra: Sequence[str]
    ):
        self.program = program
        self.environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.free_gpus = deque(gpus)
        self.extra = extra
        self.running: list[_Running] = []

    def __enter__(self) -> _ProcessPool:
        return self

    def __exit__(self, *error: object) -> None:
        stop([run.process for run in self.running])

    def start(self, job: Job) -> None:
        """Start a run, or continue it if it was begun."""
        words = [*job.words, *self.extra, "--output", str(job.folder), "--quiet"]
        if find_state(job) == "begun":
            words.append("--resume")
        environment = {**os.environ, **self.environment}
        gpu = None
        if self.free_gpus:
            gpu = self.free_gpus.popleft()
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        make_folder(job.folder, "--output")
        with (job.folder / CONSOLE_LOG).open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C in the terminal reaches this process only, which then stops its children
                start_new_session=True,
            )
        self.running.append(_Running(job, process, gpu, started=time.monotonic()))

    def collect(self) -> list[_Running]:
        """Return the runs that ended since the last call, and free their GPUs."""
        ended = [run for run in self.running if run.process.poll() is not None]
        for run in ended:
            self.running.remove(run)
            if run.gpu is not None:
                self.free_gpus.append(run.gpu)
        return ended


class _Bars:
    """On a terminal, a bar for all runs and one for each run under way that counts its tasks."""

    def __init__(self, console: Console, total: int):
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.total = self.progress.add_task("runs", total=total)
        self.bars: dict[Job, TaskID] = {}

    def show(self, jobs: Sequence[Job]) -> None:
        """Bring the bars of the runs under way up to date."""
        if self.progress.disable:
            return
        for job in jobs:
            if job not in self.bars:
                self.bars[job] = self.progress.add_task(job.name, total=len(job.plan.tasks))
            run = read_scores(job)
            if run is not None:
                self.progress.update(self.bars[job], completed=len(run.matrix.rows))

    def finish(self, job: Job) -> None:
        """Count a run that ended."""
        if job in self.bars:
            self.progress.remove_task(self.bars.pop(job))
        self.progress.advance(self.total)


def _signal(processes: Sequence[subprocess.Popen], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Take a signal that ends this process for Ctrl-C, so that no run outlives it."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
