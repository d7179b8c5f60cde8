"""CLiMB's control: the encoder stays as it was pretrained, only the heads learn."""

from __future__ import annotations

from dataclasses import dataclass

from mcit.config import ConfigError
from mcit.method import Method, Stage


@dataclass
class FreezeEncoder(Method):
    """Nothing is forgotten, and nothing but the heads is learned."""

    name = "freeze_encoder"
    looks_ahead = False

    def begin_task(self, stage: Stage) -> None:
        if stage.learner.processor is None:
            raise ConfigError(["method 'freeze_encoder' needs a pretrained encoder; this one starts at random"])
        stage.learner.encoder.requires_grad_(False)

    def describe(self) -> str:
        return "the encoder is frozen"
