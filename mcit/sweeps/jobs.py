"""Runs as processes of their own: which are done, which are to be made, and making them side by side."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mcit.config import ConfigError, RunConfig, parse, read_yaml, to_dict
from mcit.errors import DataError
from mcit.files import CONSOLE_LOG
from mcit.folders import make_folder
from mcit.reports.runs import Run, read_run

# Not `python -m mcit`, which looks for modules in the working folder before all others: a file evaluate.py there would
# be executed. The option -P, which prevents that, is unknown to Python 3.10.
START = """
import sys
sys.path[:] = [place for place in sys.path if place]
sys.argv[0] = "mcit"
from mcit.cli import main
sys.exit(main())
"""
PROGRAM = (sys.executable, "-c", START, "run")
PAUSE = 0.2  # seconds between two looks at the processes
GRACE = 30.0  # seconds that an interrupted run has to stop by itself
# What may differ between two runs of the same experiment: where things are, and how fast they go.
BESIDE_THE_POINT = ("output", "data_root", "single", "tracker", "stage_cache", "checkpoint")
BESIDE_THE_POINT_IN_TRAINING = ("workers", "eval_batch_size", "log_every")

State = Literal["done", "begun", "new"]


@dataclass(frozen=True, eq=False)
class Job:
    """A run to be made: the options of `mcit run`, the configuration they stand for, and its folder."""

    folder: Path
    options: tuple[str, ...]  # without --output
    config: RunConfig = field(repr=False)
    method: str
    strength: float | None = None  # None: what the configuration says
    order: str | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def command(self) -> str:
        """What a user would type."""
        return shlex.join(["mcit", "run", *self.options, "--output", str(self.folder)])


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    job: Job
    code: int
    last_line: str

    def describe(self) -> str:
        log = self.job.folder / CONSOLE_LOG
        return f"{self.job.name} failed (code {self.code}): {self.last_line} (see {log})"


def identify(config: RunConfig) -> dict[str, Any]:
    """All that decides a run's scores, however it was spelled: two runs are the same experiment if this is equal."""
    # late: it needs torch, and what is wrong with a sweep's own options is told before torch is imported
    from mcit.runner.plan import resolve

    plan = resolve(config)
    about = {
        key: value for key, value in to_dict(plan.config).items() if key not in BESIDE_THE_POINT
    }
    for key in BESIDE_THE_POINT_IN_TRAINING:
        about["training"].pop(key, None)
    for key in ("tasks", "methods", "flavour"):  # they have become the tasks and the method below
        about.pop(key, None)
    tasks = [
        {k: v for k, v in to_dict(task).items() if k not in ("root", "part")} for task in plan.tasks
    ]
    return {
        **about,
        "method": {"name": config.method.name, **to_dict(plan.method)},
        "learned": tasks,
    }


def find_state(job: Job) -> State:
    """Whether the folder holds the whole run, part of it, or nothing; another experiment in it is an error."""
    if not (job.folder / "config.yaml").is_file():
        return "new"
    try:
        found = identify(parse(RunConfig, read_yaml(job.folder / "config.yaml")))
    except ConfigError as error:
        listed = "; ".join(error.problems)
        raise ConfigError(
            [
                f"{job.folder} holds a run whose settings would be refused now ({listed}); choose another --output"
            ]
        ) from error
    differences = list(_differ(found, identify(job.config)))
    if differences:
        listed = "; ".join(differences[:3])
        raise ConfigError(
            [f"{job.folder} holds a run with other settings ({listed}); choose another --output"]
        )
    run = read_if_there(job)
    return "done" if run is not None and run.complete else "begun"


def read_if_there(job: Job) -> Run | None:
    """Return the run in the job's folder, as far as it got; None if it has no scores yet, or damaged ones.

    Damaged files are written again when the run is resumed.
    """
    if not (job.folder / "scores.json").is_file():
        return None
    try:
        return read_run(job.folder)
    except DataError:
        return None


def run_jobs(
    jobs: Sequence[Job],
    at_once: int = 1,
    threads: int = 1,
    gpus: Sequence[str] = (),
    extra: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[Failure]:
    """Make the runs, `at_once` at a time and each with so many threads; one that fails does not stop the others.

    Ctrl-C, or the end of this process by a signal, stops all of them before it is passed on as KeyboardInterrupt.
    """
    crew = _Crew(program, threads, deque(gpus), extra)
    waiting, failures, console = deque(jobs), [], Console(stderr=True, highlight=False)
    say = say or (lambda line: console.print(line, soft_wrap=True, markup=False))
    with _interruptible(), _show_progress(len(jobs), console) as progress, crew:
        while waiting or crew.running:
            while waiting and len(crew.running) < at_once:
                crew.start(waiting.popleft())
            for job, code, seconds in crew.collect():
                if code:
                    failures.append(Failure(job, code, last_line(job.folder / CONSOLE_LOG)))
                say(failures[-1].describe() if code else _describe_success(job, seconds))
                progress.finish(job)
            progress.look(crew.running)
            time.sleep(PAUSE)
    return failures


def last_line(path: Path) -> str:
    """The last line of a log that says what went wrong, or that says anything."""
    lines = (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    )
    said = [line.strip() for line in lines if line.strip()]
    errors = [
        line for line in said if line.startswith("mcit: ")
    ]  # what follows one are its details
    return next(reversed(errors or said), "it printed nothing")


class _Crew:
    """The processes under way; leaving its `with` block ends them."""

    def __init__(
        self, program: Sequence[str], threads: int, gpus: deque[str], extra: Sequence[str]
    ):
        self.program, self.threads, self.gpus, self.extra = program, threads, gpus, extra
        self.running: dict[subprocess.Popen, Job] = {}
        self._started: dict[subprocess.Popen, tuple[float, str | None]] = {}

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *error: object) -> None:
        stop(list(self.running))

    def start(self, job: Job) -> None:
        begun = find_state(job) == "begun"
        gpu = self.gpus.popleft() if self.gpus else None
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        words = [
            *job.options,
            *self.extra,
            "--output",
            str(job.folder),
            "--quiet",
            *(["--resume"] if begun else []),
        ]
        make_folder(job.folder, "--output")
        with (job.folder / CONSOLE_LOG).open("a", encoding="utf-8") as log:
            # a session of its own: Ctrl-C in the terminal reaches this process only, which then stops its children
            process = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.running[process] = job
        self._started[process] = (time.monotonic(), gpu)

    def collect(self) -> Iterator[tuple[Job, int, float]]:
        """The runs that ended since the last look, with their exit codes and seconds."""
        for process in [process for process in self.running if process.poll() is not None]:
            since, gpu = self._started.pop(process)
            if gpu is not None:
                self.gpus.append(gpu)
            yield self.running.pop(process), process.returncode, time.monotonic() - since


def stop(processes: Sequence[subprocess.Popen], grace: float = GRACE) -> None:
    """Ask the processes and their children to stop as Ctrl-C would, and end those that do not."""
    _signal(processes, signal.SIGINT)
    end = time.monotonic() + grace
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            time.sleep(PAUSE)
    finally:  # a second Ctrl-C waits no longer
        _signal(processes, signal.SIGKILL)
        for process in processes:
            process.wait()


def _signal(processes: Sequence[subprocess.Popen], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


@contextmanager
def _interruptible() -> Iterator[None]:
    """What asks this process to end is taken as Ctrl-C is, so that no run outlives it."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Bars:
    """One bar for all runs, and one for each under way that counts its tasks."""

    def __init__(self, progress: Progress, total: int):
        self.progress, self.bars = progress, {}
        self.all = progress.add_task("runs", total=total)

    def look(self, running: Mapping[Any, Job]) -> None:
        for job in running.values():
            if job not in self.bars:
                self.bars[job] = self.progress.add_task(job.name, total=None)
            if not self.progress.disable and (run := read_if_there(job)) is not None:
                self.progress.update(
                    self.bars[job], completed=len(run.matrix.rows), total=len(run.tasks)
                )

    def finish(self, job: Job) -> None:
        if job in self.bars:
            self.progress.remove_task(self.bars.pop(job))
        self.progress.advance(self.all)


@contextmanager
def _show_progress(total: int, console: Console) -> Iterator[_Bars]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield _Bars(progress, total)


def _describe_success(job: Job, seconds: float) -> str:
    run = read_if_there(job)
    score = f"A_last {run.metrics['A_last']:.2f}, " if run is not None else ""
    return f"{job.name}: {score}{seconds / 60:.1f} min"


def _differ(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in dict.fromkeys([*found, *wanted]):
            yield from _differ(found.get(key), wanted.get(key), f"{where}.{key}" if where else key)
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differ(one, other, f"{where}[{number}]")
    elif found != wanted:
        yield f"{where} {found!r} there, {wanted!r} here"
