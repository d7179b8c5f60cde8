"""Ctrl-C, SIGTERM and a closed terminal: a run ends where it can be resumed."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mcit.runner.run_folder import CONFIG, find_newest

# seconds within which a second signal is the same Ctrl-C
SAME_MOMENT = 1.0
# EX_TEMPFAIL of sysexits.h: interrupted, resumable
CODE = 75


class Interrupted(RuntimeError):
    """The run was asked to stop; what was saved by then is on disk."""


def explain_resumption(output: Path, processes: int, what: str = "interrupted") -> str:
    """Return what a run that ended early has saved, and the command that resumes it."""
    newest = find_newest(output)
    options = f"--resume --output {shlex.quote(str(output))}"
    if not (output / CONFIG).is_file():
        how = "the same command again"
    elif processes > 1:
        how = f"launch {processes} processes as before, with {options}"
    else:
        how = f"mcit run {options}"
    saved = "before anything was saved" if newest is None else f"saved as {newest}"
    return f"mcit: {what}, {saved}\nto resume: {how}"


def _do_nothing() -> None:
    pass


class Interruption:
    """Listens for SIGTERM, SIGINT, and SIGHUP unless that is ignored, as under `nohup`.

    Inside `held()` a signal is only remembered, for the holder to look at `asked` where it can
    stop; elsewhere it raises Interrupted at once. A second Ctrl-C raises KeyboardInterrupt wherever
    it arrives. Launchers pass on the first one, which has reached this process too, so that one at
    the same moment does not count.

    on_interrupt: called at the first Ctrl-C, at once.
    """

    def __init__(self, on_interrupt: Callable[[], None] = _do_nothing) -> None:
        self.asked = False
        self._on_interrupt = on_interrupt
        self._since = 0.0
        self._holders = 0
        self._process = os.getpid()

    @contextmanager
    def listening(self) -> Iterator[Interruption]:
        """Hear signals inside the block; only the main thread of a program can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay an interruption to the end of the block."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self.asked and not self._holders:
            raise Interrupted

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # a loader's worker, which has inherited this; the main process will end it
            return
        if self.asked:
            again = time.monotonic() - self._since > SAME_MOMENT
            if number == signal.SIGINT and again:
                raise KeyboardInterrupt
            return
        self.asked = True
        self._since = time.monotonic()
        if number == signal.SIGINT:
            self._on_interrupt()
        if not self._holders:
            raise Interrupted
