"""What the processes of a run exchange; every function is called by all of them, or by none."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, reduce


def gather(value: Any) -> list[Any]:
    """Return the value of every process, in the order of their numbers."""
    if PartialState().num_processes == 1:
        return [value]
    return gather_object([value])


def broadcast(value: Any) -> Any:
    """Return the main process's value."""
    if PartialState().num_processes == 1:
        return value
    return broadcast_object_list([value])[0]


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether any process has raised it."""
    state = PartialState()
    if state.num_processes == 1:
        return flags
    raised = torch.tensor([int(flag) for flag in flags], device=state.device)
    return tuple(bool(count) for count in reduce(raised, reduction="sum"))
