"""The gradient of a quadratic penalty: gradient += strength * importance * (weight - anchor).

Nothing but memory traffic limits this step, so that

    small tensors   are handled in groups: a call from Python costs more than their arithmetic
    large tensors   are handled in pieces

Groups and pieces are of a size at which what is computed in between stays in the cache, so that
main memory is read and written once. Which they are is looked up once and not in every step.
The four tensors of a parameter have the same memory layout, in which they are read as they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from mcit.parallel.sharded import is_sharded, to_local

# elements handled at once on a CPU: what lies between two operations stays in the cache
CHUNK = 1 << 18
# up to so many elements a tensor is small
SMALL = 1 << 16


class Held:
    """Rows of a weight that are held, and importance and anchor of these rows.

    weight: The rows, without gradient; of a sharded parameter, this process's part.
    parameter: The parameter that they belong to.
    """

    __slots__ = ("anchor", "importance", "is_whole", "parameter", "weight")

    def __init__(self, weight: Tensor, parameter: nn.Parameter, importance: Tensor, anchor: Tensor):
        self.weight = weight
        self.parameter = parameter
        self.importance = importance
        self.anchor = anchor
        self.is_whole = weight.shape == parameter.shape and not is_sharded(parameter)

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


class Pulls:
    """All that is held, in the order and the pieces in which a step goes through it."""

    def __init__(self, helds: Sequence[Held]):
        self.helds = helds
        # the weights are where they were as long as these are their addresses
        self.addresses = [held.parameter.data_ptr() for held in helds]
        self._groups: list[_Group] = []
        self._large: list[_Pieces] = []
        self._others: list[Held] = []
        small: dict[tuple, list[Held]] = {}
        for held in helds:
            kind = (held.weight.device, held.weight.dtype, held.importance.dtype)
            if held.weight.dtype != held.anchor.dtype:
                self._others.append(held)
            elif held.weight.numel() <= SMALL:
                small.setdefault(kind, []).append(held)
            elif held.weight.numel() > CHUNK and _can_be_cut(held):
                self._large.append(_Pieces(held))
            else:
                self._groups.append(_Group([held]))
        for alike in small.values():
            self._groups += [_Group(part) for part in _divide(alike)]

    @torch.no_grad()
    def add(self, strength: float) -> None:
        """Add strength * importance * (weight - anchor) to the gradients of all parameters."""
        for group in self._groups:
            group.add(strength)
        for pieces in self._large:
            pieces.add(strength)
        for held in self._others:
            _add_mixed(held, strength)


class _Group:
    """Tensors of one device and type that few calls go through."""

    __slots__ = ("anchors", "dtype", "helds", "importances", "weights")

    def __init__(self, helds: list[Held]):
        self.helds = helds
        self.weights = [held.weight for held in helds]
        self.anchors = [held.anchor for held in helds]
        self.importances = [held.importance for held in helds]
        self.dtype = self.weights[0].dtype

    def add(self, strength: float) -> None:
        gradients = [held.find_gradient() for held in self.helds]
        if any(gradient.dtype is not self.dtype for gradient in gradients):
            for held in self.helds:
                _add_mixed(held, strength)
            return
        factors = self.importances
        if factors[0].dtype is not self.dtype:
            factors = [factor.to(self.dtype) for factor in factors]
        away = torch._foreach_sub(self.weights, self.anchors)
        torch._foreach_addcmul_(gradients, factors, away, value=strength)


class _Pieces:
    """A large tensor in main memory, cut into pieces."""

    __slots__ = ("held", "pieces")

    def __init__(self, held: Held):
        self.held = held
        tensors = (held.weight, held.anchor, held.importance)
        cut = [_flatten(tensor).split(CHUNK) for tensor in tensors]
        self.pieces = list(zip(*cut, strict=True))

    def add(self, strength: float) -> None:
        held = self.held
        gradient = held.find_gradient()
        if gradient.dtype is not held.weight.dtype:
            _add_mixed(held, strength)
            return
        if gradient.stride() != held.weight.stride():
            factor = held.importance.to(held.weight.dtype)
            gradient.addcmul_(factor, held.weight - held.anchor, value=strength)
            return
        parts = _flatten(gradient).split(CHUNK)
        # the memory of each difference is that of the one before, which is still in the cache
        if held.importance.dtype is held.weight.dtype:
            for part, (weight, anchor, importance) in zip(parts, self.pieces, strict=True):
                part.addcmul_(importance, weight - anchor, value=strength)
            return
        for part, (weight, anchor, importance) in zip(parts, self.pieces, strict=True):
            part.addcmul_(importance.to(weight.dtype), weight - anchor, value=strength)


def _add_mixed(held: Held, strength: float) -> None:
    """Add to a gradient of another type, such as of 16 bits."""
    gradient = held.find_gradient()
    away = (held.weight - held.anchor).mul_(held.importance).mul_(strength)
    gradient.add_(away.to(gradient.dtype))


def _divide(helds: Iterable[Held]) -> Iterator[list[Held]]:
    """Yield the tensors in groups of about the size of a piece; on other devices than CPUs, all."""
    group: list[Held] = []
    size = 0
    for held in helds:
        group.append(held)
        size += held.weight.numel()
        if size >= CHUNK and held.weight.device.type == "cpu":
            yield group
            group = []
            size = 0
    if group:
        yield group


def _can_be_cut(held: Held) -> bool:
    """Whether all tensors fill a piece of main memory, in the same order."""
    order = held.weight.stride()
    alike = held.anchor.stride() == order and held.importance.stride() == order
    return held.weight.device.type == "cpu" and alike and _lies_densely(held.weight)


def _lies_densely(tensor: Tensor) -> bool:
    """Whether a tensor fills a piece of memory, in whatever order."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def _flatten(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor in the order in which they lie."""
    return tensor.as_strided((tensor.numel(),), (1,))
