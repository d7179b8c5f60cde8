"""Synaptic intelligence (SI): importance gathered along the path of training.

Zenke, Poole and Ganguli, Continual learning through synaptic intelligence, ICML 2017,
https://arxiv.org/abs/1703.04200

At each step     path += -gradient of the task's loss * (weight after - weight before)
After a task     importance = max(0, path) / ((weight now - weight at its start)^2 + damping)

The gradient is that of the task alone, without the penalty. Differs from FACIL, which keeps
negative values (clip "none"); its penalty has no factor 1/2, so its lambda is half our strength.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mcit.importance import Importance
from mcit.parallel.sharded import from_local, to_local

Clip = Literal["relu", "abs", "none"]
SIGNS = {
    "relu": "negative parts clipped",
    "abs": "absolute values",
    "none": "negative parts kept",
}


class PathIntegral:
    """How much each weight's own motion lowered the task's loss.

    Give it to a manager, whose `add_gradient_` shows it the gradient before the penalty is added,
    and attach it to the optimizer.

    damping: Added to the squared motion, above 0.
    clip: Negative parts of the path, which raised the loss: relu drops them, abs counts them as
        positive, none keeps their sign.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        damping: float = 0.1,
        clip: Clip = "relu",
    ):
        if not damping > 0:
            raise ValueError(f"damping must be above 0, found {damping}")
        if clip not in SIGNS:
            raise ValueError(f"clip is {clip!r} (choices: {', '.join(SIGNS)})")
        self.damping = damping
        self.clip = clip
        self.begin(named_parameters)

    @torch.no_grad()
    def begin(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Start a new path from the present weights: once per task."""
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.start = {name: _copy(parameter) for name, parameter in self.parameters.items()}
        self.path = {name: torch.zeros_like(start) for name, start in self.start.items()}
        # gradient and weight before the step that is about to be taken
        self.pending: dict[str, tuple[Tensor, Tensor]] = {}

    def attach(self, optimizer: Any) -> Any:
        """Follow the optimizer's steps; return a handle whose `remove()` ends that."""
        # accelerate wraps the optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
        return optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *event: Any) -> None:
        self.see_step()

    @torch.no_grad()
    def see_gradient(self) -> None:
        """Remember the task's gradient and the weights it belongs to."""
        self.pending = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.pending[name] = (_copy(parameter.grad), _copy(parameter))

    @torch.no_grad()
    def see_step(self) -> None:
        """Add what the step just taken contributed."""
        for name, (gradient, before) in self.pending.items():
            after = to_local(self.parameters[name].detach())
            self.path[name].addcmul_(gradient, before.sub_(after))
        self.pending = {}

    @torch.no_grad()
    def importance(self) -> Importance:
        """Return the importance of the path so far."""
        values = {}
        for name, path in self.path.items():
            parameter = self.parameters[name].detach()
            motion = to_local(parameter) - self.start[name]
            if self.clip == "relu":
                path = path.clamp_min(0)
            elif self.clip == "abs":
                path = path.abs()
            value = path / motion.square_().add_(self.damping)
            values[name] = from_local(value, parameter)
        sign = SIGNS[self.clip]
        note = f"path integral of the task gradient (SI): damping {self.damping:g}; {sign}"
        return Importance(values, note=note)

    def bytes_held(self) -> int:
        """Return this process's memory between steps: where each weight began, and its path."""
        held = (*self.start.values(), *self.path.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _copy(tensor: Tensor) -> Tensor:
    return to_local(tensor.detach()).clone()
