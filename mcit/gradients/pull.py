"""The gradient of a quadratic penalty: gradient += strength * importance * (weight - anchor).

Nothing but memory traffic limits this step, so that

    small tensors   are handled all together: a call from Python costs more than their arithmetic
    large tensors   are handled in pieces: what is computed in between stays in the cache, and main
                    memory is read and written once

The four tensors of a parameter have the same memory layout, in which they are read as they lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# elements handled at once on a CPU: scratch memory stays in the cache
CHUNK = 1 << 18
# up to so many elements a tensor is small
SMALL = 1 << 15


@dataclass(frozen=True)
class Held:
    """Rows of a weight that are held, and importance and anchor of these rows.

    weight: The rows, without gradient; of a sharded parameter, this process's part.
    parameter: The parameter that they belong to.
    """

    weight: Tensor
    parameter: nn.Parameter
    importance: Tensor
    anchor: Tensor


@dataclass(frozen=True)
class Pull:
    """What is held of a parameter, and the gradient that it adds to."""

    gradient: Tensor
    held: Held

    @property
    def has_one_type(self) -> bool:
        """Whether gradient, weight and anchor have one type."""
        return self.gradient.dtype == self.held.weight.dtype == self.held.anchor.dtype

    @property
    def is_flat(self) -> bool:
        """Whether all tensors fill a piece of memory, in the same order."""
        held = self.held
        order = held.weight.stride()
        others = (self.gradient, held.anchor, held.importance)
        return _lies_densely(held.weight) and all(other.stride() == order for other in others)


@torch.no_grad()
def add_pulls(pulls: Iterable[Pull], strength: float) -> None:
    """Add strength * importance * (weight - anchor) to every gradient."""
    together: dict[tuple[torch.device, torch.dtype], list[Pull]] = {}
    for pull in pulls:
        weight = pull.held.weight
        if not pull.has_one_type:
            _add_mixed(pull, strength)
        elif weight.numel() <= SMALL:
            together.setdefault((weight.device, weight.dtype), []).append(pull)
        elif weight.device.type == "cpu" and pull.is_flat:
            _add_in_chunks(pull, strength)
        else:
            _add_together([pull], strength)
    for group in together.values():
        _add_together(group, strength)


def _add_mixed(pull: Pull, strength: float) -> None:
    """Add a pull to a gradient of another type, such as of 16 bits."""
    held = pull.held
    away = (held.weight - held.anchor).mul_(held.importance).mul_(strength)
    pull.gradient.add_(away.to(pull.gradient.dtype))


def _add_together(pulls: list[Pull], strength: float) -> None:
    """Add pulls of one device and type by few calls."""
    away = torch._foreach_sub(
        [pull.held.weight for pull in pulls], [pull.held.anchor for pull in pulls]
    )
    factors = [pull.held.importance for pull in pulls]
    if any(factor.dtype != weight.dtype for factor, weight in zip(factors, away, strict=True)):
        factors = [factor.to(away[0].dtype) for factor in factors]
    torch._foreach_addcmul_([pull.gradient for pull in pulls], factors, away, value=strength)


def _lies_densely(tensor: Tensor) -> bool:
    """Whether a tensor fills a piece of memory, in whatever order."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def _flatten(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor in the order in which they lie."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _add_in_chunks(pull: Pull, strength: float) -> None:
    held = pull.held
    tensors = (pull.gradient, held.weight, held.anchor, held.importance)
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
