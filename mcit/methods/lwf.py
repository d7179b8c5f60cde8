"""Learning without forgetting (LwF): the previous network's answers are learned along.

Li and Hoiem, Learning without forgetting, ECCV 2016, https://arxiv.org/abs/1606.09282

loss += strength * CE(softmax(z_old / T), softmax(z / T)), with z_old the logits of the learner as
it was when the task began, for the inputs of the new task:

class-incremental   over the classes known before the task
vision-language     of the head of every earlier task, a sigmoid where answers are not exclusive;
                    a head that reads another number of views than the new inputs have cannot
                    answer, and the mean squared difference of the features stands for it
instructions        over the words at each place of the answer; its mean, then that of the batch

Differs from the paper: no factor T^2 and cross entropy of new classes only, as in PyCIL's code; the
heads of earlier tasks stay as they are. The previous network is a copy of what trains, with LoRA of
the adapter alone, and not of the whole network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mcit.answer_scores import IGNORED
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.gradients.preserve_state import eval_mode
from mcit.method import Method, Stage
from mcit.models.teacher import Teacher
from mcit.task import Batch, Head, Output, Track


@dataclass
class Lwf(Method):
    """Distillation of what the previous network answers."""

    name = "lwf"
    first_task_is_finetuning = True
    steps_move_network_only = True
    # no default: a configuration or the user chooses it
    strength: float = option(help="weight of the distillation loss; 0 is finetuning")
    temperature: float = option(2.0, help="softens both networks' probabilities")
    old: Teacher | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.strength) and self.strength >= 0):
            problems.append(f"method.strength must be at least 0, found {self.strength:g}")
        if not 0 < self.temperature < math.inf:
            problems.append(
                f"method.temperature must be above 0 and finite, found {self.temperature:g}"
            )
        if problems:
            raise ConfigError(problems)

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = Teacher(stage.learner) if stage.index > 0 else None
        return ()

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        if self.old is None or not self.strength:
            return None
        taught = self.old(batch, stage.task.head)
        if stage.task.track is Track.TASKS:
            return self.strength * self._distill_heads(stage, output, taught, self.old)
        if stage.task.track is Track.TEXT:
            answered = stage.task.target(batch) != IGNORED  # [batch, length]
            loss = distill_words(output.logits, taught.logits, answered, self.temperature)
            return self.strength * loss
        known = stage.task.span.known if stage.task.span is not None else 0
        old_classes = output.logits[:, :known], taught.logits[:, :known]
        return self.strength * distill(*old_classes, self.temperature)

    def _distill_heads(
        self, stage: Stage, output: Output, taught: Output, teacher: Teacher
    ) -> Tensor:
        """Return the sum over the heads of earlier tasks, each once."""
        heads = {task.head.name: task.head for task in stage.earlier}
        total = output.features.new_zeros(())
        fitting = [head for head in heads.values() if head.views == stage.task.head.views]
        for head in fitting:
            features = output.features.unflatten(1, (head.views, -1))
            module = stage.learner.heads[head.name]
            # an earlier head must not drop what it reads at random
            with eval_mode(module):
                given = module(features)  # [batch, outputs]
            wanted = teacher.answer(taught.features, head)
            total = total + distill_answers(head, given, wanted, self.temperature)
        if len(fitting) < len(heads):
            total = total + F.mse_loss(output.features.float(), taught.features.float())
        return total

    def state_dict(self) -> Mapping[str, Any]:
        if self.old is None:
            return {}
        return {"old": self.old.state_dict()}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.old = None
        if state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def describe(self) -> str:
        return (
            "distillation of the previous network's answers (LwF): "
            f"strength {self.strength:g}, temperature {self.temperature:g}"
        )

    def bytes_held(self) -> int:
        return 0 if self.old is None else self.old.bytes_held()


def distill(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Return the mean over the batch of -sum softmax(taught / T) log softmax(logits / T)."""
    return _cross_entropy(logits, taught, temperature).mean()


def distill_answers(head: Head, logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Return the mean over the batch, by softmax, or by sigmoids summed where several may hold."""
    if head.kind != "multi_label":
        return distill(logits, taught, temperature)
    wanted = (taught.float() / temperature).sigmoid()  # [batch, outputs]
    given = logits.float() / temperature
    return F.binary_cross_entropy_with_logits(given, wanted, reduction="none").sum(dim=1).mean()


def distill_words(logits: Tensor, taught: Tensor, answered: Tensor, temperature: float) -> Tensor:
    """Return the mean over answers of the mean over their places.

    logits and taught: [batch, length, words]. answered: [batch, length], the answers' places.
    """
    each = _cross_entropy(logits, taught, temperature) * answered  # [batch, length]
    return (each.sum(dim=1) / answered.sum(dim=1).clamp(min=1)).mean()


def _cross_entropy(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Return -sum softmax(taught / T) log softmax(logits / T) over the last axis."""
    wanted = (taught.float() / temperature).softmax(dim=-1)
    given = (logits.float() / temperature).log_softmax(dim=-1)
    return -(wanted * given).sum(dim=-1)
