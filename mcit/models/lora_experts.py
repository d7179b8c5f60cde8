"""LoRA whose rank is divided among experts that a router mixes for every token (MoELoRA).

Chen et al., CoIN: a benchmark of continual instruction tuning for multimodal large language models,
NeurIPS 2024, https://arxiv.org/abs/2403.08350

y = W x + scale * sum_e softmax(R x)_e B_e A_e x, with scale = alpha / rank, where rank is that of
all experts together. A and B are those of an ordinary pair, A_e and B_e their rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

ROUTER = "lora_router"


def expert_layers(experts: int) -> dict[type[nn.Module], type[nn.Module]]:
    """Return what peft shall put in the place of layers, by their type."""
    # imported late: peft takes a second
    from peft.tuners.lora import Linear

    class ExpertLinear(Linear):
        """A linear layer with experts next to it."""

        adapter_layer_names = (*Linear.adapter_layer_names, ROUTER)

        def update_layer(self, adapter_name: str, *arguments: Any, **options: Any) -> None:
            if not hasattr(self, ROUTER):
                self.lora_router = nn.ModuleDict()
            weight = self.get_base_layer().weight
            router = nn.Linear(self.in_features, experts, bias=False)
            self.lora_router[adapter_name] = router.to(weight.device)
            super().update_layer(adapter_name, *arguments, **options)

        def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
            result = self.base_layer(x, *arguments, **options)
            for name in self.active_adapters:
                down = self.lora_A[name]
                inputs = x.to(down.weight.dtype)
                gates = self.lora_router[name](inputs).softmax(dim=-1)  # [..., experts]
                low = down(self.lora_dropout[name](inputs))  # [..., rank]
                mixed = low.unflatten(-1, (experts, -1)) * gates.unsqueeze(-1)
                added = self.lora_B[name](mixed.flatten(-2)) * self.scaling[name]
                result = result + added.to(result.dtype)
            return result

        def merge(self, *arguments: Any, **options: Any) -> None:
            raise ValueError("experts depend on the token and cannot be merged into a weight")

    return {nn.Linear: ExpertLinear}


def count_experts(weights: Mapping[str, Tensor]) -> int:
    """Return how many experts stored adapter weights have, 0 if they have no router."""
    for name, weight in weights.items():
        if f"{ROUTER}." in name:
            return len(weight)
    return 0
