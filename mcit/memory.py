"""The most memory that this process has held: of all its life, and of a part of it."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

# Linux lets the peak of a process begin anew when this is written there
RESET = Path("/proc/self/clear_refs")
WHOLE_LIFE = "5"
STATUS = Path("/proc/self/status")
PEAK = "VmHWM:"


def begin_peak() -> None:
    """Let the peak begin anew, where `read_peak` can tell it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif can_begin_anew():
        RESET.write_text(WHOLE_LIFE, encoding="utf-8")


def read_peak() -> int | None:
    """Return the most bytes since `begin_peak`, of the GPU if there is one; None if unknown."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if not can_begin_anew():
        return None
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    (found,) = [line.split() for line in lines if line.startswith(PEAK)]
    return int(found[1]) * 1024


def read_peak_of_life() -> int:
    """Return the most bytes that this process has held, where no peak begins anew."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def can_begin_anew() -> bool:
    """Whether the system lets the peak of a process begin anew."""
    return RESET.is_file() and os.access(RESET, os.W_OK) and STATUS.is_file()
