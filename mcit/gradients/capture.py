"""What goes into layers and comes out of modules during one forward pass, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# Layers whose gradients must be there together before their rule applies: one, or several that share a weight.
Unit = tuple[nn.Module, ...]


@dataclass
class LayerCall:
    """One call of a layer: what went in, what came out, and the gradients once they have arrived."""

    inputs: Tensor | None
    version: int
    outputs: list[Tensor | None]
    gradients: list[Tensor | None]
    # first dimensions of the outputs
    rows: set[int]

    @property
    def has_arrived(self) -> bool:
        return all(gradient is not None for gradient in self.gradients)


Calls = dict[nn.Module, list[LayerCall]]


class Capture:
    """Sees what goes into the layers of `units` and comes out of `local` modules, and the gradients that come back."""

    def __init__(self, units: Iterable[Unit], local: set[nn.Module]):
        self.units = list(units)
        self.local = local
        self.calls: Calls = {}
        self._units_of: dict[nn.Module, list[Unit]] = {}
        for unit in self.units:
            for module in unit:
                self._units_of.setdefault(module, []).append(unit)
        self._finished: set[Unit] = set()
        self._consume: Callable[[Unit, Calls], None] | None = None
        self._handles = [
            module.register_forward_hook(self._see) for module in self._units_of.keys() | local
        ]

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self.calls.clear()

    def backward(
        self, total: Tensor, consume: Callable[[Unit, Calls], None], retain_graph: bool
    ) -> None:
        """Run the backward pass; `consume` gets each unit as soon as the gradients of all its calls are there."""
        for calls in self.calls.values():
            for call in calls:
                call.gradients = [None] * len(call.gradients)
        self._consume = consume
        self._finished = set()
        if total.requires_grad:
            total.backward(retain_graph=retain_graph)
        # units some of whose calls did not reach the score
        for unit in self.units:
            self._finish(unit)
        # later passes over the same graph are not for the rules
        self._consume = None

    def count_views(self, examples: int) -> dict[nn.Module, set[float]]:
        """Return how many rows per example each module that was called has put out."""
        return {
            module: {rows / examples for call in calls for rows in call.rows}
            for module, calls in self.calls.items()
        }

    def collect(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return all outputs of a module that reached the score, and their gradients."""
        outputs = []
        gradients = []
        for call in self.calls.get(module, []):
            for output, gradient in zip(call.outputs, call.gradients, strict=True):
                if gradient is not None:
                    outputs.append(output)
                    gradients.append(gradient)
        return outputs, gradients

    def _see(self, module: nn.Module, inputs: tuple, output: object) -> object:
        # during the backward pass, a checkpointed layer is run again: that call is the one that was seen before
        if not torch.is_grad_enabled() or self._consume is not None:
            return None
        ruled = module in self._units_of
        begun = None
        if ruled and isinstance(output, Tensor) and not output.requires_grad:
            # nothing below asks for gradients: begin here. A copy, because a leaf may not be changed in place.
            begun = output = output.detach().requires_grad_().clone()
        outputs = [
            leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        source = inputs[0].detach() if ruled and inputs else None
        call = LayerCall(
            inputs=source,
            version=0 if source is None else source._version,
            outputs=list(outputs),
            gradients=[None] * len(outputs),
            rows={len(leaf) if leaf.ndim else 0 for leaf in outputs},
        )
        self.calls.setdefault(module, []).append(call)
        for place, leaf in enumerate(outputs):
            leaf.register_hook(partial(self._arrive, module, call, place))
        if module not in self.local:
            # a rule needs no outputs: do not keep them alive
            call.outputs = [None] * len(outputs)
        return begun

    def _arrive(self, module: nn.Module, call: LayerCall, place: int, gradient: Tensor) -> None:
        if self._consume is None:
            return
        call.gradients[place] = gradient
        for unit in self._units_of.get(module, []):
            calls = [other for member in unit for other in self.calls.get(member, [])]
            if all(other.has_arrived for other in calls):
                self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        if unit in self._finished:
            return
        reached: Calls = {}
        for module in unit:
            for call in self.calls.get(module, []):
                if call.gradients and call.gradients[0] is not None:
                    _check_unchanged(module, call)
                    reached.setdefault(module, []).append(call)
        if not reached:
            return
        self._finished.add(unit)
        assert self._consume is not None
        self._consume(unit, reached)
        for module in reached:
            served = all(other in self._finished for other in self._units_of[module])
            if served and module not in self.local:
                for call in reached[module]:
                    call.gradients = [None] * len(call.gradients)


def _check_unchanged(module: nn.Module, call: LayerCall) -> None:
    if call.inputs is not None and call.inputs._version != call.version:
        raise RuntimeError(
            f"the input of a {type(module).__name__} was changed in place after the layer had read it, and "
            "per-example gradients need it as it was: make that operation out of place"
        )
