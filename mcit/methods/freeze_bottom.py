"""CLiMB's control: the embeddings and the bottom layers of the encoder are frozen."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config import ConfigError
from mcit.method import Method, Stage


@dataclass
class FreezeBottom(Method):
    """Embeddings and the first `layers` layers do not learn; a number below 1 is a share of all layers."""

    name = "freeze_bottom"
    looks_ahead = False
    layers: float = 0.75

    def __post_init__(self) -> None:
        if not self.layers > 0:
            raise ConfigError([f"method.layers must be above 0, found {self.layers:g}"])

    def begin_task(self, stage: Stage) -> None:
        vilt = getattr(stage.learner.encoder, "vilt", None)
        if vilt is None:
            raise ConfigError(["method 'freeze_bottom' needs a ViLT, whose layers are counted from the bottom"])
        layers = vilt.encoder.layer
        count = round(self.layers * len(layers)) if self.layers < 1 else int(self.layers)
        if count > len(layers):
            raise ConfigError([f"method.layers is {count}, the encoder has {len(layers)}"])
        for module in (vilt.embeddings, *layers[:count]):
            module.requires_grad_(False)

    def describe(self) -> str:
        bottom = f"{self.layers:.0%} of the layers" if self.layers < 1 else f"{int(self.layers)} layers"
        return f"embeddings and the bottom {bottom} are frozen"
