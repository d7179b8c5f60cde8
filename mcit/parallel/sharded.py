"""Tensors of which every process holds a part, as FSDP2's `fully_shard` makes them: parts, wholes, numbers over all.

What is said here of a sharded tensor costs nothing for an ordinary one, which is a whole by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Reduction = Literal["sum", "max"]


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which other processes hold the rest."""
    # by what only a DTensor has: importing its module takes a good part of the time that torch itself takes
    return hasattr(tensor, "device_mesh")


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This process's part, in the tensor's own memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def wrap(part: Tensor, like: Tensor) -> Tensor:
    """A part as the sharded tensor it is a part of; `like` is cut in the same way."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


@torch.no_grad()
def cut(value: Tensor, like: Tensor) -> Tensor:
    """This process's part of `value`, which is a whole or sharded, where `like` is cut."""
    if not is_sharded(like):
        return whole(value)
    from torch.distributed.tensor import DTensor, Replicate

    if not is_sharded(value):
        mesh = like.device_mesh
        value = value.to(local(like).device)
        value = DTensor.from_local(
            value, mesh, [Replicate()] * mesh.ndim, run_check=False
        )  # all have it: no traffic
    return value.redistribute(like.device_mesh, like.placements).to_local()


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """All of it; of a sharded tensor, every process must ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def combine(numbers: Iterable[tuple[Tensor, Tensor]], reduction: Reduction = "sum") -> Tensor:
    """Numbers of parts, each beside the tensor it is about, added up (or their largest) over all parts of all tensors.

    If any is sharded, every process must ask. In double precision, on the CPU.
    """
    merge = torch.add if reduction == "sum" else torch.maximum
    totals: dict[Any, Tensor] = {}
    for tensor, number in numbers:
        mesh = (tensor.device_mesh, _sharded_dimensions(tensor)) if is_sharded(tensor) else None
        key, number = (mesh, number.device), number.detach().double()
        totals[key] = (
            merge(totals[key], number) if key in totals else number
        )  # a device is asked once, at the end
    result = None
    for (mesh, _), total in totals.items():
        total = total.cpu() if mesh is None else _reduce(total, *mesh, reduction)
        result = total if result is None else merge(result, total)
    return torch.zeros((), dtype=torch.float64) if result is None else result


def _reduce(number: Tensor, mesh: Any, dimensions: tuple[int, ...], reduction: Reduction) -> Tensor:
    number = number.to(mesh.device_type, copy=True)
    for dimension in dimensions:
        operation = dist.ReduceOp.SUM if reduction == "sum" else dist.ReduceOp.MAX
        dist.all_reduce(number, operation, group=mesh.get_group(dimension))
    return number.cpu()


def _sharded_dimensions(tensor: Tensor) -> tuple[int, ...]:
    """Those of the mesh along which processes hold different parts; along the others they hold copies."""
    return tuple(
        number for number, placement in enumerate(tensor.placements) if not placement.is_replicate()
    )
