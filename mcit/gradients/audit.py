"""The proof that a way to per-example gradients is right: what autograd says, and what the way says.

With a random weight w_i per example, per-example gradients g_i must satisfy sum_i w_i g_i = gradient of
sum_i w_i score_i, which autograd gives independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from mcit.gradients.capture import Use, contribute
from mcit.gradients.contributions import Layout, group_rows, reads_rows

Scores = Callable[[], Iterable[Tensor]]  # runs the network, gives vectors [examples]
LAYOUTS: tuple[Layout, ...] = ("consecutive", "blocks")
# A wrong path is off by as much as the gradient itself, rounding by a few units of the last place of what was added up.
AUDIT_TOLERANCE = 1e-4
AUDIT_ROUNDING = 64


class Audit:
    """What autograd says the weighted sum of per-example gradients is, and what the paths say."""

    def __init__(self, parameters: dict[str, nn.Parameter], scores: Scores):
        vector = sum(collect_scores(scores))
        self.examples, self.total = len(vector), vector.sum()
        generator = torch.Generator().manual_seed(self.examples)
        weights = torch.randn(self.examples, generator=generator, dtype=torch.float64).to(vector)
        self.weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        self.edges = _count_edges([vector], parameters)
        weighted = (weights * vector).sum()
        found = torch.autograd.grad(weighted, list(parameters.values()), retain_graph=True, allow_unused=True)
        self.truth = dict(zip(parameters, found, strict=True))

    def fitting(self, name: str, candidates: dict[Layout, tuple[Tensor, Tensor]]) -> list[Layout]:
        """The layouts whose weighted sum is autograd's."""
        truth = self.truth[name]
        fitting = []
        for layout, (found, mass) in candidates.items():
            truth = torch.zeros_like(found) if truth is None else truth
            places = AUDIT_ROUNDING if truth.dtype.itemsize > 2 else 1
            rounding = places * torch.finfo(truth.dtype).eps * mass.max()
            if (found - truth).abs().max() <= AUDIT_TOLERANCE * truth.abs().max() + rounding:
                fitting.append(layout)
        return fitting

    def weigh(self, module: nn.Module, uses: list[Use], names: list[str]) -> dict[str, dict[Layout, tuple]]:
        """The weighted sums that the rule of a layer gives, for each order its rows may have."""
        if any(use.inputs is None or not use.inputs.ndim for use in uses):
            return {}
        rows = [len(side) for use in uses for side in (use.inputs, use.gradients[0])]
        if any(count % self.examples or not count for count in rows):
            return {}
        if any(len(use.inputs) != len(use.gradients[0]) or not reads_rows(module, use.inputs) for use in uses):
            return {}
        found: dict[str, dict[Layout, tuple]] = {name: {} for name in names}
        for layout in LAYOUTS[:1] if set(rows) == {self.examples} else LAYOUTS:
            contributions = contribute(module, uses, self.examples, layout)
            for name in names:
                served = contributions.get(name.rpartition(".")[2])
                # a weight that a hook computes from others is not a parameter of the rule; and one that the graph
                # meets more often than its layer was called is used outside, if only by a term that is zero now
                if served is not None and self.edges[name] <= len(uses):
                    found[name][layout] = served.weigh(self.weights)
        return found

    def weigh_module(self, name: str, parameter: nn.Parameter, outputs: list[Tensor], gradients: list[Tensor]) -> dict:
        """The weighted sums that a backward through a module gives."""
        found: dict[Layout, tuple[Tensor, Tensor]] = {}
        if not outputs or any(g.ndim == 0 or len(g) % self.examples for g in gradients):
            return found
        if _count_edges(outputs, {name: parameter})[name] < self.edges[name]:  # it is used beyond the module too
            return found
        single = all(len(g) == self.examples for g in gradients)
        for layout in LAYOUTS[:1] if single else LAYOUTS:
            scaled = [self._scale_rows(gradient, layout) for gradient in gradients]
            (total,) = torch.autograd.grad(outputs, parameter, scaled, retain_graph=True, allow_unused=True)
            if total is not None:
                found[layout] = total, total.abs()
        return found

    def _scale_rows(self, gradient: Tensor, layout: Layout) -> Tensor:
        rows = torch.empty(len(gradient), dtype=gradient.dtype, device=gradient.device)
        group_rows(rows, self.examples, layout).copy_(self.weights[:, None])  # in the gradient's precision
        return gradient * rows.view(-1, *[1] * (gradient.ndim - 1))


def collect_scores(scores: Scores) -> list[Tensor]:
    vectors = list(scores())
    if not vectors or any(v.ndim != 1 or len(v) != len(vectors[0]) or not len(v) for v in vectors):
        raise ValueError(f"scores must be one number per example, found shapes {[list(v.shape) for v in vectors]}")
    return vectors


def _count_edges(outputs: list[Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """How many operations of the graph below `outputs` read each parameter."""
    edges: Counter = Counter()
    waiting = list({output.grad_fn for output in outputs})
    seen = set(waiting)
    while waiting:
        for node, _ in getattr(waiting.pop(), "next_functions", ()):
            leaf = getattr(node, "variable", None)  # the node of a parameter holds it
            if leaf is not None:
                edges[id(leaf)] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return {name: edges[id(parameter)] for name, parameter in parameters.items()}
