"""Plain finetuning, task after task: the lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.method import Method


@dataclass
class Finetune(Method):
    """Nothing is protected."""

    name = "finetune"
