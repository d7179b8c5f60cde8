"""Runs as an array job of SLURM, submitted through submitit.

SLURM decides where and when a run is made. One that comes near its time limit, or must make room
for another, saves a checkpoint, is requeued and resumes; so does one whose node died. What a run
writes goes to its folder, which all nodes must see.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mcit.errors import ConfigError
from mcit.sweeps.attempt import Attempt, Ending, stop
from mcit.sweeps.executor import Executor, RunSettings
from mcit.sweeps.jobs import Job


@dataclass
class SlurmCluster(Executor):
    """Every run is a task of one array job.

    folder: what submitit writes, on a file system that all nodes see. parameters: those of sbatch
    by submitit's names; `time`, in minutes, must be among them. retries: how often a run may reach
    that limit. at_once: runs at a time; None leaves it to SLURM. cluster: submitit's name of it,
    "local" for processes of this machine.
    """

    settings: RunSettings
    folder: Path
    parameters: Mapping[str, str | int]
    cpus: int = 1
    gpus: int = 0
    retries: int = 3
    at_once: int | None = None
    cluster: str = "slurm"
    # jobs of submitit and their runs
    pending: list[tuple[Any, Job]] = field(default_factory=list)

    # submitit asks SLURM itself once a minute, and looks for results in files
    pause: ClassVar[float] = 5.0

    def __enter__(self) -> SlurmCluster:
        import submitit

        parameters = dict(self.parameters)
        minutes = parameters.pop("time")
        limit = {f"{self.cluster}_max_num_timeout": self.retries}
        try:
            self._queue = submitit.AutoExecutor(self.folder, self.cluster, **limit)
            self._queue.update_parameters(
                name="mcit",
                timeout_min=minutes,
                nodes=1,
                tasks_per_node=1,
                cpus_per_task=self.cpus,
                gpus_per_node=self.gpus or None,
                slurm_additional_parameters={"requeue": True},
                **{f"slurm_{name}": value for name, value in parameters.items()},
            )
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            raise ConfigError([f"--slurm: {error}"]) from None
        return self

    def __exit__(self, *error: object) -> None:
        for task, _ in self.pending:
            task.cancel(check=False)

    def submit(self, jobs: Sequence[Job]) -> None:
        from submitit.core.utils import FailedJobError

        if not jobs:
            return
        at_once = self.at_once or len(jobs)
        self._queue.update_parameters(slurm_array_parallelism=at_once)
        attempts = [self.settings.make_attempt(job) for job in jobs]
        try:
            tasks = self._queue.map_array(Requeueable(), attempts)
        except FailedJobError as error:
            raise ConfigError([f"SLURM did not take the runs: {error}"]) from None
        self.pending += zip(tasks, jobs, strict=True)

    def collect(self) -> list[tuple[Job, Ending]]:
        endings = []
        left = []
        for task, job in self.pending:
            if task.done():
                endings.append((job, _get_ending(task)))
            else:
                left.append((task, job))
        self.pending = left
        return endings


class Requeueable:
    """What submitit calls on a node, and asks for what to call next time before it requeues."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def __call__(self, attempt: Attempt) -> Ending:
        return attempt.make(self._hold)

    def checkpoint(self, attempt: Attempt) -> Any:
        """Stop the run once it has saved, and return what will continue it."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            stop([self.process])
        return DelayedSubmission(Requeueable(), attempt)

    def _hold(self, process: subprocess.Popen) -> None:
        self.process = process


def _get_ending(task: Any) -> Ending:
    """Return how a task ended; one without a result was lost, or ran out of time too often."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return task.result()
    except (FailedJobError, UncompletedJobError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" -\t")]
        return Ending(None, 0.0, f"job {task.job_id} has no result: {lines[-1]}")
