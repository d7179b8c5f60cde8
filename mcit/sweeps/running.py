"""Making runs by an executor: who ended, who failed, and how far the others are."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from mcit.files import CONSOLE_LOG
from mcit.sweeps.attempt import Ending
from mcit.sweeps.executor import Executor
from mcit.sweeps.jobs import Job, read_scores


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    job: Job
    # None: the run did not end by itself
    code: int | None
    last_line: str

    def describe(self) -> str:
        log = self.job.folder / CONSOLE_LOG
        code = "" if self.code is None else f" (code {self.code})"
        return f"{self.job.name} failed{code}: {self.last_line} (see {log})"


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor,
    say: Callable[[str], None] | None = None,
    on_done: Callable[[Job], None] | None = None,
) -> list[Failure]:
    """Make the runs, and return those that failed; one that fails does not stop the others.

    say: receives a line on every run that ends. on_done: is told of every run that is complete, as
    soon as it is. Ctrl-C, or a signal that ends this process, stops
    all runs before it is passed on as KeyboardInterrupt.
    """
    console = Console(stderr=True, highlight=False)
    say = say or functools.partial(console.print, soft_wrap=True, markup=False)
    bars = _Bars(console, len(jobs))
    failures = []
    left = len(jobs)
    with _interruptible(), bars.progress, executor:
        executor.submit(jobs)
        while left:
            for job, ending in executor.collect():
                left -= 1
                failure = find_failure(job, ending)
                if failure is None:
                    say(describe_success(job, ending))
                    if on_done is not None:
                        on_done(job)
                else:
                    failures.append(failure)
                    say(failure.describe())
                bars.finish(job)
            bars.show(executor.running())
            time.sleep(executor.pause)
    return failures


def find_failure(job: Job, ending: Ending) -> Failure | None:
    """Return what went wrong with a run, or None if nothing did."""
    if ending.code == 0:
        return None
    reason = ending.problem or last_line(job.folder / CONSOLE_LOG)
    return Failure(job, ending.code, reason)


def describe_success(job: Job, ending: Ending) -> str:
    """Return a line on a run that is complete."""
    minutes = ending.seconds / 60
    run = read_scores(job)
    if run is None:
        return f"{job.name}: {minutes:.1f} min"
    return f"{job.name}: A_last {run.metrics['A_last']:.2f}, {minutes:.1f} min"


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


@contextmanager
def _interruptible() -> Iterator[None]:
    """Take a signal that ends this process for Ctrl-C, so that no run outlives it."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup asks that the end of a terminal stops nothing
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
