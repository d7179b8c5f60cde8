"""Runs that are killed and resumed: a clock that ticks wherever a process could die, and what is
left.

As a program it stops a run and resumes it, in however many processes it was launched.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from safetensors.torch import load_file
from tiny_run import assert_identical, resolve
from torch import Tensor

from mcit import checkpoint
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.importance import Importance
from mcit.models.learner import Learner
from mcit.runner import run_folder
from mcit.runner.interruption import Interrupted, Interruption
from mcit.runner.result import Result
from mcit.sequence import run
from mcit.training.trainer import Trainer

# Where a kill can fall: a forward pass (of a step, of the importance pass, of scoring), a file that
# is being flushed, a checkpoint that is complete but not in its place, one that is being removed,
# and a line of the log.
PLACES = (
    (Learner, "forward"),
    (checkpoint, "flush"),
    (checkpoint.os, "replace"),
    (checkpoint.shutil, "rmtree"),
    (run_folder.RunLog, "__call__"),
)


class Killed(BaseException):
    """As sudden as SIGKILL: nothing that handles exceptions catches it."""


class Clock:
    """Counts the ticks of a run, and kills it at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.ticks, self.last, self.places = 0, None, Counter()
        for owner, name in PLACES:
            patch.setattr(
                owner, name, self._ticking(f"{owner.__name__}.{name}", getattr(owner, name))
            )

    def wind(self, last: int | None) -> None:
        self.ticks, self.last = 0, last

    def _ticking(self, place: str, function: Callable) -> Callable:
        def ticking(*arguments: Any, **options: Any) -> Any:
            self.ticks += 1
            self.places[place] += 1
            if self.ticks == self.last:
                raise Killed(place)
            return function(*arguments, **options)

        return ticking


# What changes files, by the names of Python's audit events; `open` counts if it is for writing.
CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run_and_kill(function: Callable[[], Any], folder: Path, last: int | None = None) -> int:
    """Call a function in a process that is killed just before its `last` call that changes a file.

    Return the number of such calls in the folder, of a process that was not killed. Bringing a file
    onto the disk is counted, and left out: what the system holds survives a process.
    """
    receiving, sending = os.pipe()
    process = os.fork()
    if process == 0:
        calls = 0

        def count() -> None:
            nonlocal calls
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)

        def hear(event: str, arguments: tuple) -> None:
            changing = event in CHANGES and (event != "open" or arguments[2] & WRITING)
            if changing and str(arguments[0]).startswith(str(folder)):
                count()

        sys.addaudithook(hear)
        os.fsync = lambda handle: count()
        code = 1
        try:
            function()
            os.write(sending, str(calls).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        counted = pipe.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert ended == (0 if last is None else -signal.SIGKILL)
    return int(counted or last or 0)


def start(config: RunConfig, output: Path, say: Any = lambda line: None, **options: Any) -> Result:
    """A run in new objects, as in a new process."""
    return run(resolve(config), output, progress=False, say=say, **options)


def read_scores(folder: Path) -> dict[str, Any]:
    """scores.json without what depends on the wall clock."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    scores["cost"] = {
        key: value for key, value in scores["cost"].items() if not key.endswith("_seconds")
    }
    return scores


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights that a finished run ended with."""
    (last,) = checkpoint.list_checkpoints(folder / "checkpoints")
    assert last.name.endswith("-done")
    return load_file(last / "learner.safetensors")


def read_events(folder: Path, resumed: bool = False) -> list[dict[str, Any]]:
    """The log without its times and costs: of what happened, or of where the run was resumed."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [
        {k: v for k, v in json.loads(line).items() if k != "time" and "seconds" not in k}
        for line in lines
    ]
    return [entry for entry in entries if (entry["event"] == "resumed") == resumed]


def read_importance(folder: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What the files of importance that a run kept say of themselves, and what they hold."""
    found = {
        path.name: Importance.load(path) for path in (folder / run_folder.IMPORTANCE).glob("*")
    }
    values = {
        f"{file}/{name}": value for file, one in found.items() for name, value in one.values.items()
    }
    return {file: one.describe() for file, one in found.items()}, values


def assert_same_importance(found: Path, expected: Path) -> None:
    """The same files with the same bits."""
    (found_about, found_values), (about, values) = read_importance(found), read_importance(expected)
    assert found_about == about
    assert_identical(found_values, values)


def assert_same_end(found: Path, expected: Path) -> None:
    """Scores, weights and importance to the last bit, and every step logged once."""
    assert read_scores(found) == read_scores(expected)
    assert_identical(read_weights(found), read_weights(expected))
    assert_same_importance(found, expected)
    assert read_events(found) == read_events(expected)


def kill_until_finished(
    clock: Clock, config: RunConfig, output: Path, ticks: int, kills: int, seed: int
) -> list[str]:
    """Kill the run at random ticks, resume after each, let it finish; return the places of the
    kills."""
    draw, places = random.Random(seed), []
    for number in range(kills):
        clock.wind(draw.randint(1, max(2, ticks // kills)))
        try:
            start(config, output, resume=number > 0)
        except Killed as killed:
            places.append(str(killed))
    clock.wind(None)
    start(config, output, resume=True)
    return places


def stop_after(
    steps: int, config: RunConfig, output: Path, number: int = signal.SIGTERM, **options: Any
) -> None:
    """Signal this process in the middle of so many steps; 0: never. The run must end by itself."""
    take_step, left = Trainer._take_step, [steps]

    def send(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(number)
        take_step(*arguments)

    patch = pytest.MonkeyPatch()
    patch.setattr(Trainer, "_take_step", send)
    try:
        with Interruption().listening() as interruption, pytest.raises(Interrupted):
            start(config, output, interruption=interruption, **options)
    finally:
        patch.undo()


def main(path: str) -> None:
    """In several processes: a run, the same stopped by a signal to one of them, and resumed by
    all."""
    folder = Path(path)
    rank = Accelerator(cpu=True).process_index
    config = parse(RunConfig, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    start(config, folder / "whole")
    stop_after(6 if rank else 0, config, folder / "stopped")
    start(config, folder / "stopped", resume=True)


if __name__ == "__main__":
    main(sys.argv[1])
