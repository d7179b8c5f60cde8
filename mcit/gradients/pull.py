"""The gradient of a quadratic penalty: gradient += strength * importance * (weight - anchor).

Nothing but memory traffic limits this step, so that

    small tensors   are handled all together: a call from Python costs more than their arithmetic
    large tensors   are handled in pieces: what is computed in between stays in the cache, and main
                    memory is read and written once

The four tensors of a parameter have the same memory layout, in which they are read as they lie.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mcit.parallel.sharded import is_sharded, to_local

# elements handled at once on a CPU: scratch memory stays in the cache
CHUNK = 1 << 18
# up to so many elements a tensor is small
SMALL = 1 << 15


class Held:
    """Rows of a weight that are held, and importance and anchor of these rows.

    weight: The rows, without gradient; of a sharded parameter, this process's part.
    parameter: The parameter that they belong to.
    """

    __slots__ = (
        "anchor",
        "importance",
        "is_flat",
        "is_whole",
        "kind",
        "parameter",
        "size",
        "weight",
    )

    def __init__(self, weight: Tensor, parameter: nn.Parameter, importance: Tensor, anchor: Tensor):
        self.weight = weight
        self.parameter = parameter
        self.importance = importance
        self.anchor = anchor
        # looked up once, because a step has little time
        self.size = weight.numel()
        self.kind = (weight.device, weight.dtype, anchor.dtype)
        self.is_whole = weight.shape == parameter.shape and not is_sharded(parameter)
        order = weight.stride()
        alike = anchor.stride() == order and importance.stride() == order
        self.is_flat = alike and _lies_densely(weight)

    def find_gradient(self) -> Tensor:
        """Return the gradient of the held rows; zeros if there is none yet."""
        gradient = self.parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(self.parameter)
            self.parameter.grad = gradient
        if self.is_whole:
            return gradient
        gradient = to_local(gradient)
        if gradient.shape == self.weight.shape:
            return gradient
        return gradient[: len(self.weight)]


@torch.no_grad()
def add_pulls(helds: Iterable[Held], strength: float) -> None:
    """Add strength * importance * (weight - anchor) to the gradients of all parameters."""
    together: dict[tuple, list[tuple[Tensor, Held]]] = {}
    for held in helds:
        gradient = held.find_gradient()
        _, weight_type, anchor_type = held.kind
        if not gradient.dtype == weight_type == anchor_type:
            _add_mixed(gradient, held, strength)
        elif held.size <= SMALL:
            together.setdefault(held.kind, []).append((gradient, held))
        elif held.size > CHUNK and _can_be_cut(gradient, held):
            _add_in_chunks(gradient, held, strength)
        else:
            factor = held.importance.to(weight_type)
            gradient.addcmul_(factor, held.weight - held.anchor, value=strength)
    for group in together.values():
        _add_together(group, strength)


def _add_mixed(gradient: Tensor, held: Held, strength: float) -> None:
    """Add to a gradient of another type, such as of 16 bits."""
    away = (held.weight - held.anchor).mul_(held.importance).mul_(strength)
    gradient.add_(away.to(gradient.dtype))


def _add_together(group: list[tuple[Tensor, Held]], strength: float) -> None:
    """Add to the gradients of small tensors of one device and type, by few calls."""
    gradients = [gradient for gradient, _ in group]
    away = torch._foreach_sub(
        [held.weight for _, held in group], [held.anchor for _, held in group]
    )
    factors = [held.importance for _, held in group]
    if factors[0].dtype != away[0].dtype:
        factors = [factor.to(away[0].dtype) for factor in factors]
    torch._foreach_addcmul_(gradients, factors, away, value=strength)


def _can_be_cut(gradient: Tensor, held: Held) -> bool:
    """Whether all tensors fill a piece of main memory, in the same order."""
    on_cpu = gradient.device.type == "cpu"
    return on_cpu and held.is_flat and gradient.stride() == held.weight.stride()


def _lies_densely(tensor: Tensor) -> bool:
    """Whether a tensor fills a piece of memory, in whatever order."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def _flatten(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor in the order in which they lie."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _add_in_chunks(gradient: Tensor, held: Held, strength: float) -> None:
    tensors = (gradient, held.weight, held.anchor, held.importance)
    chunks = [_flatten(tensor).split(CHUNK) for tensor in tensors]
    scratch = torch.empty(CHUNK, dtype=held.weight.dtype)
    wide = scratch
    if held.importance.dtype != held.weight.dtype:
        wide = torch.empty_like(scratch)
    for piece, now, then, factor in zip(*chunks, strict=True):
        away = torch.sub(now, then, out=scratch[: len(now)])
        if wide is not scratch:
            factor = wide[: len(now)].copy_(factor)
        piece.addcmul_(factor, away, value=strength)
