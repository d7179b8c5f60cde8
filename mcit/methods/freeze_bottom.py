"""The embeddings and the bottom layers of the backbone are frozen: a control of CLiMB.

Srinivasan et al., CLiMB: a continual learning benchmark for vision-and-language tasks,
NeurIPS 2022, https://arxiv.org/abs/2206.09059
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.task import Task


@dataclass
class FreezeBottom(Method):
    """Embeddings and the first layers do not learn."""

    name = "freeze_bottom"
    layers: float = option(0.75, help="how many layers; a number below 1 is a fraction of all")

    def __post_init__(self) -> None:
        whole = self.layers <= 1 or self.layers.is_integer()
        if not self.layers > 0 or not whole:
            raise ConfigError(
                [f"method.layers must be a fraction below 1 or a count, found {self.layers:g}"]
            )

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if not model.from_scratch:
            return []
        return [f"method 'freeze_bottom' needs pretrained weights; {model.name!r} starts at random"]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        encoder = stage.learner.encoder
        blocks = encoder.count_blocks()
        count = round(self.layers * blocks) if self.layers < 1 else int(self.layers)
        if count > blocks:
            raise ConfigError([f"method.layers is {count}, but the encoder has {blocks}"])
        encoder.freeze_bottom(count)
        return ()

    def describe(self) -> str:
        bottom = f"{self.layers:.0%} of the layers"
        if self.layers >= 1:
            bottom = f"{int(self.layers)} layers"
        return f"embeddings and the bottom {bottom} are frozen"
