"""What the processes of a run tell each other; each function is called by all of them, or by none."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, reduce


def gather(value: Any) -> list[Any]:
    """The value of every process, in the order of their numbers."""
    return gather_object([value]) if PartialState().num_processes > 1 else [value]


def share(value: Any) -> Any:
    """The main process's value."""
    return broadcast_object_list([value])[0] if PartialState().num_processes > 1 else value


def agree(*flags: bool) -> tuple[bool, ...]:
    """Of each flag, whether any process has raised it."""
    state = PartialState()
    if state.num_processes == 1:
        return flags
    raised = torch.tensor([int(flag) for flag in flags], device=state.device)
    return tuple(bool(count) for count in reduce(raised, reduction="sum"))
