"""`mcit bench start`: how long the program takes to answer, and to take the first step of a run.

Every command is a process of its own, and so is `python -c "import torch"`, to which they are
compared; they run in turns. Seconds are those of the processor, which waiting for a busy machine
does not add to; on a free machine a command takes about as long by the clock. Each command runs
once before it is timed, so that data are parsed and files are in memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mcit.bench.measuring import Goal, is_met
from mcit.errors import McitError
from mcit.reports.formats import print_whole

TORCH = "import torch"
FIRST_STEP = "first step"
REFUSED = 2
# between two looks at a run's log
PAUSE = 0.005
RUN = ("run", "--order", "vqa", "--method", "ewc_dr")
# what is typed, and the exit code that it ends with
COMMANDS = {
    "list": (("list",), 0),
    "mistyped task": (("run", "--order", "vqaa"), REFUSED),
    "mistyped method": (("run", "--order", "vqa", "--method", "ewc-rd"), REFUSED),
    "mistyped option": ((*RUN, "--set", "method.strenght=1"), REFUSED),
}
# seconds of the processor
GOALS: dict[str, Goal] = {
    **dict.fromkeys(COMMANDS, ("at most", 1.0)),
    FIRST_STEP: ("at most", 6.0),
}


@dataclass(frozen=True)
class Spent:
    """Seconds of a process, by the processor and by the clock."""

    processor: float
    clock: float


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the seconds of every command, and their ratios to an import of torch."""
    contenders: dict[str, Callable[[], Spent]] = {TORCH: time_import}
    for name, (words, code) in COMMANDS.items():
        contenders[name] = partial(time_command, words, code)
    contenders[FIRST_STEP] = time_first_step
    rounds = 1 if quick else 5
    found: dict[str, list[Spent]] = {name: [] for name in contenders}
    for number in range(1 + rounds):
        for name, contender in contenders.items():
            spent = contender()
            if number:
                found[name].append(spent)
    processor = {name: min(each.processor for each in times) for name, times in found.items()}
    clock = {name: min(each.clock for each in times) for name, times in found.items()}
    return {
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "seconds": processor,
        "clock_seconds": clock,
        "over_import_torch": {
            name: seconds / processor[TORCH] for name, seconds in processor.items() if name != TORCH
        },
    }


def time_import() -> Spent:
    """Return how long `python -c "import torch"` takes."""
    return _time([sys.executable, "-c", TORCH], lambda process: _expect(process, 0))


def time_command(words: Sequence[str], code: int) -> Spent:
    """Return how long a command of mcit takes, which ends with an exit code."""
    return _time([*_mcit(), *words], lambda process: _expect(process, code))


def time_first_step() -> Spent:
    """Return how long a run takes until its first step is in the log; it is stopped there."""
    with tempfile.TemporaryDirectory(prefix="mcit-bench-") as folder:
        output = Path(folder) / "run"
        words = [*RUN, "--quiet", "--output", str(output), "--set", "training.log_every=1"]

        def stop_at_first_step(process: subprocess.Popen) -> None:
            while not _has_step(output / "log.jsonl"):
                if process.poll() is not None:
                    _expect(process, 0)
                    raise McitError("a run ended without a step in its log; cannot time it")
                time.sleep(PAUSE)
            process.kill()
            process.wait()

        return _time([*_mcit(), *words], stop_at_first_step)


def print_result(result: dict[str, Any]) -> None:
    """Print a table of seconds and ratios."""
    console = Console(highlight=False)
    table = Table(title="mcit bench start", title_justify="left")
    for name in ("until", "CPU s", "clock s", "/ import torch", "goal (CPU s)", ""):
        table.add_column(name, justify="left" if name == "until" else "right")
    for name, seconds, goal in list_figures(result):
        ratio = result["over_import_torch"].get(name)
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{result['clock_seconds'][name]:.2f}",
            "" if ratio is None else f"{ratio:.2f}",
            *_judge(seconds, goal),
        )
    print_whole(table, console)


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what is waited for, the seconds of the processor and their goal, if there is one."""
    for name, seconds in result["seconds"].items():
        yield name, seconds, GOALS.get(name)


def _judge(seconds: float, goal: Goal | None) -> tuple[str, str]:
    """Return a goal in words, and whether it was met."""
    if goal is None:
        return "", ""
    direction, limit = goal
    return f"{direction} {limit:g}", "met" if is_met(seconds, goal) else "missed"


def _mcit() -> list[str]:
    return [sys.executable, "-m", "mcit"]


def _time(command: Sequence[str], wait: Callable[[subprocess.Popen], None]) -> Spent:
    """Return how long a process takes that `wait` brings to its end."""
    before = _children_seconds()
    begun = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        wait(process)
    clock = time.perf_counter() - begun
    return Spent(_children_seconds() - before, clock)


def _expect(process: subprocess.Popen, code: int) -> None:
    """Read what a process prints until it ends; raise if it ends in another way than it should."""
    printed, _ = process.communicate()
    if process.returncode != code:
        raise McitError(
            f"{process.args!r} ended with {process.returncode} instead of {code}:\n{printed}"
        )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _has_step(log: Path) -> bool:
    """Whether a run has taken a step; its last line may be half written."""
    if not log.is_file():
        return False
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return any(entry["event"] == "step" for entry in whole)
