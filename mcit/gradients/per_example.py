"""Sums of squared per-example gradients, layer by layer, while one ordinary backward pass runs.

Each parameter is served by the fastest path that is exact on the user's own model and data:

1. rule: the closed form of its layer (contributions.py), from the layer's input and the gradient at
   its output; also of a weight that a word table and an output layer share;
2. module: a small backward per example through the smallest enclosing module whose output has rows
   per example;
3. network: a backward per example through everything.

An audit on a few examples of the first batch (audit.py) decides. A layer that is used outside its
module, a weight tied to another, rows in an unusual order: all of them fail it, and the next path
is tried. On the whole batch it is repeated if something there is different: layers have another
number of rows per example, rows of an example lie elsewhere, or parameters that no score of the few
examples reached have gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mcit.gradients.audit import (
    Audit,
    Comparison,
    Scores,
    add_scores,
    collect_scores,
    compare,
    draw_weights,
    is_close,
    scale_rows,
)
from mcit.gradients.capture import Calls, Capture, Unit
from mcit.gradients.contributions import (
    Layout,
    can_tie,
    check_rows,
    contribute,
    group_rows,
    magnitude,
    rule_for,
)
from mcit.gradients.preserve_state import preserve_random_states


@dataclass(frozen=True)
class _Path:
    """How a parameter is served: by a unit's rule, by a module, or else by the whole network."""

    unit: Unit | None = None
    module: nn.Module | None = None
    layout: Layout = "consecutive"

    def describe(self) -> str:
        if self.unit is not None:
            return "rule"
        if self.module is not None:
            return "module"
        return "network"


class PerExampleGradients:
    """Sums squares, or absolute values, of per-example gradients of named parameters, in `sums`."""

    def __init__(
        self, model: nn.Module, parameters: dict[str, nn.Parameter], absolute: bool = False
    ):
        self.model = model
        self.parameters = parameters
        self.absolute = absolute
        self.sums = {name: make_sum(parameter) for name, parameter in parameters.items()}
        self.owners = _find_owners(model, parameters)
        self.paths: dict[str, _Path] = {}
        # parameters by what serves them: a rule, a module, or the network
        self.units: dict[Unit, list[str]] = {}
        self.modules: dict[nn.Module, list[str]] = {}
        self.rest: list[str] = []
        # rows per example that each module had in the audit
        self.audited: dict[nn.Module, set[float]] = {}
        # whether the audit had one example only, which says nothing about the order of rows
        self.single = False
        self.precision = torch.float64
        # of a plan by a few examples, until a whole batch confirms it: parameters that no score
        # reached, and a module for each way in which an example has several rows
        self.unreached: list[str] = []
        self.witnesses: dict[nn.Module, Layout] = {}

    def add(self, scores: Scores, few: Scores | None = None) -> int:
        """Add one batch and return the number of its examples; `scores` may be called again.

        few: Scores of a few examples, which an audit needs less time and memory for.
        """
        if not self.paths:
            self._plan(few or scores)
            if few is None:
                self._confirm()
        ruled = [self.parameters[name] for names in self.units.values() for name in names]
        kept = self.modules.keys() | self.witnesses.keys()
        with _without_grad(ruled), Capture(self.units, kept) as capture:
            vectors = collect_scores(scores)
            examples = len(vectors[0])
            audited = self._is_audited(capture, examples)
            if audited and (self.unreached or self.witnesses):
                audited = self._holds_for(vectors, capture)
            if audited:
                self._confirm()
                self._add_vectors(vectors, capture)
            seen = set(capture.calls)
        if not audited:
            # rows in another form: audit this batch
            self.paths = {}
            return self.add(scores)
        unseen = []
        for unit, names in self.units.items():
            if seen.isdisjoint(unit):
                unseen += names
        self._check_unseen(unseen, scores)
        return examples

    def describe_paths(self) -> dict[str, str]:
        """Return the path that serves each parameter: rule, module or network."""
        return {name: path.describe() for name, path in self.paths.items()}

    # --- adding a batch

    def _add_vectors(self, vectors: list[Tensor], capture: Capture) -> None:
        examples = len(vectors[0])
        consume = partial(self._apply_rule, examples)
        for number, vector in enumerate(vectors, start=1):
            retain = number < len(vectors) or bool(self.modules) or bool(self.rest)
            capture.backward(vector.sum(), consume, retain)
            for module, names in self.modules.items():
                outputs, gradients = capture.collect(module)
                self._apply_module(names, outputs, gradients, examples)
            self._apply_network(self.rest, vector)

    def _apply_rule(self, examples: int, unit: Unit, calls: Calls) -> None:
        names = self.units[unit]
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
            chosen = [torch.zeros_like(gradient) for gradient in gradients]
            for mask, gradient in zip(chosen, gradients, strict=True):
                rows = group_rows(mask, examples, layout)
                rows[example] = group_rows(gradient, examples, layout)[example]
            self._add_gradients(names, outputs, chosen)

    def _apply_network(self, names: list[str], vector: Tensor) -> None:
        if not names or not vector.requires_grad:
            return
        reached = self._find_reached(names, vector.sum(), retain_graph=True)
        if reached:
            for score in vector:
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
                total = self.sums[name]
                total += magnitude(gradient.to(total.dtype), self.absolute)

    def _find_reached(self, names: list[str], total: Tensor, retain_graph: bool) -> list[str]:
        """Return the parameters that autograd has a gradient for."""
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(total, parameters, retain_graph=retain_graph, allow_unused=True)
        return [name for name, gradient in zip(names, found, strict=True) if gradient is not None]

    def _check_unseen(self, names: list[str], scores: Scores) -> None:
        """Raise a RuntimeError if the score depends on a parameter whose layer was not seen."""
        if not names:
            return
        total = add_scores(scores).sum()
        missed = self._find_reached(names, total, retain_graph=False)
        if missed:
            raise RuntimeError(
                f"{missed[0]!r} ({len(missed)} such) has a gradient, but the call of its layer was "
                "not seen: something runs the layer without its hooks (compiled or traced code, a "
                "forward that is called directly); measure the plain model"
            )

    def _is_audited(self, capture: Capture, examples: int) -> bool:
        """Whether every module has as many rows per example as when it was audited."""
        if self.single or examples == 1:
            # a single example has no order of rows
            return examples == 1
        for module, views in capture.count_views(examples).items():
            if not views <= self.audited[module] | {1.0}:
                return False
        return True

    def _holds_for(self, vectors: list[Tensor], capture: Capture) -> bool:
        """Whether what a few examples have shown is so in the whole batch."""
        total = torch.stack(vectors).sum(dim=0)
        if not total.requires_grad:
            return True
        if self.unreached and self._find_reached(self.unreached, total.sum(), retain_graph=True):
            return False
        with capture.paused():
            for module, layout in self.witnesses.items():
                outputs = capture.outputs_of(module)
                if not self._owns_rows(total, outputs, layout):
                    return False
        return True

    def _owns_rows(self, total: Tensor, outputs: list[Tensor], layout: Layout) -> bool:
        """Whether the gradient of each row at the outputs is that of its example's score."""
        weights = draw_weights(total)
        both = [total.sum(), (weights * total).sum()]
        plain, weighted = (
            torch.autograd.grad(score, outputs, retain_graph=True, allow_unused=True)
            for score in both
        )
        for gradient, truth in zip(plain, weighted, strict=True):
            if gradient is None:
                continue
            found = scale_rows(gradient, weights, layout)
            if not is_close(compare(found, truth, found.abs()), self.precision):
                return False
        return True

    def _confirm(self) -> None:
        """Note that the plan holds for a whole batch."""
        self.unreached = []
        self.witnesses = {}

    # --- choosing paths

    def _plan(self, scores: Scores) -> None:
        """Choose a path for every parameter."""
        with preserve_random_states():
            self._choose_paths(scores)

    def _choose_paths(self, scores: Scores) -> None:
        units = self._find_units()
        candidates: dict[str, dict[Layout, Comparison]] = {}
        layers = {module for unit in units for module in unit}
        with Capture(units, layers, only_outputs=True) as capture:
            audit = Audit(self.model, self.parameters, scores)
            views = capture.count_views(audit.examples)

            def weigh(unit: Unit, calls: Calls) -> None:
                candidates.update(audit.compare(unit, calls, units[unit]))

            capture.backward(audit.total, weigh, retain_graph=False)
        fitting = {name: audit.find_fitting(found) for name, found in candidates.items()}
        layouts = _choose_layouts(fitting)
        paths = {}
        for unit, names in units.items():
            for name in names:
                if name in layouts:
                    paths[name] = _Path(unit=unit, layout=layouts[name])
        # a parameter that the score does not reach shows nothing: should a later batch reach it,
        # the network serves it
        self.unreached = [name for name, truth in audit.truth.items() if truth is None]
        for name in self.unreached:
            paths.setdefault(name, _Path())
        rest = [name for name in self.parameters if name not in paths]
        if rest:
            module_paths, module_views = self._plan_modules(rest, scores, audit.precision)
            paths.update(module_paths)
            views = {**module_views, **views}
        self.single = audit.examples == 1
        self.precision = audit.precision
        self._take_paths(paths)
        served = {module for unit in self.units for module in unit}
        self.audited = {m: views.get(m, set()) for m in (*served, *self.modules)}
        self.witnesses = self._choose_witnesses(views)

    def _take_paths(self, paths: dict[str, _Path]) -> None:
        """Group the parameters by what serves them."""
        self.paths = paths
        self.units = {}
        self.modules = {}
        self.rest = []
        for name, path in paths.items():
            if path.unit is not None:
                self.units.setdefault(path.unit, []).append(name)
            elif path.module is not None:
                self.modules.setdefault(path.module, []).append(name)
            else:
                self.rest.append(name)

    def _choose_witnesses(self, views: Mapping[nn.Module, set[float]]) -> dict[nn.Module, Layout]:
        """Return one served module, and its layout, for each way to have several rows per example.

        It is the last that is called, from which the way back from the score is shortest.
        """
        layouts: dict[nn.Module, Layout] = {}
        for path in self.paths.values():
            if path.module is not None:
                layouts[path.module] = path.layout
            for module in path.unit or ():
                layouts[module] = path.layout
        chosen: dict[tuple, nn.Module] = {}
        for module, counts in views.items():
            if module in layouts and counts != {1.0}:
                chosen[tuple(sorted(counts)), layouts[module]] = module
        return {module: layouts[module] for module in chosen.values()}

    def _find_units(self) -> dict[Unit, list[str]]:
        """Return layers that have rules, alone or with a shared weight, and their parameters."""
        units: dict[Unit, list[str]] = {}
        for name, owners in self.owners.items():
            alone = len(owners) == 1 and rule_for(owners[0]) is not None
            if alone or (len(owners) > 1 and can_tie(owners)):
                units.setdefault(tuple(owners), []).append(name)
        return units

    def _plan_modules(
        self, names: list[str], scores: Scores, precision: torch.dtype
    ) -> tuple[dict[str, _Path], dict[nn.Module, set[float]]]:
        """Return a path by module or network for each name, and the rows per example of modules."""
        chains = {name: _list_enclosing(self.model, self.owners[name]) for name in names}
        paths = {}
        enclosing = {module for chain in chains.values() for module in chain}
        with Capture((), enclosing, only_outputs=True) as capture:
            # what the layers with rules have shown: a module's own gradients may be wider
            audit = Audit(self.model, self.parameters, scores, precision)
            views = capture.count_views(audit.examples)
            capture.backward(audit.total, _ignore, retain_graph=True)
            for name, chain in chains.items():
                paths[name] = _Path()
                for module in chain:
                    outputs, gradients = capture.collect(module)
                    found = audit.compare_module(name, self.parameters[name], outputs, gradients)
                    fitting = audit.find_fitting(found)
                    if len(fitting) == 1:
                        paths[name] = _Path(module=module, layout=fitting[0])
                        break
        return paths, views


def make_sum(parameter: Tensor) -> Tensor:
    """Return zeros to add up in, of at least 32 bits: many small squares would be lost in less."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)


def _ignore(unit: Unit, calls: Calls) -> None:
    """Consume nothing: no unit is captured."""


def _choose_layouts(fitting: Mapping[str, list[Layout]]) -> dict[str, Layout]:
    """Return one layout for each parameter that has a fitting one.

    If a gradient of zero fits both, it is the one that the other parameters have shown.
    """
    shown = {layouts[0] for layouts in fitting.values() if len(layouts) == 1}
    chosen = {}
    for name, layouts in fitting.items():
        if len(layouts) == 1:
            chosen[name] = layouts[0]
        elif layouts and len(shown) == 1:
            chosen[name] = next(iter(shown))
    return chosen


def _find_owners(
    model: nn.Module, parameters: dict[str, nn.Parameter]
) -> dict[str, list[nn.Module]]:
    """Return the modules in which each parameter is registered."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    return {name: owners.get(id(parameter), []) for name, parameter in parameters.items()}


def _list_enclosing(model: nn.Module, owners: list[nn.Module]) -> list[nn.Module]:
    """Return the modules that hold all owners, the smallest first."""
    if not owners:
        return []
    sizes = {}
    for module in model.modules():
        members = set(module.modules())
        if members.issuperset(owners):
            sizes[module] = len(members)
    return sorted(sizes, key=sizes.__getitem__)


@contextmanager
def _without_grad(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Keep autograd from forming gradients that the rules form per example."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
