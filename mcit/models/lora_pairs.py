"""LoRA pairs, one for every task: a fresh one trains, and those before it stay, frozen and acting.

y = W x + sum_t scale B_t A_t x

Products are summed, never factors: (B_1 + B_2)(A_1 + A_2) would have cross terms. A finished pair
is kept next to the layer instead of being merged into its weight, so that a checkpoint holds what
was learned and the base stays as it was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# entries of a product that are handled at once: they stay in a core's own cache
CHUNK = 1 << 15


@dataclass(frozen=True)
class Pair:
    """A pair next to a layer, whose weight it adds scale * B A to."""

    # of the layer's weight, within the module that was searched
    name: str
    weight: nn.Parameter
    # [rank, inputs]; of a convolution, [rank, inputs, height, width]
    a: nn.Parameter
    # [outputs, rank]; of a convolution, [outputs, rank, 1, 1]
    b: nn.Parameter
    scale: float

    def product(self) -> Tensor:
        """Return B A [outputs, inputs], without the scale and without a graph."""
        return self.b.detach().flatten(1) @ self.a.detach().flatten(1)

    @torch.no_grad()
    def add_gradient_(self, gradient: Tensor) -> None:
        """Add to the gradients of A and B what a gradient [outputs, inputs] of B A is for them."""
        down = self.a.detach().flatten(1)
        up = self.b.detach().flatten(1)
        _add(self.a, up.T @ gradient)
        _add(self.b, gradient @ down.T)

    @torch.no_grad()
    def add_pull_(self, stiffness: Tensor, factor: float) -> None:
        """Add the gradients of factor / 2 * sum stiffness * (B A)^2, stiffness [outputs, inputs].

        Rows are handled a few at a time: scratch memory is small and stays in a processor's cache.
        """
        down = self.a.detach().flatten(1)
        up = self.b.detach().flatten(1)
        for_a = torch.zeros_like(down)
        for_b = torch.empty_like(up)
        rows = max(1, CHUNK // down.shape[1])
        parts = zip(up.split(rows), stiffness.split(rows), for_b.split(rows), strict=True)
        for some, weights, gradient in parts:
            pull = torch.mm(factor * some, down).mul_(weights)
            for_a.addmm_(some.T, pull)
            torch.mm(pull, down.T, out=gradient)
        _add(self.a, for_a)
        _add(self.b, for_b)

    def bytes_held(self) -> int:
        """Return the size of both matrices."""
        return self.a.nbytes + self.b.nbytes


def list_pairs(module: nn.Module, adapter: str) -> list[Pair]:
    """Return the pairs of an adapter, in the order of the layers."""
    pairs = []
    for path, layer in lora_layers(module):
        if adapter in layer.lora_A:
            pair = Pair(
                name=f"{path}.base_layer.weight",
                weight=layer.get_base_layer().weight,
                a=layer.lora_A[adapter].weight,
                b=layer.lora_B[adapter].weight,
                scale=layer.scaling[adapter],
            )
            pairs.append(pair)
    return pairs


def use_adapters(module: nn.Module, names: Sequence[str]) -> None:
    """Let these adapters act together and the last of them train; all others rest."""
    finished = names[:-1]
    for _, layer in lora_layers(module):
        # peft lets all of them train
        layer.set_adapter(list(names))
        for name in finished:
            if name not in layer.lora_A:
                continue
            # what is finished is the same in every step
            layer.lora_dropout[name] = nn.Identity()
            for part in layer.adapter_layer_names:
                held = getattr(layer, part)
                if name in held:
                    held[name].requires_grad_(False)


def find_acting(module: nn.Module) -> list[str]:
    """Return the adapters that act, the last of which trains; none if there are none."""
    for _, layer in lora_layers(module):
        return list(layer.active_adapters)
    return []


def lora_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers that have adapters, by name."""
    # imported late: peft takes a second
    from peft.tuners.lora import LoraLayer

    for path, layer in module.named_modules():
        if isinstance(layer, LoraLayer):
            yield path, layer


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.add_(gradient.view_as(parameter).to(parameter.grad.dtype))
