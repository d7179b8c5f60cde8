"""What goes into layers and comes out of modules during one forward pass, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mcit.gradients.contributions import Contribution, Layout, group_rows, rule_for


@dataclass
class Use:
    """One call of a layer: what went in, what came out, and the gradients once they have arrived."""

    inputs: Tensor | None
    version: int
    outputs: list[Tensor | None]
    gradients: list[Tensor | None]
    rows: set[int]  # first dimensions of the outputs


class Capture:
    """Sees what goes into layers (`ruled`), what comes out of modules (`local`), and the gradients that come back."""

    def __init__(self, ruled: set[nn.Module], local: set[nn.Module]):
        self.ruled, self.local = ruled, local
        self.uses: dict[nn.Module, list[Use]] = {}
        self.finished: set[nn.Module] = set()
        self.consume: Callable[[nn.Module, list[Use]], None] | None = None
        self.handles = [module.register_forward_hook(self._see) for module in ruled | local]

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.uses.clear()

    def backward(self, total: Tensor, consume: Callable[[nn.Module, list[Use]], None], retain_graph: bool) -> None:
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
        use = Use(source, 0 if source is None else source._version, list(outputs), [None] * len(outputs), rows)
        self.uses.setdefault(module, []).append(use)
        for place, leaf in enumerate(outputs):
            leaf.register_hook(partial(self._arrive, module, use, place))
        if module not in self.local:
            use.outputs = [None] * len(outputs)  # a rule needs none: do not keep them alive
        return begun

    def _arrive(self, module: nn.Module, use: Use, place: int, gradient: Tensor) -> None:
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


def contribute(module: nn.Module, uses: list[Use], examples: int, layout: Layout) -> dict[str, Contribution]:
    check_rows(f"a {type(module).__name__}", [use.gradients[0] for use in uses], examples)
    # under autocast, inputs and gradients may be narrower than the weights
    dtype = torch.promote_types(next(module.parameters(recurse=False)).dtype, torch.float32)
    sides = [(use.inputs.to(dtype) if use.inputs.is_floating_point() else use.inputs, use.gradients[0]) for use in uses]
    parts = [(group_rows(x, examples, layout), group_rows(g.to(dtype), examples, layout)) for x, g in sides]
    return rule_for(module)(module, parts)


def check_rows(what: str, gradients: list[Tensor], examples: int) -> None:
    for gradient in gradients:
        if len(gradient) % examples:
            raise RuntimeError(
                f"{what} gave {len(gradient)} rows for {examples} examples, though in the first batch the rows were a "
                "multiple of the examples; give all batches the same form"
            )
