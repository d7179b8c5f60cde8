"""MoELoRA: experts of low rank, mixed by a router for every token, learned task after task.

Chen et al., CoIN: a benchmark of continual instruction tuning for multimodal large language models,
NeurIPS 2024, https://arxiv.org/abs/2403.08350

y = W x + (alpha / rank) sum_e softmax(R x)_e B_e A_e x, with `model.lora.experts` experts that
divide `model.lora.rank`. All experts act on every token; no loss balances them, and nothing is
frozen between tasks, as in the public code: the architecture alone is to keep tasks apart.

The experts are a property of the model (mcit/models/lora_experts.py) and compose with methods that
hold weights: `--method ewc --set model.lora.experts=4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.config.schema import ModelConfig
from mcit.method import Method
from mcit.task import Task


@dataclass
class Moelora(Method):
    """Finetuning of experts and their routers."""

    name = "moelora"
    works_sharded = True
    first_task_is_finetuning = True
    needs_lora = True

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if model.lora.experts > 1:
            return []
        return [
            "method 'moelora' needs low-rank experts, and model.lora.experts is "
            f"{model.lora.experts}: add --set model.lora.rank=16 --set model.lora.experts=4"
        ]

    def describe(self) -> str:
        return "low-rank experts and a router (MoELoRA), no other protection"
