"""The audit: whether a way to form per-example gradients agrees with autograd on the user's batch.

With a random weight w_i per example, per-example gradients g_i must satisfy
sum_i w_i g_i = gradient of sum_i w_i score_i, which autograd computes independently.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mcit.gradients.capture import Calls, LayerCall, Unit
from mcit.gradients.contributions import Layout, Weighed, contribute, group_rows, reads_rows

# runs the network and returns vectors [examples]
Scores = Callable[[], Iterable[Tensor]]
LAYOUTS: tuple[Layout, ...] = ("consecutive", "blocks")
# a wrong path is off by as much as the gradient itself, rounding by a few units in the last place
# of what was added up
AUDIT_TOLERANCE = 1e-4
AUDIT_ROUNDING = 64
# in 16 bits a gradient loses a percent or two for every few layers that it comes through
HALF_TOLERANCE = 0.1
HALF_ROUNDING = 1


class Comparison(NamedTuple):
    """How far a weighted sum is from autograd's, with what it is judged by.

    error: The largest difference.
    size: The largest element of autograd's sum.
    mass: The largest sum of absolute values of all that was added up.
    """

    error: Tensor
    size: Tensor
    mass: Tensor


class Audit:
    """Autograd's weighted sum of per-example gradients, and the sums that other ways lead to."""

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        scores: Scores,
        precision: torch.dtype = torch.float64,
    ):
        # the lowest precision anywhere: gradients of 32-bit weights may come through 16-bit layers
        self.precision = precision
        for parameter in model.parameters():
            self._note_precision(parameter)
        vector = add_scores(scores)
        self.examples = len(vector)
        self.total = vector.sum()
        weights = draw_weights(vector)
        self.weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        self.edges = _count_edges([vector], parameters)
        gradients = torch.autograd.grad(
            (weights * vector).sum(),
            list(parameters.values()),
            retain_graph=True,
            allow_unused=True,
        )
        self.truth = dict(zip(parameters, gradients, strict=True))

    def find_fitting(self, candidates: Mapping[Layout, Comparison]) -> list[Layout]:
        """Return the layouts whose weighted sum is autograd's."""
        return [layout for layout, found in candidates.items() if is_close(found, self.precision)]

    def compare(
        self, unit: Unit, calls: Calls, names: list[str]
    ) -> dict[str, dict[Layout, Comparison]]:
        """Compare the weighted sums of a unit's rule, for each order its rows may have."""
        flat = [call for of_module in calls.values() for call in of_module]
        for call in flat:
            self._note_precision(call.inputs)
            self._note_precision(call.gradients[0])
        for module, of_module in calls.items():
            if not all(self._has_rows(module, call) for call in of_module):
                return {}
        single = all(call.inputs is not None and len(call.inputs) == self.examples for call in flat)
        found: dict[str, dict[Layout, Comparison]] = {name: {} for name in names}
        for layout in LAYOUTS[:1] if single else LAYOUTS:
            contributions = contribute(unit, calls, self.examples, layout)
            for name in names:
                contribution = contributions.get(name.rpartition(".")[2])
                # a weight that a hook computes from others is not a parameter of the rule; one that
                # the graph reads more often than its layers were called is used outside them too
                if contribution is not None and self.edges[name] <= len(flat):
                    found[name][layout] = self._compare(name, contribution.weigh(self.weights))
        return found

    def compare_module(
        self, name: str, parameter: nn.Parameter, outputs: list[Tensor], gradients: list[Tensor]
    ) -> dict[Layout, Comparison]:
        """Compare the weighted sums of a backward through a module."""
        found: dict[Layout, Comparison] = {}
        rows = [len(gradient) if gradient.ndim else 0 for gradient in gradients]
        if not rows or 0 in rows or any(count % self.examples for count in rows):
            return found
        if _count_edges(outputs, {name: parameter})[name] < self.edges[name]:
            # it is used outside the module too
            return found
        for gradient in gradients:
            self._note_precision(gradient)
        single = set(rows) == {self.examples}
        for layout in LAYOUTS[:1] if single else LAYOUTS:
            scaled = [scale_rows(gradient, self.weights, layout) for gradient in gradients]
            (total,) = torch.autograd.grad(
                outputs, parameter, scaled, retain_graph=True, allow_unused=True
            )
            if total is not None:
                found[layout] = self._compare(name, Weighed(total, total.abs()))
        return found

    def _compare(self, name: str, weighed: Weighed) -> Comparison:
        truth = self.truth[name]
        if truth is None:
            truth = torch.zeros_like(weighed.total)
        return compare(weighed.total, truth, weighed.mass)

    def _note_precision(self, tensor: Tensor | None) -> None:
        if tensor is None or not tensor.is_floating_point():
            return
        if tensor.dtype.itemsize < self.precision.itemsize:
            self.precision = tensor.dtype

    def _has_rows(self, module: nn.Module, call: LayerCall) -> bool:
        """Whether a call read and returned equally many rows, a multiple of the examples."""
        gradient = call.gradients[0]
        if call.inputs is None or gradient is None or not call.inputs.ndim:
            return False
        count = len(gradient)
        if not count or count % self.examples or len(call.inputs) != count:
            return False
        return reads_rows(module, call.inputs)


def draw_weights(vector: Tensor) -> Tensor:
    """Return a weight for each example, the same for every batch of so many."""
    generator = torch.Generator().manual_seed(len(vector))
    return torch.randn(len(vector), generator=generator, dtype=torch.float64).to(vector)


def scale_rows(gradient: Tensor, weights: Tensor, layout: Layout) -> Tensor:
    """Return the gradient with each row times the weight of its example."""
    # in the gradient's precision
    of_rows = torch.empty(len(gradient), dtype=gradient.dtype, device=gradient.device)
    group_rows(of_rows, len(weights), layout).copy_(weights[:, None])
    return gradient * of_rows.view(-1, *[1] * (gradient.ndim - 1))


def compare(found: Tensor, truth: Tensor, mass: Tensor) -> Comparison:
    """Return how far `found` is from `truth`."""
    return Comparison((found - truth).abs().max(), truth.abs().max(), mass.max())


def is_close(found: Comparison, precision: torch.dtype) -> bool:
    """Whether the difference is rounding in a network whose lowest precision this is."""
    tolerance = AUDIT_TOLERANCE
    places = AUDIT_ROUNDING
    if precision.itemsize <= 2:
        tolerance = HALF_TOLERANCE
        places = HALF_ROUNDING
    rounding = places * torch.finfo(precision).eps * found.mass
    return bool(found.error <= tolerance * found.size + rounding)


def add_scores(scores: Scores) -> Tensor:
    """Return the sum of all vectors of scores, [examples]."""
    return functools.reduce(torch.add, collect_scores(scores))


def collect_scores(scores: Scores) -> list[Tensor]:
    """Return the vectors of scores, all [examples]."""
    vectors = list(scores())
    shapes = [list(vector.shape) for vector in vectors]
    same = all(shape == shapes[0] for shape in shapes)
    if vectors and same and vectors[0].ndim == 1 and vectors[0].numel():
        return vectors
    raise ValueError(f"scores must be one number per example, found shapes {shapes}")


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
