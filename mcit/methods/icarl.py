"""iCaRL: exemplars by herding, distillation, and the nearest mean of exemplars.

Rebuffi et al., iCaRL: incremental classifier and representation learning, CVPR 2017,
https://arxiv.org/abs/1611.07725

In later tasks   new images and all exemplars in one shuffled set:
                 loss = CE over all classes seen + KD_T(old classes)
After a task     exemplars of each new class, one after the other, x^ = x / ||x||:
                 argmin over those left of || mu - (sum of the chosen + f^) / k ||
                 mean of a class = unit mean of its exemplars' unit features, as the network is now
Answer           the nearest mean (iCaRL-NME), or the head (iCaRL-CNN)

It keeps images: in tables it is not exemplar-free. Differs from the paper as PyCIL's code does:
cross entropy and softened distillation in place of sigmoids, herding on unit features without
repetition, no mirrored exemplars; a fixed number per class, which makes the first of a list the
best.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Features, find_device, gather_rows, read_features
from mcit.classifier import Scorer
from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage
from mcit.methods.lwf import distill
from mcit.methods.replay import count_bytes
from mcit.models.teacher import Teacher, eval_mode
from mcit.parallel.loading import SplitLoader, cut, load_examples
from mcit.task import Batch, Output, Task, Track


@dataclass
class Icarl(Method):
    """A few images of every class."""

    name = "icarl"
    first_task_is_finetuning = True
    keeps_examples = True
    exemplars: int = option(20, help="images kept per class")
    answer: Literal["nearest_mean", "head"] = option(
        "nearest_mean", help="answer by the nearest mean of exemplars, or by the head"
    )
    distillation: float = option(1.0, help="weight of the distillation of old classes")
    temperature: float = option(2.0, help="softens both networks' probabilities")
    # by task, places of the exemplars in its training examples
    kept: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    # [classes, width]
    means: Tensor | None = field(default=None, init=False, repr=False)
    held: int = field(default=0, init=False, repr=False)
    old: Teacher | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if self.exemplars < 1:
            problems.append(f"method.exemplars must be at least 1, found {self.exemplars}")
        if not self.distillation >= 0:
            problems.append(f"method.distillation must be from 0, found {self.distillation:g}")
        if not self.temperature > 0:
            problems.append(f"method.temperature must be above 0, found {self.temperature:g}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            "method 'icarl' is for class-incremental orders such as shapes:5x4, whose tasks share "
            "one head; for tasks with heads of their own use 'replay'"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = Teacher(stage.learner) if stage.index > 0 else None
        return ()

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        earlier = [(stage.tasks[k], self.kept[k]) for k in range(stage.index) if k in self.kept]
        joined = stage.task.with_examples(earlier) if earlier else None
        return [stage.task if joined is None else joined]

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        span = stage.task.span
        if self.old is None or span is None or not self.distillation:
            return None
        taught = self.old(batch, stage.task.head).logits[:, : span.known]
        known = output.logits[:, : span.known]
        return self.distillation * distill(known, taught, self.temperature)

    def end_task(self, stage: Stage) -> Outcome:
        features = read_features(stage.learner, stage.task, stage.load(stage.task, "plain"))
        chosen: list[int] = []
        for label in features.labels.unique().tolist():
            places = (features.labels == label).nonzero().squeeze(1)
            chosen += places[herd(features.of_class(label), self.exemplars)].tolist()
        self.kept[stage.index] = chosen
        self.held += count_bytes(load_examples(stage.task.examples("plain"), chosen))
        self.means = self._find_means(stage)
        return Outcome()

    def classifier(self, stage: Stage) -> Scorer | None:
        if self.answer == "head" or self.means is None:
            return None
        return functools.partial(score_nearest, self.means.to(find_device(stage.learner)))

    def _find_means(self, stage: Stage) -> Tensor:
        """Return the unit means [classes, width] of the exemplars of all classes."""
        learner = stage.learner
        means = []
        for index, places in sorted(self.kept.items()):
            task = stage.tasks[index]
            collate = functools.partial(task.collate, processor=learner.processor)
            loader = SplitLoader(
                task.examples("plain"), cut(places, task.recipe.batch_size), collate
            )

            def read(batch: Batch) -> Tensor:
                return learner(batch, stage.task.head).features

            with eval_mode(learner):
                found = Features(*gather_rows(read, task, loader, find_device(learner)))
            for label in found.labels.unique().tolist():
                unit = F.normalize(found.of_class(label).double(), dim=1)
                means.append(F.normalize(unit.mean(dim=0), dim=0))
        return torch.stack(means).float()

    def state_dict(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {"held": self.held}
        state["kept"] = {str(index): places for index, places in self.kept.items()}
        if self.means is not None:
            state["means"] = self.means
        if self.old is not None:
            state["old"] = self.old.state_dict()
        return state

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.held = state["held"]
        self.kept = {int(index): list(places) for index, places in state["kept"].items()}
        self.means = state.get("means")
        self.old = None
        if "old" in state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def describe(self) -> str:
        answer = self.answer.replace("_", " ")
        return (
            f"{self.exemplars} exemplars per class and distillation (iCaRL), answered by {answer}"
        )

    def bytes_held(self) -> int:
        return self.held + (0 if self.old is None else self.old.bytes_held())


def herd(features: Tensor, count: int) -> Tensor:
    """Return the places of `count` rows of [examples, width] whose mean stays near that of all."""
    unit = F.normalize(features.double(), dim=1)
    mean = unit.mean(dim=0)
    total = torch.zeros_like(mean)
    free = torch.ones(len(unit), dtype=torch.bool)
    chosen = []
    for number in range(1, min(count, len(unit)) + 1):
        distances = (mean - (total + unit) / number).norm(dim=1)
        best = int(distances.masked_fill(~free, torch.inf).argmin())
        chosen.append(best)
        free[best] = False
        total += unit[best]
    return torch.tensor(chosen, dtype=torch.long)


def score_nearest(means: Tensor, features: Tensor) -> Tensor:
    """Return minus the distances [batch, classes] of unit features to unit means."""
    mode = "donot_use_mm_for_euclid_dist"
    return -torch.cdist(F.normalize(features, dim=1), means, compute_mode=mode)
