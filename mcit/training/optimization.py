"""The optimizer of a recipe, and its learning rate at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mcit.errors import ConfigError
from mcit.parallel.sharded import is_sharded, measure_norm, separate, to_local
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
    # no kernel takes both sharded weights and whole ones
    apart = [{"params": part} for part in separate(trained)]
    if recipe.optimizer == "sgd":
        # that kernel does not know sharded weights
        fused = fused and not any(is_sharded(parameter) for parameter in trained)
        optimizer = torch.optim.SGD(
            apart,
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
            apart,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            fused=fused,
        )
    matrices = separate(p for p in trained if p.ndim > 1)
    others = separate(p for p in trained if p.ndim <= 1)
    groups = [{"params": part, "weight_decay": recipe.weight_decay} for part in matrices]
    groups += [{"params": part, "weight_decay": 0.0} for part in others]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, fused=fused
    )


def total_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the norm of all gradients; if a parameter is sharded, all processes must call."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(is_sharded(parameter) for parameter in parameters):
        return measure_norm(gradients)
    return nn.utils.get_total_norm(gradients)


def clip_norm_(parameters: Sequence[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients so that their norm is at most `limit`; return what it was."""
    if not any(is_sharded(parameter) for parameter in parameters):
        return nn.utils.clip_grad_norm_(parameters, limit)
    norm = total_norm(parameters)
    # as torch has it
    factor = min(1.0, limit / (float(norm) + 1e-6))
    for parameter in parameters:
        if parameter.grad is not None:
            to_local(parameter.grad).mul_(factor)
    return norm


def check_together(recipes: Sequence[Recipe]) -> None:
    """Raise if recipes need different optimizers: one serves all tasks of a stage."""
    for name in ("optimizer", "weight_decay", "betas", "eps", "momentum"):
        values = sorted({str(getattr(recipe, name)) for recipe in recipes})
        if len(values) > 1:
            listed = ", ".join(values)
            raise ConfigError(
                [f"tasks learned together need recipes with the same {name}, found {listed}"]
            )
