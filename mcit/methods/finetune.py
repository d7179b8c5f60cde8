"""Plain finetuning, task after task: nothing is protected, the lower bound.

With `fresh_pairs`, every task trains a LoRA pair of its own next to those of earlier tasks, which
are frozen and act: the control of methods that learn so (ewc_delta, olora, reglora).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.fresh_pairs import find_lora_problems
from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class Finetune(Method):
    """Finetuning without protection."""

    name = "finetune"
    first_task_is_finetuning = True
    steps_move_network_only = True
    works_sharded = True
    fresh_pairs: bool = option(False, help="a LoRA pair for every task, instead of one for all")

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        return find_lora_problems(self.name, model) if self.fresh_pairs else []

    def begins_pair(self, stage: Stage) -> bool:
        return self.fresh_pairs and stage.index > 0

    def describe(self) -> str:
        if self.fresh_pairs:
            return "no protection; a LoRA pair for every task"
        return "no protection"
