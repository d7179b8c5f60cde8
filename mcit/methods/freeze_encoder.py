"""The backbone stays as it was pretrained, and only the heads learn: a control of CLiMB.

Srinivasan et al., CLiMB: a continual learning benchmark for vision-and-language tasks,
NeurIPS 2022, https://arxiv.org/abs/2206.09059
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.config.schema import ModelConfig
from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class FreezeEncoder(Method):
    """Nothing is forgotten, and nothing but the heads is learned."""

    name = "freeze_encoder"

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if not model.from_scratch:
            return []
        return [
            f"method 'freeze_encoder' needs pretrained weights; {model.name!r} starts at random"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        stage.learner.encoder.requires_grad_(False)
        return ()

    def describe(self) -> str:
        return "the encoder is frozen"
