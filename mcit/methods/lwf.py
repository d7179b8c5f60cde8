"""Learning without forgetting (LwF): the previous network's answers are learned along.

Li and Hoiem, Learning without forgetting, ECCV 2016, https://arxiv.org/abs/1606.09282

loss += strength * CE(softmax(z_old / T), softmax(z / T)) over the classes known before the task,
with z_old the logits of the learner as it was when the task began, frozen and in eval mode.

Differs from the paper as PyCIL's code does: no factor T^2, and cross entropy of new classes only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.models.learner import Learner
from mcit.task import Batch, Output, Task, Track


@dataclass
class Lwf(Method):
    """Distillation of the previous network's logits of old classes."""

    name = "lwf"
    first_task_is_finetuning = True
    # no default: a configuration or the user chooses it
    strength: float = option(help="weight of the distillation loss; 0 is finetuning")
    temperature: float = option(2.0, help="softens both networks' probabilities")
    old: Learner | None = field(default=None, init=False, repr=False)

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

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            "method 'lwf' asks the old classes of one head that widens, as class-incremental tasks "
            "have it; tasks with heads of their own cannot answer for each other's inputs"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = stage.learner.frozen_copy() if stage.index > 0 else None
        return ()

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        span = stage.task.span
        if self.old is None or span is None or not self.strength:
            return None
        known = span.known
        with torch.no_grad():
            taught = self.old(batch, stage.task.head).logits[:, :known]  # [batch, old classes]
        return self.strength * distill(output.logits[:, :known], taught, self.temperature)

    def state_dict(self) -> Mapping[str, Any]:
        if self.old is None:
            return {}
        return {"old": self.old.state_dict()}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.old = None
        if state:
            self.old = stage.learner.frozen_copy()
            self.old.load_state_dict(state["old"])

    def describe(self) -> str:
        return (
            "distillation of the previous network's old classes (LwF): "
            f"strength {self.strength:g}, temperature {self.temperature:g}"
        )

    def bytes_held(self) -> int:
        if self.old is None:
            return 0
        return sum(tensor.nbytes for tensor in self.old.state_dict().values())


def distill(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Return the mean over the batch of -sum softmax(taught / T) log softmax(logits / T)."""
    wanted = (taught.float() / temperature).softmax(dim=1)  # [batch, classes]
    given = (logits.float() / temperature).log_softmax(dim=1)
    return -(wanted * given).sum(dim=1).mean()
