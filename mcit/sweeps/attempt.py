"""One attempt at a run, which any machine can make that sees the run's folder.

Nothing here imports torch: the process that watches over a run stays small.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mcit
from mcit.files import CONSOLE_LOG, LOCK, is_locked

# Not `python -m mcit`, which looks for modules in the working folder before all others: a file
# evaluate.py there would be executed. Python 3.10 does not know the option -P, which prevents that.
# - Standard input ends with the process that started the run, and the run ends then as well: what
#   is left of a node that a cluster has given up must not write beside the next attempt.
# - SIGUSR2 is for the process that watches; SLURM may send it to all processes of a job.
# - SIGINT asks a run to save and stop; Ray blocks it in its workers and so in what they start.
START = """
import os
import signal
import sys
import threading

def follow():
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=follow, daemon=True).start()
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
sys.path[:] = [place for place in sys.path if place]
sys.argv[0] = "mcit"
from mcit.cli import main
sys.exit(main())
"""
# words after the interpreter
PROGRAM = ("-c", START, "run")
# seconds between two looks at a process
PAUSE = 0.2
# seconds that an interrupted run has to stop by itself
GRACE = 30.0


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    # of the process; None if that could not be started or was lost
    code: int | None
    seconds: float
    # why there is no code
    problem: str = ""


@dataclass(frozen=True)
class Attempt:
    """What a machine needs to know of a run, in words: it may be another than the one that asks."""

    # relative to cwd
    folder: str
    # of `mcit run`, without --output
    words: tuple[str, ...]
    # whether the folder held a part of the run when the run was asked for
    resume: bool = False
    # variables that are set besides the machine's own
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    # seconds to wait until an earlier attempt no longer holds the folder: a file server keeps the
    # locks of a lost machine for a while
    patience: float = 0.0
    program: tuple[str, ...] = PROGRAM
    version: str = mcit.__version__

    @property
    def place(self) -> Path:
        return Path(self.cwd, self.folder)

    def find_problem(self) -> str | None:
        """Return why this machine cannot make the run, or None if it can."""
        here = platform.node()
        if mcit.__version__ != self.version:
            return (
                f"{here} has mcit {mcit.__version__}, and the runs were planned by {self.version}; "
                "install the same version on all machines"
            )
        if not self.place.is_dir():
            return (
                f"{here} does not see {self.place}; give an --output, and work in a folder, that "
                "all machines share"
            )
        return None

    def make(self, hold: Callable[[subprocess.Popen], None] | None = None) -> Ending:
        """Make the run; if that is interrupted, the run is stopped before it is passed on.

        hold: receives the process of the run.
        """
        problem = self.find_problem()
        if problem is not None:
            return Ending(None, 0.0, problem)
        start = time.monotonic()
        process = self.start()
        if hold is not None:
            hold(process)
        try:
            while process.poll() is None:
                time.sleep(PAUSE)
        finally:
            stop([process])
        return Ending(process.returncode, time.monotonic() - start)

    def start(self) -> subprocess.Popen:
        """Start the run, or continue it if it was begun."""
        words = [*self.words, "--output", self.folder, "--quiet"]
        log = self.place / CONSOLE_LOG
        # where an earlier attempt printed, there may be a checkpoint of it
        if self.resume or log.exists():
            words.append("--resume")
        end = time.monotonic() + self.patience
        while time.monotonic() < end and is_locked(self.place / LOCK):
            time.sleep(PAUSE)
        with log.open("a", encoding="utf-8") as opened:
            return subprocess.Popen(
                [sys.executable, *self.program, *words],
                # closed when this process ends, however it ends
                stdin=subprocess.PIPE,
                stdout=opened,
                stderr=opened,
                env={**os.environ, **self.environment},
                cwd=self.cwd or None,
                # Ctrl-C in the terminal reaches this process only, which then stops its children
                start_new_session=True,
            )


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
            if process.stdin is not None:
                process.stdin.close()


def _signal(processes: Sequence[subprocess.Popen], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
