"""Inputs of layers and outputs of modules in a forward pass, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# layers whose gradients a rule needs together: one layer, or several that share a weight
Unit = tuple[nn.Module, ...]


@dataclass
class LayerCall:
    """One call of a layer.

    inputs: Its first input, if a rule needs it.
    version: The input's version counter, which in-place operations increase.
    outputs: Its outputs that require gradients; None where they need not be kept.
    output_versions: Their version counters.
    gradients: The gradients at these outputs; None until they have arrived.
    rows: The first dimensions of the outputs.
    """

    inputs: Tensor | None
    version: int
    outputs: list[Tensor | None]
    output_versions: list[int]
    gradients: list[Tensor | None]
    rows: set[int]

    @property
    def has_arrived(self) -> bool:
        """Whether all gradients are there."""
        return all(gradient is not None for gradient in self.gradients)

    def clear_gradients(self) -> None:
        """Free the memory of the gradients."""
        self.gradients = [None] * len(self.gradients)


Calls = dict[nn.Module, list[LayerCall]]
# called with a unit, and those of its calls that reached the score
Consume = Callable[[Unit, Calls], None]


class Capture:
    """Records the calls of the layers in `units` and of the modules in `local`.

    only_outputs: Backward passes go as far as the outputs of the modules in `local`, and form no
        gradients of parameters.
    """

    def __init__(self, units: Iterable[Unit], local: set[nn.Module], only_outputs: bool = False):
        self.only_outputs = only_outputs
        self.units = list(units)
        self.local = local
        self.calls: Calls = {}
        self._units_of: dict[nn.Module, list[Unit]] = {}
        for unit in self.units:
            for module in unit:
                self._units_of.setdefault(module, []).append(unit)
        self._finished: set[Unit] = set()
        self._consume: Consume | None = None
        # whether another backward pass may come, which needs the inputs again
        self._keep_inputs = True
        # False: calls are those of a forward pass that was seen before
        self._recording = True
        modules = self._units_of.keys() | local
        self._handles = [module.register_forward_hook(self._see) for module in modules]

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        # outputs hold hooks, which hold their calls: let go of tensors without waiting for the
        # garbage collector
        for calls in self.calls.values():
            for call in calls:
                call.inputs = None
                call.outputs = []
                call.gradients = []
        self.calls.clear()

    def backward(self, total: Tensor, consume: Consume, retain_graph: bool) -> None:
        """Run the backward pass; `consume` gets each unit once all its gradients are there."""
        for calls in self.calls.values():
            for call in calls:
                call.clear_gradients()
        self._consume = consume
        self._keep_inputs = retain_graph
        self._finished = set()
        if total.requires_grad:
            self._run_backward(total, retain_graph)
        # units some of whose calls did not reach the score
        for unit in self.units:
            self._finish(unit)
        # later passes over the same graph are not for the rules
        self._consume = None

    def _run_backward(self, total: Tensor, retain_graph: bool) -> None:
        outputs = [output for module in self.local for output in self.outputs_of(module)]
        # an output that was changed in place stands for its successor
        if not self.only_outputs or not outputs or self._changed_in_place():
            total.backward(retain_graph=retain_graph)
            return
        # as far as the outputs, without gradients of parameters
        torch.autograd.grad(total, outputs, retain_graph=retain_graph, allow_unused=True)

    def _changed_in_place(self) -> bool:
        for calls in self.calls.values():
            for call in calls:
                for output, version in zip(call.outputs, call.output_versions, strict=True):
                    if output is not None and output._version != version:
                        return True
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not record calls, as of checkpointed layers that another backward pass runs again."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    def count_views(self, examples: int) -> dict[nn.Module, set[float]]:
        """Return the rows per example in the outputs of each module that was called."""
        views = {}
        for module, calls in self.calls.items():
            views[module] = {rows / examples for call in calls for rows in call.rows}
        return views

    def outputs_of(self, module: nn.Module) -> list[Tensor]:
        """Return all outputs of a module in `local`."""
        calls = self.calls.get(module, [])
        return [output for call in calls for output in call.outputs if output is not None]

    def collect(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return all outputs of a module that reached the score, and their gradients."""
        outputs = []
        gradients = []
        for call in self.calls.get(module, []):
            for output, gradient in zip(call.outputs, call.gradients, strict=True):
                if output is not None and gradient is not None:
                    outputs.append(output)
                    gradients.append(gradient)
        return outputs, gradients

    def _see(self, module: nn.Module, inputs: tuple, output: object) -> object:
        # a checkpointed layer is run again during the backward pass: that call was seen before
        again = self._consume is not None or not self._recording
        if again or not torch.is_grad_enabled():
            return None
        ruled = module in self._units_of
        replacement = None
        if ruled and isinstance(output, Tensor) and not output.requires_grad:
            # nothing below asks for gradients: the graph begins here
            replacement = _begin_graph(output)
            output = replacement
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in leaves if leaf.requires_grad]
        source = inputs[0].detach() if ruled and inputs else None
        call = LayerCall(
            inputs=source,
            version=0 if source is None else source._version,
            outputs=list(outputs),
            output_versions=[leaf._version for leaf in outputs],
            gradients=[None] * len(outputs),
            rows={len(leaf) if leaf.ndim else 0 for leaf in outputs},
        )
        self.calls.setdefault(module, []).append(call)
        for place, leaf in enumerate(outputs):
            leaf.register_hook(partial(self._arrive, module, call, place))
        if module not in self.local:
            # a rule needs no outputs: do not keep them alive
            call.outputs = [None] * len(outputs)
        return replacement

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
        for module, calls in reached.items():
            served = all(other in self._finished for other in self._units_of[module])
            if served and module not in self.local:
                for call in calls:
                    call.clear_gradients()
                    if not self._keep_inputs:
                        call.inputs = None


class _Begin(torch.autograd.Function):
    """A copy that depends on a token which requires gradients, and gives it none."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def _begin_graph(output: Tensor) -> Tensor:
    """Return a copy that requires gradients and may be changed in place, as a leaf may not.

    The original is not kept.
    """
    token = torch.zeros((), device=output.device, requires_grad=True)
    return _Begin.apply(output, token)


def _check_unchanged(module: nn.Module, call: LayerCall) -> None:
    if call.inputs is not None and call.inputs._version != call.version:
        raise RuntimeError(
            f"the input of a {type(module).__name__} was changed in place after the layer had read "
            "it, and per-example gradients need it as it was: make that operation out of place"
        )
