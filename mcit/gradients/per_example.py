"""Sums of squared per-example gradients, layer by layer, while one ordinary backward pass runs.

Each parameter is served by the fastest path that is proven exact on the user's own model and data:

1. rule: the closed form of its layer (contributions.py), from the layer's input and the gradient at its output; also
   of a weight that a word table and an output layer share;
2. module: a small backward per example through the smallest enclosing module whose output has rows per example;
3. network: a backward per example through everything.

The proof is an audit on the first batch: with a random weight w_i per example, the per-example gradients g_i of a path
must satisfy sum_i w_i g_i = gradient of sum_i w_i score_i, which autograd gives independently. A layer used outside its
module, a weight tied to another, rows in an order of their own: all of them fail it, and the next path is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mcit.gradients.audit import Audit, Scores, Weighed, check_rows, collect_scores, contribute
from mcit.gradients.capture import Calls, Capture, Unit
from mcit.gradients.contributions import Layout, can_tie, group_rows, rule_for


@dataclass(frozen=True)
class _Path:
    """How a parameter is served: by the rule of a unit, by a module, or, without either, by the whole network."""

    unit: Unit | None = None
    module: nn.Module | None = None
    layout: Layout = "consecutive"

    def describe(self) -> str:
        if self.unit is not None:
            return "rule"
        return "module" if self.module is not None else "network"


class PerExampleGradients:
    """Accumulates sum_i f(g_i) for named parameters, f the square or the absolute value, in `sums`."""

    def __init__(
        self, model: nn.Module, parameters: dict[str, nn.Parameter], absolute: bool = False
    ):
        self.model = model
        self.parameters = parameters
        self.absolute = absolute
        self.sums = {name: make_sum(parameter) for name, parameter in parameters.items()}
        self.owners = _find_owners(model, parameters)
        self.paths: dict[str, _Path] = {}
        # rows per example that each module had in the audit
        self.audited: dict[nn.Module, set[float]] = {}
        # whether the audit had one example only, which says nothing about rows
        self.single = False

    def add(self, scores: Scores) -> int:
        """Add what one batch contributes and return the number of its examples. `scores` may be called repeatedly."""
        if not self.paths:
            self._plan(scores)
        ruled = self._group(lambda path: path.unit)
        local = self._group(lambda path: path.module)
        whole = [
            name for name, path in self.paths.items() if path.unit is None and path.module is None
        ]
        frozen = [self.parameters[name] for names in ruled.values() for name in names]
        unseen: list[str] = []
        with _without_grad(frozen), Capture(ruled, set(local)) as capture:
            vectors = collect_scores(scores)
            examples = len(vectors[0])
            if not self._is_audited(capture, examples):
                self.paths = {}
            for number, vector in enumerate(vectors if self.paths else (), start=1):
                retain = number < len(vectors) or bool(local) or bool(whole)

                def apply(unit: Unit, calls: Calls) -> None:
                    self._apply_rule(ruled[unit], unit, calls, examples)

                capture.backward(vector.sum(), apply, retain)
                for module, names in local.items():
                    self._apply_module(names, *capture.collect(module), examples)
                self._apply_network(whole, vector)
            for unit, names in ruled.items():
                if not any(module in capture.calls for module in unit):
                    unseen += names
        if not self.paths:
            return self.add(scores)
        self._check_unseen(unseen, scores)
        return examples

    def _check_unseen(self, names: list[str], scores: Scores) -> None:
        """Raise if autograd reaches a parameter whose layer was not seen in this batch: its squares are missing."""
        if not names:
            return
        vectors = collect_scores(scores)
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(sum(vectors).sum(), parameters, allow_unused=True)
        missed = [name for name, gradient in zip(names, found, strict=True) if gradient is not None]
        if missed:
            raise RuntimeError(
                f"{missed[0]!r} ({len(missed)} such) has a gradient, but the call of its layer was not seen: something "
                "runs the layer without its hooks (compiled or traced code, a forward that is called directly); "
                "measure the plain model"
            )

    def _is_audited(self, capture: Capture, examples: int) -> bool:
        """Whether every module has as many rows per example as when it was audited; a single one has no order."""
        if self.single or examples == 1:
            return examples == 1
        return all(
            views <= self.audited[m] | {1.0} for m, views in capture.count_views(examples).items()
        )

    def describe_paths(self) -> dict[str, str]:
        """Return the path that serves each parameter: rule, module or network."""
        return {name: path.describe() for name, path in self.paths.items()}

    def _group(self, key: Callable[[_Path], Any]) -> dict[Any, list[str]]:
        """Return the parameters that each unit, or each module, serves."""
        served: dict[Any, list[str]] = {}
        for name, path in self.paths.items():
            if key(path) is not None:
                served.setdefault(key(path), []).append(name)
        return served

    def _apply_rule(self, names: list[str], unit: Unit, calls: Calls, examples: int) -> None:
        contributions = contribute(unit, calls, examples, self.paths[names[0]].layout)
        for name in names:
            contributions[name.rpartition(".")[2]].add_to(self.sums[name], self.absolute)

    def _apply_module(
        self, names: list[str], outputs: list[Tensor], gradients: list[Tensor], examples: int
    ) -> None:
        if not outputs:
            # the module's output did not reach the score
            return
        layout = self.paths[names[0]].layout
        check_rows("a module", gradients, examples)
        for example in range(examples):
            chosen = [torch.zeros_like(g) for g in gradients]
            for mask, gradient in zip(chosen, gradients, strict=True):
                rows = group_rows(mask, examples, layout)
                rows[example] = group_rows(gradient, examples, layout)[example]
            self._add_gradients(names, outputs, chosen)

    def _apply_network(self, names: list[str], vector: Tensor) -> None:
        if not names or not vector.requires_grad:
            return
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(vector.sum(), parameters, retain_graph=True, allow_unused=True)
        reached = [
            name for name, gradient in zip(names, found, strict=True) if gradient is not None
        ]
        for score in vector if reached else ():
            self._add_gradients(reached, [score], None)

    def _add_gradients(
        self, names: list[str], outputs: list[Tensor], gradients: list[Tensor] | None
    ) -> None:
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(
            outputs, parameters, gradients, retain_graph=True, allow_unused=True
        )
        for name, gradient in zip(names, found, strict=True):
            if gradient is not None:
                gradient = gradient.to(self.sums[name].dtype)
                self.sums[name] += gradient.abs() if self.absolute else gradient.square()

    def _plan(self, scores: Scores) -> None:
        """Choose a path for every parameter."""
        units = self._find_units()
        candidates: dict[str, dict[Layout, Weighed]] = {}
        with Capture(units, set()) as capture:
            audit = Audit(self.model, self.parameters, scores)
            views = capture.count_views(audit.examples)

            def weigh(unit: Unit, calls: Calls) -> None:
                candidates.update(audit.weigh(unit, calls, units[unit]))

            capture.backward(audit.total, weigh, retain_graph=False)
        layouts = _agree({name: audit.fitting(name, found) for name, found in candidates.items()})
        unit_of = {name: unit for unit, names in units.items() for name in names}
        paths = {name: _Path(unit=unit_of[name], layout=layout) for name, layout in layouts.items()}
        # what the score does not reach shows nothing: should a later batch reach it, the network serves it
        idle = {name: _Path() for name, truth in audit.truth.items() if truth is None}
        rest = [name for name in self.parameters if name not in paths and name not in idle]
        more: dict[str, _Path] = {}
        if rest:
            more, more_views = self._plan_modules(rest, scores)
            views = {**more_views, **views}
        self.paths = {**idle, **paths, **more}
        self.single = audit.examples == 1
        served = {module for unit in self._group(lambda path: path.unit) for module in unit}
        served |= set(self._group(lambda path: path.module))
        self.audited = {module: views.get(module, set()) for module in served}

    def _find_units(self) -> dict[Unit, list[str]]:
        """Return the layers that have rules, and those that share a weight, with the parameters they serve."""
        units: dict[Unit, list[str]] = {}
        for name, owners in self.owners.items():
            alone = len(owners) == 1 and rule_for(owners[0]) is not None
            if alone or (len(owners) > 1 and can_tie(owners)):
                units.setdefault(tuple(owners), []).append(name)
        return units

    def _plan_modules(
        self, names: list[str], scores: Scores
    ) -> tuple[dict[str, _Path], dict[nn.Module, set[float]]]:
        chains = {name: _enclosing(self.model, self.owners[name]) for name in names}
        paths = {}
        with Capture((), {module for chain in chains.values() for module in chain}) as capture:
            audit = Audit(self.model, self.parameters, scores)
            views = capture.count_views(audit.examples)
            capture.backward(audit.total, _ignore, retain_graph=True)
            for name in names:
                paths[name] = _Path()
                for module in chains[name]:
                    found = audit.weigh_module(
                        name, self.parameters[name], *capture.collect(module)
                    )
                    fitting = audit.fitting(name, found)
                    if len(fitting) == 1:
                        paths[name] = _Path(module=module, layout=fitting[0])
                        break
        return paths, views


def _ignore(unit: Unit, calls: Calls) -> None:
    """No unit is asked for."""


def _agree(fitting: dict[str, list[Layout]]) -> dict[str, Layout]:
    """One layout each. Where a gradient of zero fits both, the order that the other parameters have shown is taken."""
    shown = {layouts[0] for layouts in fitting.values() if len(layouts) == 1}
    common = shown.pop() if len(shown) == 1 else None
    chosen = {
        name: layouts[0] if len(layouts) == 1 else common
        for name, layouts in fitting.items()
        if layouts
    }
    return {name: layout for name, layout in chosen.items() if layout is not None}


def make_sum(parameter: Tensor) -> Tensor:
    """Zeros to add up in, at least in single precision: many small squares would be lost in less."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)


def _find_owners(
    model: nn.Module, parameters: dict[str, nn.Parameter]
) -> dict[str, list[nn.Module]]:
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    return {name: owners.get(id(parameter), []) for name, parameter in parameters.items()}


def _enclosing(model: nn.Module, owners: list[nn.Module]) -> list[nn.Module]:
    """Modules that hold all owners, the smallest first."""
    held = {module: set(module.modules()) for module in model.modules()}
    return sorted(
        (m for m in held if owners and held[m].issuperset(owners)),
        key=lambda module: len(held[module]),
    )


@contextmanager
def _without_grad(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Autograd need not form the gradients that the rules form per example."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
