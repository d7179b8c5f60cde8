"""Plain finetuning, task after task: nothing is protected, the lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.method import Method


@dataclass
class Finetune(Method):
    """Finetuning without protection."""

    name = "finetune"
    first_task_is_finetuning = True

    def describe(self) -> str:
        return "no protection"
