"""How a run was started: which processes belong to it, and whether all that were asked for did."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState

from mcit.errors import ConfigError
from mcit.parallel.fsdp import find_sharding_problems, is_set

CPU_FILE = "configs/accelerate/cpu2.yaml"
MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
ACCELERATE = (
    ("accelerate", "launch"),
    ("accelerate-launch",),
    ("python", "-m", "accelerate.commands.accelerate_cli", "launch"),
    ("python", "-m", "accelerate.commands.launch"),
)
# the value of training.mixed_precision that leaves the choice to the device
AUTO = "auto"
# instructions of x86 processors that multiply matrices in bfloat16
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
_SAYS_CAPABILITIES = hasattr(torch.cpu, "get_capabilities")
# variables that a launcher of several processes sets in each of them
SEVERAL = ("WORLD_SIZE", "LOCAL_RANK", *MPI_SIZES)


@dataclass(frozen=True)
class Launcher:
    """The process that started this one, and what was typed, with the script's name."""

    pid: int
    words: tuple[str, ...]

    @property
    def starts_one(self) -> bool:
        """Whether it is `accelerate launch` with this process alone."""
        known = any(self.words[: len(form)] == form for form in ACCELERATE)
        return known and not any(name in os.environ for name in SEVERAL)


def join_processes() -> PartialState:
    """Meet the processes that were started together with this one; raise if a run cannot use them.

    Without a GPU they meet over gloo: accelerate by itself would take each for the only one.
    """
    problems = find_sharding_problems(os.environ)
    if problems:
        raise ConfigError(problems)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not torch.accelerator.is_available():
        # read by the Accelerator, which is made later
        os.environ["ACCELERATE_USE_CPU"] = "true"
    state = PartialState(cpu=is_set(os.environ, "ACCELERATE_USE_CPU"))
    if state.num_processes < started:
        device = state.device.type
        raise ConfigError(
            [
                f"{started} processes were started, but each works as if it were alone ({device}); "
                "set ACCELERATE_USE_CPU=true to run them together on CPUs"
            ]
        )
    return state


def choose_precision(asked: str | None) -> str:
    """Return the precision for accelerate: with `auto`, bf16 where the device multiplies in it.

    Elsewhere 16 bits are slower than 32: processors without such instructions emulate them. None
    stands for what the launcher says.
    """
    if asked is None:
        return os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if asked != AUTO:
        return asked
    device = PartialState().device.type
    if device == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # earlier versions of torch do not say
        capabilities = torch.cpu.get_capabilities() if _SAYS_CAPABILITIES else {}
        fast = device == "cpu" and any(capabilities.get(name) for name in BF16_INSTRUCTIONS)
    return "bf16" if fast else "no"


def make_accelerator(precision: str, **options: Any) -> Accelerator:
    """Return an Accelerator of this precision, whatever an earlier run of the program had."""
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision, **options)


def find_precision_problems(asked: str | None) -> list[str]:
    """Return why this device cannot train in the precision that is asked for."""
    device = PartialState().device.type
    if choose_precision(asked) == "fp16" and device == "cpu":
        return [
            "training.mixed_precision is 'fp16', which accelerate does not support on a CPU: the "
            "run would use single precision and report fp16; use 'bf16' or 'no'"
        ]
    return []


def find_missing(environment: Mapping[str, str]) -> str | None:
    """Return a warning if `accelerate launch` was asked for several processes and started one.

    It does so on CPUs, where it says to the process where to meet the others, but not how many.
    """
    launched = "ACCELERATE_DYNAMO_BACKEND" in environment and "MASTER_ADDR" in environment
    if not launched or any(name in environment for name in SEVERAL):
        return None
    return (
        "accelerate launch seems to have been asked for several processes but started one; the "
        "scores will be the same, but take longer. To start several on CPUs: "
        f"accelerate launch --config_file {CPU_FILE} --num_processes N ..."
    )


def find_launcher() -> Launcher | None:
    """Return what launched this script, as `accelerate launch` or `torchrun` do, or None.

    A launcher's command line ends with that of the script; it can be read if there is a /proc.
    """
    parent = os.getppid()
    try:
        written = Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    words = written.rstrip("\0").split("\0")
    script, *options = sys.argv
    front = words[: len(words) - len(options)]
    if words[len(front) :] != options or len(front) < 2:
        return None
    if Path(front[-1]).name != Path(script).name:
        return None
    return Launcher(parent, tuple(_shorten_program(front)))


def describe_command() -> list[str]:
    """Return the words that start this program again as it was started, launcher included."""
    script, *options = sys.argv
    if Path(script).name in ("", "mcit", "__main__.py"):
        return ["mcit", *options]
    launcher = find_launcher()
    if launcher is None:
        return ["python", script, *options]
    return [*launcher.words, *options]


def end_launcher() -> bool:
    """End the `accelerate launch` that started this process alone; return whether there is one.

    It passes no exit code on: it answers any code but 0 with a traceback and 1, and Ctrl-C with a
    traceback, a quarter of a second after it, whether or not its child is done.
    """
    launcher = find_launcher()
    if launcher is None or not launcher.starts_one:
        return False
    os.kill(launcher.pid, signal.SIGTERM)
    return True


def _shorten_program(words: list[str]) -> list[str]:
    """Return a command as one types it, without Python and the folder of an installed program."""
    if not Path(words[0]).name.startswith("python"):
        return [Path(words[0]).name, *words[1:]]
    if words[1].startswith("-") or len(words) == 2:
        return ["python", *words[1:]]
    return [Path(words[1]).name, *words[2:]]
