"""Ctrl-C, SIGTERM and the end of a terminal: a run ends where it can go on from."""

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

from mcit.runner.run_folder import find_newest

SAME_MOMENT = 1.0  # seconds
CODE = 75  # what a program returns that was asked to stop and can be resumed: EX_TEMPFAIL of sysexits.h


class Interrupted(RuntimeError):
    """The run was asked to stop; what was saved by then is on disk."""


def explain_resumption(output: Path, processes: int, what: str = "interrupted") -> str:
    """What a run that ended early has saved, and the command that goes on with it."""
    newest, options = find_newest(output), f"--resume --output {shlex.quote(str(output))}"
    if not (output / "config.yaml").is_file():
        how = "the same command again"
    elif processes > 1:
        how = f"launch {processes} processes as before, with {options}"
    else:
        how = f"mcit run {options}"
    saved = f"saved as {newest}" if newest else "before anything was saved"
    return f"mcit: {what}, {saved}\nto go on: {how}"


class Interruption:
    """Listens for SIGTERM, SIGINT, and SIGHUP unless that is ignored, as `nohup` has it.

    Within `held()` a signal is only remembered, for the holder to ask `asked` where it can stop; elsewhere it raises
    Interrupted at once. A second Ctrl-C raises KeyboardInterrupt wherever it arrives; launchers pass on the first one,
    which has reached this process too, so that one at the same moment does not count.
    """

    def __init__(self, on_interrupt: Callable[[], None] = lambda: None) -> None:
        self.asked = False
        self._on_interrupt = on_interrupt  # called at the first Ctrl-C, at once
        self._since = 0.0  # when it was asked for
        self._holders = 0
        self._process = os.getpid()

    @contextmanager
    def listening(self) -> Iterator[Interruption]:
        """Signals are heard within; only the main thread of a program can listen."""
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
        """Nothing is interrupted within; what was asked for meanwhile happens at the end."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self.asked and not self._holders:
            raise Interrupted

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a loader's worker, which has inherited this; the main process will end it
        if self.asked:
            again = number == signal.SIGINT and time.monotonic() - self._since > SAME_MOMENT
            if again:
                raise KeyboardInterrupt
            return
        self.asked, self._since = True, time.monotonic()
        if number == signal.SIGINT:
            self._on_interrupt()
        if not self._holders:
            raise Interrupted
