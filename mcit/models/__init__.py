"""The backbones and their heads; `build` makes what a configuration names."""

from __future__ import annotations

from pathlib import Path

from mcit.config import ConfigError, ModelConfig
from mcit.models.learner import Learner

__all__ = ["Learner", "build"]

EMBEDDED = Path(__file__).resolve().parent.parent / "embedded" / "vilt"


def build(config: ModelConfig, stem: str = "cifar") -> Learner:
    """A learner that has no heads yet, with the backbone that `config.name` stands for.

    `resnet18` starts from random weights, with the stem that suits the size of the images; `embedded` is the small
    ViLT that ships with mcit; anything else is the hub name or the folder of a ViLT.
    """
    if config.name == "resnet18":
        return _build_resnet(config, stem)
    # Imported here, so that a run on images alone does not wait for transformers.
    from mcit.models.vilt import load_vilt

    name = str(EMBEDDED) if config.name == "embedded" else config.name
    encoder, processor = load_vilt(name, config.gradient_checkpointing, config.lora)
    return Learner(encoder, processor)


def _build_resnet(config: ModelConfig, stem: str) -> Learner:
    from mcit.models.resnet import build_resnet

    asked = {
        "model.lora.rank": config.lora.rank > 0,
        "model.gradient_checkpointing": config.gradient_checkpointing,
    }
    problems = [
        f"{key} is an option of ViLT, and model.name is 'resnet18'"
        for key, found in asked.items()
        if found
    ]
    if problems:
        raise ConfigError(problems)
    return Learner(
        build_resnet(width=config.width or 64, stem=stem, channels_last=config.channels_last)
    )
