"""Prototype augmentation and self-supervision (PASS).

Zhu et al., Prototype augmentation and self-supervision for incremental learning, CVPR 2021,
https://openaccess.thecvf.com/content/CVPR2021/html/Zhu_Prototype_Augmentation_and_Self-Supervision_for_Incremental_Learning_CVPR_2021_paper.html

loss = CE(z / T) over all classes seen, every image in four orientations, each a class of its own
     + distillation * ||F - F_old||  over the features of all rows of the batch (Frobenius norm)
     + prototypes * CE(head(mu_c + r * N(0, I)) / T, c)  for random old classes c, one per image
mu_c is the mean of a class's features after its task, r^2 = mean_c trace(cov_c) / width of the
first task, T = 0.1. Class head and rotation head are under one softmax; the class head answers.

Differs from the authors' code: means are of the training images as they are scored, as in PyCIL;
features and logits come from one forward pass, so that BatchNorm's statistics move once a step; the
recipe is the run's. With both weights 0, no rotations and T = 1 it is finetuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.data.rotations import TURNED, TURNS, rotate_batch, rotation_head
from mcit.method import Stage
from mcit.parallel.global_batch import sum_over_batch
from mcit.prototypes import PrototypeMethod
from mcit.task import Batch, Head, Output, Task


@dataclass
class Pass(PrototypeMethod):
    """Noisy prototypes of old classes, distance to the old features, rotations in every task."""

    name = "pass"
    rotations: bool = option(True, help="learn rotated images as classes of their own")

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        problems = super().find_problems(tasks, model)
        if self.rotations and tasks[0].extra_head is not None:
            problems.append(
                "method 'pass' rotates images itself, and the recipe does so too: use another "
                "recipe, "
                "or --set method.rotations=false"
            )
        return problems

    def begin_task(self, stage: Stage) -> Sequence[str]:
        extra = self.extra_head(stage, stage.task)
        if self.rotations and extra is not None:
            stage.learner.grow(extra)
            stage.learner.let_train(extra)
        return super().begin_task(stage)

    def prepare_batch(self, stage: Stage, task: Task, batch: Batch) -> Batch:
        return rotate_batch(batch) if self.rotations else batch

    def extra_head(self, stage: Stage, task: Task) -> Head | None:
        if self.rotations and task.span is not None:
            return rotation_head(task.span.total)
        return task.extra_head

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        return self.classify(task, batch, output, reduction="mean")

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        if self.old is None:
            return None
        terms = []
        if self.distillation:
            moved = find_distance(output.features, self.read_old(stage, batch))
            terms.append(self.distillation * moved)
        if self.prototypes:
            images = len(output.features) // (TURNS if TURNED in batch else 1)
            terms.append(self.prototypes * self.recall(stage, output, images, self.radius))
        return torch.stack(terms).sum() if terms else None

    def describe(self) -> str:
        turns = "rotations as classes" if self.rotations else "no rotations"
        return (
            f"noisy prototypes of old classes (weight {self.prototypes:g}), distance to the old "
            f"features (weight {self.distillation:g}), {turns}, temperature {self.temperature:g}"
        )


def find_distance(features: Tensor, before: Tensor) -> Tensor:
    """Return the norm of the difference of features [rows, width], over all processes."""
    square = sum_over_batch((features - before).square().sum())
    # where nothing has moved, the root has no slope
    return torch.where(square > 0, square.clamp_min(1e-30).sqrt(), square)
