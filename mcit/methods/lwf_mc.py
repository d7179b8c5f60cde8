"""LwF-MC: learning without forgetting for many classes, with a sigmoid for each.

Rebuffi et al., iCaRL: incremental classifier and representation learning, CVPR 2017,
https://arxiv.org/abs/1611.07725 (its baseline without exemplars)

loss = sum over classes of BCE(z_c, target_c), mean over the batch; the target of an old class is
what the network answered before the task, sigmoid(z_old_c), that of a new one is 1 or 0.

Differs from the original, which has all outputs from the start and averages over them: the outputs
are those of the classes seen, and terms are added up, since its learning rate of 2 is meant for the
mean. `reduction: mean` divides by the number of classes seen, as Mammoth does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.method import Method, Stage
from mcit.models.teacher import Teacher
from mcit.task import Batch, Output, Task, Track


@dataclass
class LwfMc(Method):
    """One binary answer per class, old ones as they were."""

    name = "lwf_mc"
    reduction: Literal["sum", "mean"] = option(
        "sum", help="add up the terms of the classes seen, or average them"
    )
    old: Teacher | None = field(default=None, init=False, repr=False)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            "method 'lwf_mc' is for class-incremental orders such as shapes:5x4, whose tasks share "
            "one head; for tasks with heads of their own use 'lwf'"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = Teacher(stage.learner) if stage.index > 0 else None
        return ()

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        taught = None
        if self.old is not None and stage.task.span is not None:
            known = stage.task.span.known
            taught = self.old(batch, stage.task.head).logits[:, :known]
        return self.compare(output.logits, task.target(batch), taught)

    def compare(self, logits: Tensor, labels: Tensor, taught: Tensor | None) -> Tensor:
        """Return the loss; taught: the logits [batch, old classes] of before the task."""
        # not in half precision
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        targets = F.one_hot(labels, logits.shape[1]).to(logits)  # [batch, classes]
        if taught is not None:
            targets[:, : taught.shape[1]] = taught.to(logits).sigmoid()
        terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if self.reduction == "mean":
            return terms.mean()
        return terms.sum(dim=1).mean()

    def state_dict(self) -> Mapping[str, Any]:
        return {} if self.old is None else {"old": self.old.state_dict()}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.old = None
        if state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def describe(self) -> str:
        return f"a sigmoid per class, old ones distilled (LwF-MC): {self.reduction} over classes"

    def bytes_held(self) -> int:
        return 0 if self.old is None else self.old.bytes_held()
