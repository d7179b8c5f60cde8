"""Sums of squared per-example gradients, layer by layer, while one ordinary backward pass runs.

Each parameter is served by the fastest path that is proven exact on the user's own model and data:

1. rule: the closed form of its layer (mcit/contributions.py), from the layer's input and the gradient at its output;
2. module: a small backward per example through the smallest enclosing module whose output has rows per example;
3. network: a backward per example through everything.

The proof is an audit on the first batch: with a random weight w_i per example, the per-example gradients g_i of a path
must satisfy sum_i w_i g_i = gradient of sum_i w_i score_i, which autograd gives independently. A layer used outside its
module, a weight tied to another, rows in an order of their own: all of them fail it, and the next path is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mcit.contributions import Contribution, Layout, group_rows, reads_rows, rule_for

Scores = Callable[[], Iterable[Tensor]]  # runs the network, gives vectors [examples]
LAYOUTS: tuple[Layout, ...] = ("consecutive", "blocks")
# A wrong path is off by as much as the gradient itself, rounding by a few units of the last place of what was added up.
AUDIT_TOLERANCE = 1e-4
AUDIT_ROUNDING = 64


@dataclass
class _Use:
    """One call of a layer: what went in, what came out, and the gradients once they have arrived."""

    inputs: Tensor | None
    version: int
    outputs: list[Tensor | None]
    gradients: list[Tensor | None]
    rows: set[int]  # first dimensions of the outputs


@dataclass(frozen=True)
class _Path:
    """How a parameter is served; without a module, by the whole network."""

    module: nn.Module | None = None
    layout: Layout = "consecutive"
    rule: bool = False


class PerExampleGradients:
    """Accumulates sum_i f(g_i) for named parameters, f the square or the absolute value, in `sums`."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], absolute: bool = False):
        self.model, self.parameters, self.absolute = model, parameters, absolute
        self.sums = {name: make_sum(parameter) for name, parameter in parameters.items()}
        self.owners = _find_owners(model, parameters)
        self.paths: dict[str, _Path] = {}
        self.audited: dict[nn.Module, set[float]] = {}  # rows per example that each module had in the audit
        self.single = False  # whether the audit had one example only, which says nothing about rows

    def add(self, scores: Scores) -> int:
        """Add what one batch contributes; gives the number of its examples. `scores` may be called more than once."""
        if not self.paths:
            self._plan(scores)
        ruled, local = self._served(rule=True), self._served(rule=False)
        whole = local.pop(None, [])
        frozen = [self.parameters[name] for names in ruled.values() for name in names]
        with _without_grad(frozen), _Capture(set(ruled), set(local)) as capture:
            vectors = _collect(scores)
            examples = len(vectors[0])
            if not self._is_audited(capture, examples):
                self.paths = {}
            for number, vector in enumerate(vectors if self.paths else (), start=1):
                retain = number < len(vectors) or bool(local) or bool(whole)
                capture.backward(vector.sum(), lambda m, uses: self._apply_rule(ruled[m], m, uses, examples), retain)
                for module, names in local.items():
                    self._apply_module(names, *capture.collect(module), examples)
                self._apply_network(whole, vector)
        return examples if self.paths else self.add(scores)

    def _is_audited(self, capture: _Capture, examples: int) -> bool:
        """Whether every module has as many rows per example as when it was audited; a single one has no order."""
        if self.single or examples == 1:
            return examples == 1
        return all(views <= self.audited[m] | {1.0} for m, views in capture.count_views(examples).items())

    def describe_paths(self) -> dict[str, str]:
        """For each parameter the path that serves it: rule, module or network."""
        return {n: "rule" if p.rule else "module" if p.module else "network" for n, p in self.paths.items()}

    def _served(self, rule: bool) -> dict[nn.Module | None, list[str]]:
        served: dict[nn.Module | None, list[str]] = {}
        for name, path in self.paths.items():
            if path.rule == rule:
                served.setdefault(path.module, []).append(name)
        return served

    def _apply_rule(self, names: list[str], module: nn.Module, uses: list[_Use], examples: int) -> None:
        contributions = _contribute(module, uses, examples, self.paths[names[0]].layout)
        for name in names:
            contributions[name.rpartition(".")[2]].add_to(self.sums[name], self.absolute)

    def _apply_module(self, names: list[str], outputs: list[Tensor], gradients: list[Tensor], examples: int) -> None:
        if not outputs:  # the module's output did not reach the score
            return
        layout = self.paths[names[0]].layout
        _check_rows("a module", gradients, examples)
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
        reached = [name for name, gradient in zip(names, found, strict=True) if gradient is not None]
        for score in vector if reached else ():
            self._add_gradients(reached, [score], None)

    def _add_gradients(self, names: list[str], outputs: list[Tensor], gradients: list[Tensor] | None) -> None:
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(outputs, parameters, gradients, retain_graph=True, allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            if gradient is not None:
                gradient = gradient.to(self.sums[name].dtype)
                self.sums[name] += gradient.abs() if self.absolute else gradient.square()

    def _plan(self, scores: Scores) -> None:
        names: dict[nn.Module, list[str]] = {}
        for name, owners in self.owners.items():
            if len(owners) == 1 and rule_for(owners[0]):
                names.setdefault(owners[0], []).append(name)
        candidates: dict[str, dict[Layout, tuple[Tensor, Tensor]]] = {}
        with _Capture(set(names), set()) as capture:
            audit = _Audit(self.parameters, scores)
            views = capture.count_views(audit.examples)
            capture.backward(audit.total, lambda m, uses: candidates.update(audit.weigh(m, uses, names[m])), False)
        layouts = _agree({name: audit.fitting(name, found) for name, found in candidates.items()})
        paths = {name: _Path(self.owners[name][0], layout, rule=True) for name, layout in layouts.items()}
        # what the score does not reach shows nothing: should a later batch reach it, the network serves it
        idle = {name: _Path() for name, truth in audit.truth.items() if truth is None}
        rest = [name for name in self.parameters if name not in paths and name not in idle]
        more, more_views = self._plan_modules(rest, scores) if rest else ({}, {})
        self.paths, views = {**idle, **paths, **more}, {**more_views, **views}
        served = set(self._served(rule=True)) | set(self._served(rule=False)) - {None}
        self.single = audit.examples == 1
        self.audited = {module: views.get(module, set()) for module in served}

    def _plan_modules(self, names: list[str], scores: Scores) -> tuple[dict[str, _Path], dict[nn.Module, set[float]]]:
        chains = {name: _enclosing(self.model, self.owners[name]) for name in names}
        paths = {}
        with _Capture(set(), {module for chain in chains.values() for module in chain}) as capture:
            audit = _Audit(self.parameters, scores)
            views = capture.count_views(audit.examples)
            capture.backward(audit.total, lambda m, uses: None, True)
            for name in names:
                paths[name] = _Path()
                for module in chains[name]:
                    found = audit.weigh_module(name, self.parameters[name], *capture.collect(module))
                    fitting = audit.fitting(name, found)
                    if len(fitting) == 1:
                        paths[name] = _Path(module, fitting[0])
                        break
        return paths, views


class _Audit:
    """What autograd says the weighted sum of per-example gradients is, and what the paths say."""

    def __init__(self, parameters: dict[str, nn.Parameter], scores: Scores):
        vector = sum(_collect(scores))
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

    def weigh(self, module: nn.Module, uses: list[_Use], names: list[str]) -> dict[str, dict[Layout, tuple]]:
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
            contributions = _contribute(module, uses, self.examples, layout)
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


class _Capture:
    """Sees what goes into layers (`ruled`), what comes out of modules (`local`), and the gradients that come back."""

    def __init__(self, ruled: set[nn.Module], local: set[nn.Module]):
        self.ruled, self.local = ruled, local
        self.uses: dict[nn.Module, list[_Use]] = {}
        self.finished: set[nn.Module] = set()
        self.consume: Callable[[nn.Module, list[_Use]], None] | None = None
        self.handles = [module.register_forward_hook(self._see) for module in ruled | local]

    def __enter__(self) -> _Capture:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.uses.clear()

    def backward(self, total: Tensor, consume: Callable[[nn.Module, list[_Use]], None], retain_graph: bool) -> None:
        """Run the backward pass; `consume` gets each layer as soon as the gradients of all its uses are there."""
        for use in (use for uses in self.uses.values() for use in uses):
            use.gradients = [None] * len(use.gradients)
        self.consume, self.finished = consume, set()
        if total.requires_grad:
            total.backward(retain_graph=retain_graph)
        for module in self.ruled & self.uses.keys():  # layers some of whose uses did not reach the score
            self._finish(module)
        self.consume = None  # later passes over the same graph are not for the rules

    def count_views(self, examples: int) -> dict[nn.Module, set[float]]:
        """How many rows per example each module that was used has put out."""
        return {module: {rows / examples for use in uses for rows in use.rows} for module, uses in self.uses.items()}

    def collect(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """All outputs of a module that reached the score, and their gradients."""
        uses = self.uses.get(module, [])
        pairs = [(o, g) for use in uses for o, g in zip(use.outputs, use.gradients, strict=True) if g is not None]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _see(self, module: nn.Module, inputs: tuple, output: object) -> object:
        if not torch.is_grad_enabled():
            return None
        begun = None
        if module in self.ruled and isinstance(output, Tensor) and not output.requires_grad:
            # nothing below asks for gradients: begin here. A copy, because a leaf may not be changed in place.
            begun = output = output.detach().requires_grad_().clone()
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        source = inputs[0].detach() if module in self.ruled and inputs else None
        rows = {len(leaf) if leaf.ndim else 0 for leaf in outputs}
        use = _Use(source, 0 if source is None else source._version, list(outputs), [None] * len(outputs), rows)
        self.uses.setdefault(module, []).append(use)
        for place, leaf in enumerate(outputs):
            leaf.register_hook(partial(self._arrive, module, use, place))
        if module not in self.local:
            use.outputs = [None] * len(outputs)  # a rule needs none: do not keep them alive
        return begun

    def _arrive(self, module: nn.Module, use: _Use, place: int, gradient: Tensor) -> None:
        if self.consume is None:
            return
        use.gradients[place] = gradient
        if module in self.ruled and all(g is not None for other in self.uses[module] for g in other.gradients):
            self._finish(module)

    def _finish(self, module: nn.Module) -> None:
        uses = [use for use in self.uses[module] if use.gradients and use.gradients[0] is not None]
        if not uses or module in self.finished:
            return
        self.finished.add(module)
        for use in uses:
            if use.inputs is not None and use.inputs._version != use.version:
                raise RuntimeError(
                    f"the input of a {type(module).__name__} was changed in place after the layer had read it, and "
                    "per-example gradients need it as it was: make that operation out of place"
                )
        self.consume(module, uses)
        if module not in self.local:
            for use in uses:
                use.gradients = [None] * len(use.gradients)


def _contribute(module: nn.Module, uses: list[_Use], examples: int, layout: Layout) -> dict[str, Contribution]:
    _check_rows(f"a {type(module).__name__}", [use.gradients[0] for use in uses], examples)
    # under autocast, inputs and gradients may be narrower than the weights
    dtype = torch.promote_types(next(module.parameters(recurse=False)).dtype, torch.float32)
    sides = [(use.inputs.to(dtype) if use.inputs.is_floating_point() else use.inputs, use.gradients[0]) for use in uses]
    parts = [(group_rows(x, examples, layout), group_rows(g.to(dtype), examples, layout)) for x, g in sides]
    return rule_for(module)(module, parts)


def _check_rows(what: str, gradients: list[Tensor], examples: int) -> None:
    for gradient in gradients:
        if len(gradient) % examples:
            raise RuntimeError(
                f"{what} gave {len(gradient)} rows for {examples} examples, though in the first batch the rows were a "
                "multiple of the examples; give all batches the same form"
            )


def _agree(fitting: dict[str, list[Layout]]) -> dict[str, Layout]:
    """One layout each. Where a gradient of zero fits both, the order that the other parameters have shown is taken."""
    shown = {layouts[0] for layouts in fitting.values() if len(layouts) == 1}
    common = shown.pop() if len(shown) == 1 else None
    chosen = {name: layouts[0] if len(layouts) == 1 else common for name, layouts in fitting.items() if layouts}
    return {name: layout for name, layout in chosen.items() if layout is not None}


def _collect(scores: Scores) -> list[Tensor]:
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


def make_sum(parameter: Tensor) -> Tensor:
    """Zeros to add up in, at least in single precision: many small squares would be lost in less."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)


def _find_owners(model: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, list[nn.Module]]:
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    return {name: owners.get(id(parameter), []) for name, parameter in parameters.items()}


def _enclosing(model: nn.Module, owners: list[nn.Module]) -> list[nn.Module]:
    """Modules that hold all owners, the smallest first."""
    held = {module: set(module.modules()) for module in model.modules()}
    return sorted((m for m in held if owners and held[m].issuperset(owners)), key=lambda module: len(held[module]))


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
