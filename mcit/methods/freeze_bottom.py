"""CLiMB's control: the embeddings and the bottom layers of the encoder are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcit.config import ConfigError
from mcit.method import Method, Stage
from mcit.task import Task, is_class_incremental


@dataclass
class FreezeBottom(Method):
    """Embeddings and the first `layers` layers do not learn; a number below 1 is a share of all layers."""

    name = "freeze_bottom"
    looks_ahead = False
    layers: float = 0.75

    def __post_init__(self) -> None:
        if not self.layers > 0 or (self.layers > 1 and not self.layers.is_integer()):
            raise ConfigError(
                [f"method.layers must be a share between 0 and 1 or a count, found {self.layers:g}"]
            )

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        if not is_class_incremental(tasks):
            return []
        return ["method 'freeze_bottom' needs a ViLT, whose layers are counted from the bottom"]

    def begin_task(self, stage: Stage) -> None:
        vilt = stage.learner.encoder.vilt
        layers = vilt.encoder.layer
        count = round(self.layers * len(layers)) if self.layers < 1 else int(self.layers)
        if count > len(layers):
            raise ConfigError([f"method.layers is {count}, the encoder has {len(layers)}"])
        for module in (vilt.embeddings, *layers[:count]):
            module.requires_grad_(False)

    def describe(self) -> str:
        bottom = (
            f"{self.layers:.0%} of the layers" if self.layers < 1 else f"{int(self.layers)} layers"
        )
        return f"embeddings and the bottom {bottom} are frozen"
