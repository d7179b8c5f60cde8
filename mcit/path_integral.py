"""Synaptic intelligence: importance gathered along the path of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mcit.importance import Importance
from mcit.parallel.sharded import local, wrap


class PathIntegral:
    """Synaptic intelligence: how much each weight's own motion lowered the task's loss, by its unmixed gradient.

    Give it to a manager, whose `add_gradient_` shows it the gradient before the penalty is mixed in, and attach it to
    the optimizer. `importance()` is max(0, -sum gradient * step) / (motion over the task squared + damping).
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        damping: float = 0.1,
        clip: bool = True,
    ):
        if not damping > 0:
            raise ValueError(f"damping must be above 0, found {damping}")
        self.damping, self.clip = damping, clip
        self.begin(named_parameters)

    @torch.no_grad()
    def begin(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Start a new path from the present weights: once per task."""
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.start = {name: local(p.detach()).clone() for name, p in self.parameters.items()}
        self.path = {name: torch.zeros_like(start) for name, start in self.start.items()}
        self.pending: dict[str, tuple[Tensor, Tensor]] = {}

    def attach(self, optimizer: Any) -> Any:
        """Follow the optimizer's steps; gives a handle whose `remove()` ends that."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        return optimizer.register_step_post_hook(lambda *_: self.see_step())

    @torch.no_grad()
    def see_gradient(self) -> None:
        """Remember the task's gradient and the weights it belongs to."""
        self.pending = {
            name: (local(p.grad).clone(), local(p.detach()).clone())
            for name, p in self.parameters.items()
            if p.grad is not None
        }

    @torch.no_grad()
    def see_step(self) -> None:
        """Add what the step just taken contributed."""
        for name, (gradient, before) in self.pending.items():
            self.path[name].addcmul_(gradient, before.sub_(local(self.parameters[name].detach())))
        self.pending = {}

    @torch.no_grad()
    def importance(self) -> Importance:
        """The importance of the path so far."""
        values = {}
        for name, path in self.path.items():
            parameter = self.parameters[name].detach()
            motion = (local(parameter) - self.start[name]).square_()
            found = (path.clamp_min(0) if self.clip else path.abs()) / motion.add_(self.damping)
            values[name] = wrap(found, parameter)
        sign = "negative parts clipped" if self.clip else "absolute values"
        return Importance(
            values,
            note=f"path integral of the task gradient (SI): damping {self.damping:g}; {sign}",
        )

    def bytes_held(self) -> int:
        """Memory of this process between steps: where each weight began, and its path."""
        return sum(
            t.numel() * t.element_size() for t in (*self.start.values(), *self.path.values())
        )
