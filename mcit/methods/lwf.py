"""Learning without forgetting: the previous network's answers about the old classes are learned along."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mcit.config import ConfigError
from mcit.method import Method, Stage
from mcit.task import Batch, Task, is_class_incremental


@dataclass
class Lwf(Method):
    """Adds strength * cross entropy between the old and the new network's softened probabilities of the old classes.

    The old network is the learner as it was when the task began, frozen and in eval mode. Without the factor
    temperature^2 that is sometimes put in front.
    """

    name = "lwf"
    looks_ahead = False
    # no default: a configuration gives it, or the user does
    strength: float
    temperature: float = 2.0
    old: nn.Module | None = field(default=None, init=False, repr=False)
    index: int = field(default=0, init=False, repr=False)  # of the task that `old` is for
    state: Mapping[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.strength) and self.strength >= 0):
            problems.append(f"method.strength must be a number from 0, found {self.strength:g}")
        if not 0 < self.temperature < math.inf:
            problems.append(
                f"method.temperature must be above 0 and finite, found {self.temperature:g}"
            )
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task]) -> list[str]:
        if is_class_incremental(tasks):
            return []
        return [
            "method 'lwf' asks the old classes of one head that widens, as class-incremental tasks have it; tasks with "
            "heads of their own cannot answer for each other's inputs"
        ]

    def begin_task(self, stage: Stage) -> None:
        self.index, self.old = stage.index, None
        if stage.index:
            self.old = _freeze_copy(stage.learner)
            if self.state is not None and self.state["index"] == stage.index:
                # resumed within the task: its beginning is known to the state alone
                self.old.load_state_dict(self.state["old"])
        self.state = None

    def extra_loss(self, stage: Stage, batch: Batch, logits: Tensor) -> Tensor | None:
        if self.old is None or not self.strength:
            return None
        known = stage.task.known
        with torch.no_grad():
            taught = self.old(batch, stage.task.head)[:, :known]  # [batch, old classes]
        return self.strength * distill(logits[:, :known], taught, self.temperature)

    def state_dict(self) -> Mapping[str, Any]:
        if self.old is None:
            return self.state or {}
        return {"index": self.index, "old": self.old.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state, self.old = state or None, None  # the next begin_task knows what it is worth

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        return None if stage.index else {}  # nothing is distilled yet

    def describe(self) -> str:
        return (
            f"distillation of the previous network's old classes (LwF): strength {self.strength:g}, "
            f"temperature {self.temperature:g}"
        )

    def bytes_held(self) -> int:
        held = self.state_dict().get("old", {})
        return sum(tensor.numel() * tensor.element_size() for tensor in held.values())


def distill(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Mean over the batch of -sum softmax(taught / temperature) log softmax(logits / temperature)."""
    wanted = (taught.float() / temperature).softmax(dim=1)  # [batch, classes]
    return -(wanted * (logits.float() / temperature).log_softmax(dim=1)).sum(dim=1).mean()


def _freeze_copy(learner: nn.Module) -> nn.Module:
    """The learner as it is now; the processor, which has no weights, is shared."""
    memo = {id(learner.processor): learner.processor}
    return copy.deepcopy(learner, memo).requires_grad_(False).eval()
