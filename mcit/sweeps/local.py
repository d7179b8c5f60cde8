"""Runs as processes of this machine, a few at a time."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcit.sweeps.attempt import Ending, stop
from mcit.sweeps.executor import Executor, RunSettings
from mcit.sweeps.jobs import Job


@dataclass(frozen=True)
class _Running:
    """A process that makes a run."""

    job: Job
    process: subprocess.Popen
    gpu: str | None
    started: float


class LocalPool(Executor):
    """At most `at_once` processes at a time; each has one of the GPUs, if there are any."""

    def __init__(
        self, settings: RunSettings | None = None, at_once: int = 1, gpus: Sequence[str] = ()
    ):
        self.settings = settings or RunSettings()
        self.at_once = at_once
        self.free_gpus = deque(gpus)
        self.waiting: deque[Job] = deque()
        self.under_way: list[_Running] = []

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        stop([run.process for run in self.under_way])

    def submit(self, jobs: Sequence[Job]) -> None:
        self.waiting.extend(jobs)
        self._fill()

    def collect(self) -> list[tuple[Job, Ending]]:
        ended = [run for run in self.under_way if run.process.poll() is not None]
        stop([run.process for run in ended])
        endings = []
        for run in ended:
            self.under_way.remove(run)
            if run.gpu is not None:
                self.free_gpus.append(run.gpu)
            seconds = time.monotonic() - run.started
            endings.append((run.job, Ending(run.process.returncode, seconds)))
        self._fill()
        return endings

    def running(self) -> list[Job]:
        return [run.job for run in self.under_way]

    def _fill(self) -> None:
        while self.waiting and len(self.under_way) < self.at_once:
            self._start(self.waiting.popleft())

    def _start(self, job: Job) -> None:
        attempt = self.settings.make_attempt(job)
        gpu = None
        if self.free_gpus:
            gpu = self.free_gpus.popleft()
            environment = {**attempt.environment, "CUDA_VISIBLE_DEVICES": gpu}
            attempt = replace(attempt, environment=environment)
        process = attempt.start()
        self.under_way.append(_Running(job, process, gpu, time.monotonic()))
