"""What a recipe means to the weights: the optimizer, and its rate at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mcit.config import ConfigError
from mcit.task import Recipe


def learning_rate(recipe: Recipe, progress: float, epoch: int) -> float:
    """The rate at a share `progress` of all steps, in an epoch counted from 0."""
    if recipe.schedule == "steps":
        return recipe.learning_rate * recipe.factor ** sum(
            epoch >= milestone for milestone in recipe.milestones
        )
    if recipe.schedule == "linear":
        if progress < recipe.warmup:
            return recipe.learning_rate * progress / recipe.warmup
        return recipe.learning_rate * (1 - progress) / (1 - recipe.warmup)
    return recipe.learning_rate


def build_optimizer(recipe: Recipe, learner: nn.Module) -> torch.optim.Optimizer:
    """A new optimizer over all trainable parameters."""
    trained = [p for p in learner.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("nothing is left to train: every parameter is frozen")
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            trained, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay
        )
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], recipe.learning_rate, recipe.betas, recipe.eps
    )


def check_together(recipes: Sequence[Recipe]) -> None:
    """One optimizer serves all tasks of a stage: what belongs to it must be the same in all recipes."""
    for name in ("optimizer", "weight_decay", "betas", "eps", "momentum"):
        found = sorted({str(getattr(recipe, name)) for recipe in recipes})
        if len(found) > 1:
            raise ConfigError(
                [
                    f"tasks learned together need recipes with the same {name}, found {', '.join(found)}"
                ]
            )
