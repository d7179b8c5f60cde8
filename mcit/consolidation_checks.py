"""What a consolidation refuses, before anything has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from mcit.parallel.sharded import combine, is_sharded, local

Merge = Literal["sum", "online", "share", "latest"]
MERGES: tuple[Merge, ...] = ("sum", "online", "share", "latest")


def check_settings(strength: float, merge: str, decay: float) -> None:
    """A known rule and numbers within their bounds."""
    if merge not in MERGES:
        raise ValueError(f"unknown merge rule {merge!r} (rules: {', '.join(MERGES)})")
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength must be a number from 0, found {strength}")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must lie between 0 and 1, found {decay}")


def check_numbers(what: str, values: Mapping[str, Tensor], least: float = -math.inf) -> None:
    """All finite and none below `least`; what one process finds in its part of a sharded tensor, all refuse."""
    wrong = {name: _count_wrong(local(value), least) for name, value in values.items()}
    if float(combine((values[name], count) for name, count in wrong.items())):
        first = next((repr(name) for name, count in wrong.items() if count), "a tensor of which others hold a part")
        kind = "non-finite" if least == -math.inf else "negative or non-finite"
        raise ValueError(f"the {what} of {first} has {kind} values; nothing was changed")


def check_grown(name: str, held: Tensor, parameter: Tensor) -> None:
    """The parameter is as it was when `held` was measured, or has more rows."""
    same = held.shape[1:] == parameter.shape[1:] and held.ndim == parameter.ndim
    change = f"{name!r} was consolidated as {list(held.shape)} and is now {list(parameter.shape)}"
    if not same or (held.ndim and len(held) > len(parameter)):
        raise ValueError(f"{change}: a tensor may only gain rows")
    if held.shape != parameter.shape and is_sharded(parameter):
        raise ValueError(
            f"{change}, and it is sharded: its old rows now lie in other processes; leave a head that grows out of the "
            "sharding (ignored_params of fully_shard), or give it all its rows before it is sharded"
        )


def _count_wrong(part: Tensor, least: float) -> Tensor:
    return torch.logical_not(part.isfinite() & (part >= least)).sum()
