"""The optimizer of a recipe, and its learning rate at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from mcit.errors import ConfigError
from mcit.task import Recipe

# where torch has optimizers of one kernel
FUSED_DEVICES = ("cpu", "cuda")


def learning_rate(recipe: Recipe, progress: float, epoch: int) -> float:
    """Return the rate after a fraction `progress` of all steps, in an epoch counted from 0."""
    peak = recipe.learning_rate
    if recipe.schedule == "steps":
        passed = sum(epoch >= milestone for milestone in recipe.milestones)
        return peak * recipe.factor**passed
    if recipe.schedule == "constant":
        return peak
    if progress < recipe.warmup:
        return peak * progress / recipe.warmup
    if recipe.schedule == "linear":
        return peak * (1 - progress) / (1 - recipe.warmup)
    # half a period of the cosine, from the peak to 0
    passed_part = (progress - recipe.warmup) / (1 - recipe.warmup)
    return peak * (1 + math.cos(math.pi * passed_part)) / 2


def build_optimizer(recipe: Recipe, learner: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer over all trainable parameters."""
    trained = [p for p in learner.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("nothing is left to train: every parameter is frozen")
    # one pass over each weight and its moments
    fused = all(parameter.device.type in FUSED_DEVICES for parameter in trained)
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            trained,
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=fused,
        )
        if recipe.momentum:
            # the kernel wants all of them at once, and some heads get no gradient at first; a first
            # step from 0 is that from the gradient alone
            for parameter in trained:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    if recipe.optimizer == "adam":
        return torch.optim.Adam(
            trained,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            fused=fused,
        )
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, fused=fused
    )


def check_together(recipes: Sequence[Recipe]) -> None:
    """Raise if recipes need different optimizers: one serves all tasks of a stage."""
    for name in ("optimizer", "weight_decay", "betas", "eps", "momentum"):
        values = sorted({str(getattr(recipe, name)) for recipe in recipes})
        if len(values) > 1:
            listed = ", ".join(values)
            raise ConfigError(
                [f"tasks learned together need recipes with the same {name}, found {listed}"]
            )
