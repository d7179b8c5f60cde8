"""Plain finetuning, task after task: the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.method import Method, Stage


@dataclass
class Finetune(Method):
    """Nothing is protected."""

    name = "finetune"
    looks_ahead = False

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        return None if stage.index else {}

    def describe(self) -> str:
        return "no protection"
