"""Backbones and their heads; `build` makes the one that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcit.config.schema import ModelConfig
from mcit.models.learner import Learner
from mcit.task import Task, Track

IMAGES = frozenset({"images"})
# the small models that ship with mcit, in Hugging Face format
EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"


def build(config: ModelConfig, tasks: Sequence[Task]) -> Learner:
    """Return a learner without heads, with the backbone that `config.name` stands for.

    `resnet18` starts from random weights; `embedded` is the small model that ships with mcit;
    anything else is the hub name or the folder of a checkpoint.
    """
    if config.from_scratch:
        learner = _build_resnet(config, tasks[0])
    elif tasks[0].track is Track.TEXT:
        from mcit.models.generative import load_generative

        learner = load_generative(find_place(config), config)
    elif tasks[0].reads == IMAGES:
        # imported late, so that a run on a ResNet does not wait for transformers
        from mcit.models.image import load_image_model

        learner = Learner(*load_image_model(config.name, config))
    else:
        from mcit.models.vilt import load_vilt

        name = str(EMBEDDED / "vilt") if config.name == "embedded" else config.name
        learner = Learner(*load_vilt(name, config))
    if config.lora.rank > 0:
        learner.add_adapter("default", config.lora)
    return learner


def find_place(config: ModelConfig) -> str:
    """Return the hub name or folder of a generative model's checkpoint."""
    return str(EMBEDDED / "llava") if config.name == "embedded" else config.name


def find_model_problems(config: ModelConfig, tasks: Sequence[Task]) -> list[str]:
    """Return why a model cannot learn these tasks, as far as its name and options say."""
    problems = []
    # parts of one data set are one name
    reading = dict.fromkeys(task.dataset or task.name for task in tasks if task.reads != IMAGES)
    answering = [task.name for task in tasks if task.track is Track.TEXT]
    looking = dict.fromkeys(task.dataset or task.name for task in tasks if task.reads == IMAGES)
    if config.from_scratch and reading:
        listed = ", ".join(reading)
        use = "a generative model" if answering else "a ViLT"
        problems.append(
            f"model.name is {config.name!r}, which reads no text; use {use} for {listed}"
        )
    if config.name == "embedded" and looking:
        listed = ", ".join(looking)
        problems.append(
            f"model.name is 'embedded', a ViLT; use 'resnet18' for {listed}, or an image model of "
            "transformers: a hub name or a folder"
        )
    if config.width is not None and not config.from_scratch:
        problems.append("model.width is an option of resnet18; other networks have a fixed width")
    if config.bottleneck is not None and not config.from_scratch:
        problems.append(
            "model.bottleneck is an option of resnet18; leave it out for other networks"
        )
    if config.from_scratch and config.lora.rank > 0:
        problems.append("model.lora.rank needs pretrained weights, and 'resnet18' starts at random")
    if config.from_scratch and config.gradient_checkpointing:
        problems.append("model.gradient_checkpointing is an option of transformers' models")
    if not answering:
        for name in ("dtype", "trained", "images"):
            if getattr(config, name) != getattr(ModelConfig(), name):
                problems.append(f"model.{name} is an option of generative models")
        if config.lora.projector:
            problems.append("model.lora.projector is an option of generative models")
    elif config.dtype != "float32" and (config.lora.rank == 0 or config.trained):
        problems.append(
            f"model.dtype is {config.dtype!r}, but weights that are trained need float32: set "
            f"model.lora.rank, and leave model.trained out"
        )
    return problems


def _build_resnet(config: ModelConfig, task: Task) -> Learner:
    from mcit.models.resnet import build_resnet

    defaults = task.network_defaults()
    width = config.width or defaults.get("width", 64)
    stem = defaults.get("stem", "cifar")
    return Learner(build_resnet(width, stem, config.channels_last, config.bottleneck))
