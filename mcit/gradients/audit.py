"""The proof that a way to per-example gradients is right: what autograd says, and what the way says.

With a random weight w_i per example, per-example gradients g_i must satisfy sum_i w_i g_i = gradient of
sum_i w_i score_i, which autograd gives independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mcit.gradients.capture import Calls, LayerCall, Unit
from mcit.gradients.contributions import Contribution, Layout, group_rows, reads_rows, rule_for, tie

# Runs the network, gives vectors [examples].
Scores = Callable[[], Iterable[Tensor]]
LAYOUTS: tuple[Layout, ...] = ("consecutive", "blocks")
# A wrong path is off by as much as the gradient itself, rounding by a few units of the last place of what was added up.
AUDIT_TOLERANCE = 1e-4
AUDIT_ROUNDING = 64
# In 16 bits a gradient has lost a percent or two for every few layers that it came through.
HALF_TOLERANCE = 0.1
HALF_ROUNDING = 1


class Weighed(NamedTuple):
    """A path's weighted sum, and the absolute values of all that was added to get it."""

    total: Tensor
    mass: Tensor


class Audit:
    """What autograd says the weighted sum of per-example gradients is, and what the paths say."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], scores: Scores):
        # the lowest precision in use anywhere: gradients of 32-bit weights may have come through 16-bit layers
        self.precision = torch.float64
        for parameter in model.parameters():
            self._note_precision(parameter)
        vector = sum(collect_scores(scores))
        self.examples = len(vector)
        self.total = vector.sum()
        generator = torch.Generator().manual_seed(self.examples)
        weights = torch.randn(self.examples, generator=generator, dtype=torch.float64).to(vector)
        self.weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        self.edges = _count_edges([vector], parameters)
        weighted = (weights * vector).sum()
        found = torch.autograd.grad(
            weighted, list(parameters.values()), retain_graph=True, allow_unused=True
        )
        self.truth = dict(zip(parameters, found, strict=True))

    def fitting(self, name: str, candidates: Mapping[Layout, Weighed]) -> list[Layout]:
        """Return the layouts whose weighted sum is autograd's."""
        truth = self.truth[name]
        fitting = []
        tolerance, places = AUDIT_TOLERANCE, AUDIT_ROUNDING
        if self.precision.itemsize <= 2:
            tolerance, places = HALF_TOLERANCE, HALF_ROUNDING
        for layout, weighed in candidates.items():
            if truth is None:
                truth = torch.zeros_like(weighed.total)
            rounding = places * torch.finfo(self.precision).eps * weighed.mass.max()
            if (weighed.total - truth).abs().max() <= tolerance * truth.abs().max() + rounding:
                fitting.append(layout)
        return fitting

    def weigh(self, unit: Unit, calls: Calls, names: list[str]) -> dict[str, dict[Layout, Weighed]]:
        """Return the weighted sums that the rule of a unit gives, for each order its rows may have."""
        flat = [(module, call) for module, of_module in calls.items() for call in of_module]
        for _, call in flat:
            self._note_precision(call.inputs)
            self._note_precision(call.gradients[0])
        if not all(self._has_rows(module, call) for module, call in flat):
            return {}
        rows = {len(side) for _, call in flat for side in (call.inputs, call.gradients[0])}
        found: dict[str, dict[Layout, Weighed]] = {name: {} for name in names}
        for layout in LAYOUTS[:1] if rows == {self.examples} else LAYOUTS:
            contributions = contribute(unit, calls, self.examples, layout)
            for name in names:
                served = contributions.get(name.rpartition(".")[2])
                # a weight that a hook computes from others is not a parameter of the rule; and one that the graph
                # meets more often than its layers were called is used outside, if only by a term that is zero now
                if served is not None and self.edges[name] <= len(flat):
                    found[name][layout] = Weighed(*served.weigh(self.weights))
        return found

    def _note_precision(self, tensor: Tensor | None) -> None:
        if tensor is not None and tensor.is_floating_point():
            self.precision = min(self.precision, tensor.dtype, key=lambda dtype: dtype.itemsize)

    def _has_rows(self, module: nn.Module, call: LayerCall) -> bool:
        """Whether a call read and gave the same number of rows, a multiple of the examples."""
        gradient = call.gradients[0]
        if call.inputs is None or gradient is None or not call.inputs.ndim:
            return False
        count = len(gradient)
        if not count or count % self.examples or len(call.inputs) != count:
            return False
        return reads_rows(module, call.inputs)

    def weigh_module(
        self, name: str, parameter: nn.Parameter, outputs: list[Tensor], gradients: list[Tensor]
    ) -> dict[Layout, Weighed]:
        """Return the weighted sums that a backward through a module gives."""
        found: dict[Layout, Weighed] = {}
        if not outputs or any(g.ndim == 0 or len(g) % self.examples for g in gradients):
            return found
        if _count_edges(outputs, {name: parameter})[name] < self.edges[name]:
            # it is used beyond the module too
            return found
        single = all(len(g) == self.examples for g in gradients)
        for gradient in gradients:
            self._note_precision(gradient)
        for layout in LAYOUTS[:1] if single else LAYOUTS:
            scaled = [self._scale_rows(gradient, layout) for gradient in gradients]
            (total,) = torch.autograd.grad(
                outputs, parameter, scaled, retain_graph=True, allow_unused=True
            )
            if total is not None:
                found[layout] = Weighed(total, total.abs())
        return found

    def _scale_rows(self, gradient: Tensor, layout: Layout) -> Tensor:
        rows = torch.empty(len(gradient), dtype=gradient.dtype, device=gradient.device)
        # in the gradient's precision
        group_rows(rows, self.examples, layout).copy_(self.weights[:, None])
        return gradient * rows.view(-1, *[1] * (gradient.ndim - 1))


def contribute(unit: Unit, calls: Calls, examples: int, layout: Layout) -> dict[str, Contribution]:
    """Return what the layers of a unit add to the gradients of each parameter, by the last part of its name."""
    found = [
        _contribute_layer(module, calls[module], examples, layout)
        for module in unit
        if module in calls
    ]
    if len(unit) == 1:
        return found[0]
    return {"weight": tie([contributions["weight"] for contributions in found])}


def _contribute_layer(
    module: nn.Module, calls: list[LayerCall], examples: int, layout: Layout
) -> dict[str, Contribution]:
    check_rows(f"a {type(module).__name__}", [call.gradients[0] for call in calls], examples)
    # under autocast, inputs and gradients may be narrower than the weights
    dtype = torch.promote_types(next(module.parameters(recurse=False)).dtype, torch.float32)
    parts = []
    for call in calls:
        inputs = call.inputs.to(dtype) if call.inputs.is_floating_point() else call.inputs
        gradient = call.gradients[0].to(dtype)
        parts.append((group_rows(inputs, examples, layout), group_rows(gradient, examples, layout)))
    return rule_for(module)(module, parts)


def check_rows(what: str, gradients: list[Tensor], examples: int) -> None:
    """Raise unless every gradient has a multiple of `examples` rows."""
    for gradient in gradients:
        if len(gradient) % examples:
            raise RuntimeError(
                f"{what} gave {len(gradient)} rows for {examples} examples, though in the first batch the rows were a "
                "multiple of the examples; give all batches the same form"
            )


def collect_scores(scores: Scores) -> list[Tensor]:
    """Return the vectors of scores, all [examples]."""
    vectors = list(scores())
    if not vectors or any(v.ndim != 1 or len(v) != len(vectors[0]) or not len(v) for v in vectors):
        raise ValueError(
            f"scores must be one number per example, found shapes {[list(v.shape) for v in vectors]}"
        )
    return vectors


def _count_edges(outputs: list[Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Return how many operations of the graph below `outputs` read each parameter."""
    edges: Counter = Counter()
    waiting = list({output.grad_fn for output in outputs})
    seen = set(waiting)
    while waiting:
        for node, _ in getattr(waiting.pop(), "next_functions", ()):
            # the node of a parameter holds it
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                edges[id(leaf)] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return {name: edges[id(parameter)] for name, parameter in parameters.items()}
