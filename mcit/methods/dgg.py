"""Dynamic gradient guidance (DGG): at random steps the weights are pulled back, never too hard.

Li et al., Multimodal continual instruction tuning with dynamic gradient guidance, CVPR 2026,
https://arxiv.org/abs/2511.15164

Before task t    anchor = theta
In its steps     with probability alpha  grad += min(1, |grad| / |pull|) * pull
                 pull = theta - anchor

An L2 anchor (`l2_anchor`) with a clipped pull that is switched on and off at random: where the
weights are far from the anchor, the pull counts as much as the task's gradient and no more. Norms
are over all weights that tasks share, with LoRA over its factors.

Differs from the paper: no examples are replayed (`replay` does that). Its code was not at hand:
that norms are taken over all weights together is our reading. The switch is drawn from seed, task
and step alone, so that it depends neither on the number of processes nor on what else is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mcit.config.options import option
from mcit.draws import draw_uniform
from mcit.errors import ConfigError
from mcit.method import Method, Stage, Step


@dataclass
class Dgg(Method):
    """A pull to the last task's weights, as long as the task's gradient at most, now and then."""

    name = "dgg"
    first_task_is_finetuning = True
    alpha: float = option(
        0.1, help="probability of the pull at a step (published: 0.05 to 0.2); 0 is finetuning"
    )
    anchor: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError([f"method.alpha is a probability from 0 to 1, found {self.alpha:g}"])

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.anchor = {}
        if stage.index > 0:
            self.anchor = {name: p.detach().clone() for name, p in _shared(stage)}
        return ()

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        if not self.anchor or not is_switched_on(stage, step.number, self.alpha):
            return
        ratio = add_pull_(dict(_shared(stage)), self.anchor)
        if step.logged:
            step.statistics["pull"] = ratio

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.anchor)

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.anchor = {}
        parameters = dict(stage.learner.named_parameters())
        for name, saved in state.items():
            # in the weight's own memory layout
            self.anchor[name] = torch.empty_like(parameters[name]).copy_(saved).detach()

    def describe(self) -> str:
        return (
            "pull to the last task's weights, clipped to the norm of the task's gradient (DGG), "
            f"at each step with probability {self.alpha:g}"
        )

    def bytes_held(self) -> int:
        return sum(tensor.nbytes for tensor in self.anchor.values())


def is_switched_on(stage: Stage, step: int, probability: float) -> bool:
    """Whether the pull acts at a step, the same in every process and after a resumption."""
    drawn = draw_uniform(stage.seed * 1_000_003 + stage.index, torch.tensor([step]))
    return bool(drawn < probability)


@torch.no_grad()
def add_pull_(parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor]) -> float:
    """Add weight - anchor to the gradients, cut to their norm; return its norm over theirs."""
    pulls = {name: parameters[name].detach() - anchored for name, anchored in anchor.items()}
    gradients = [p.grad for name, p in parameters.items() if name in pulls and p.grad is not None]
    task = float(nn.utils.get_total_norm(gradients))
    away = float(nn.utils.get_total_norm(list(pulls.values())))
    if not task or not away:
        return 0.0
    factor = min(1.0, task / away)
    for name, pull in pulls.items():
        gradient = parameters[name].grad
        if gradient is not None:
            gradient.add_(pull.to(gradient.dtype), alpha=factor)
    return factor * away / task


def _shared(stage: Stage) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained weights that later tasks use too."""
    for name, parameter in stage.learner.named_parameters():
        if parameter.requires_grad and stage.is_shared(name):
            yield name, parameter
