"""The contract of what makes runs: processes of this machine, or a cluster."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mcit.files import make_folder
from mcit.sweeps.attempt import PAUSE, PROGRAM, Attempt, Ending
from mcit.sweeps.jobs import Job, find_state


@dataclass(frozen=True)
class RunSettings:
    """How every run is started, wherever that is."""

    threads: int = 1
    # words that every run gets
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 0.0
    program: tuple[str, ...] = PROGRAM

    def make_attempt(self, job: Job) -> Attempt:
        """Return the attempt at a run, whose folder is made if need be."""
        resume = find_state(job) == "begun"
        make_folder(job.folder, "--output")
        threads = {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}
        return Attempt(
            folder=str(job.folder),
            words=(*job.words, *self.extra),
            resume=resume,
            environment={**self.environment, **threads},
            cwd=os.getcwd(),
            patience=self.patience,
            program=self.program,
        )


class Executor(ABC):
    """Makes runs inside its `with` block; leaving the block stops those that are under way."""

    # seconds between two looks at the runs
    pause: ClassVar[float] = PAUSE

    @abstractmethod
    def __enter__(self) -> Executor:
        """Get ready; raise a ConfigError if runs cannot be made."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Stop the runs that are under way; what they saved stays."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Take runs to be made, once there is room for each."""

    @abstractmethod
    def collect(self) -> list[tuple[Job, Ending]]:
        """Return the runs that ended since the last call."""

    def running(self) -> list[Job]:
        """Return the runs that are known to be under way; a cluster does not say."""
        return []
