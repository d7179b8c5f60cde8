"""Sharded tensors: every process holds a part, as FSDP2's `fully_shard` makes them (DTensor).

All functions also take ordinary tensors, which are their own and only part, at no cost.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Reduction = Literal["sum", "max"]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether the tensor is a DTensor, of which other processes hold the rest."""
    # importing DTensor to ask takes about as long as importing torch: ask for what only it has
    return hasattr(tensor, "device_mesh")


@torch.no_grad()
def to_local(tensor: Tensor) -> Tensor:
    """Return this process's part, in the tensor's own memory."""
    if is_sharded(tensor):
        return tensor.to_local()
    return tensor


def from_local(part: Tensor, like: Tensor) -> Tensor:
    """Return the tensor that `part` is this process's part of, sharded as `like` is."""
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
def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of `value`, full or sharded, that this process holds of `like`."""
    if not is_sharded(like):
        return full(value)
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    if not is_sharded(value):
        # every process has all of it: declaring it replicated causes no traffic
        everywhere = [Replicate()] * mesh.ndim
        value = value.to(to_local(like).device)
        value = DTensor.from_local(value, mesh, everywhere, run_check=False)
    return value.redistribute(mesh, like.placements).to_local()


@torch.no_grad()
def full(tensor: Tensor) -> Tensor:
    """Return all of the tensor. If it is sharded, every process must call."""
    if is_sharded(tensor):
        return tensor.full_tensor()
    return tensor


def separate(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return a list of sharded tensors and one of others, if any: no operation takes both."""
    tensors = list(tensors)
    sharded: list[Tensor] = [tensor for tensor in tensors if is_sharded(tensor)]
    ordinary = [tensor for tensor in tensors if not is_sharded(tensor)]
    return [each for each in (sharded, ordinary) if each]


@torch.no_grad()
def average_whole_gradients(parameters: Iterable[Tensor]) -> None:
    """Average over processes the gradients of parameters that are not sharded, as DDP would.

    FSDP has averaged those of the others. All processes must call.
    """
    gradients = [p.grad for p in parameters if p.grad is not None and not is_sharded(p)]
    alike: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        alike.setdefault(gradient.dtype, []).append(gradient)
    for group in alike.values():
        # in one message
        flat = torch.cat([gradient.flatten() for gradient in group])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [gradient.numel() for gradient in group]
        for gradient, part in zip(group, flat.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def measure_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of all tensors as one vector. All processes must call."""
    squares = []
    for tensor in tensors:
        length = torch.linalg.vector_norm(to_local(tensor), dtype=torch.float64)
        squares.append((tensor, length.square()))
    return reduce_parts(squares).sqrt()


def gather_state(state: Any, keep: bool) -> Any:
    """Return a nested state with whole tensors, on the CPU, in place of sharded ones.

    All processes must call. One that is not to keep them gets None in their place.
    """
    if isinstance(state, Tensor) and is_sharded(state):
        # one at a time: a device never holds all of a model
        whole = full(state.detach())
        return whole.cpu() if keep else None
    if isinstance(state, Mapping):
        return {key: gather_state(value, keep) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [gather_state(value, keep) for value in state]
    return state


def distribute(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor sharded as `like` is; as it is if that is not sharded."""
    if not is_sharded(like):
        return value
    return from_local(shard_like(value, like), like)


def reduce_parts(numbers: Iterable[tuple[Tensor, Tensor]], reduction: Reduction = "sum") -> Tensor:
    """Return the sum, or the maximum, over all parts of all tensors, as a double on the CPU.

    `numbers` pairs each tensor with a number about this process's part of it. If any tensor is
    sharded, every process must call.
    """
    merge = torch.add if reduction == "sum" else torch.maximum
    # numbers are merged where they are first, so that each device is read once
    totals: dict[Any, Tensor] = {}
    for tensor, number in numbers:
        number = number.detach().double()
        key = (_find_groups(tensor), number.device)
        if key in totals:
            number = merge(totals[key], number)
        totals[key] = number
    reduced = []
    for (groups, _), total in totals.items():
        for mesh, dimension in groups:
            total = _all_reduce(total, mesh, dimension, reduction)
        reduced.append(total.cpu())
    if not reduced:
        return torch.zeros((), dtype=torch.float64)
    return functools.reduce(merge, reduced)


def _find_groups(tensor: Tensor) -> tuple[tuple[Any, int], ...]:
    """Return the mesh and those of its dimensions along which processes hold different parts."""
    if not is_sharded(tensor):
        return ()
    # along the other dimensions they hold copies
    dimensions = [n for n, place in enumerate(tensor.placements) if not place.is_replicate()]
    return tuple((tensor.device_mesh, dimension) for dimension in dimensions)


def _all_reduce(number: Tensor, mesh: Any, dimension: int, reduction: Reduction) -> Tensor:
    operation = dist.ReduceOp.SUM if reduction == "sum" else dist.ReduceOp.MAX
    number = number.to(mesh.device_type, copy=True)
    dist.all_reduce(number, operation, group=mesh.get_group(dimension))
    return number
