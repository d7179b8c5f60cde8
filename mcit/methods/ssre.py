"""Self-sustaining representation expansion (SSRE): small branches, folded into the network.

Zhu et al., Self-sustaining representation expansion for non-exemplar class-incremental learning,
CVPR 2022, https://arxiv.org/abs/2203.06359

First task   CE(z / T)
Later tasks  every 3x3 convolution gets a 1x1 convolution beside it, zero at the start; these and
             the head train, all else is frozen, BatchNorm's statistics included
loss = mean_i (1 - s_i) CE_i(z / T) over all classes seen
     + distillation * sum_i s_i ||f_i - f_old_i||
     + prototypes * CE(head(mu_c) / T, c)  for random old classes c, one per image
s_i = max_c cos(f_i, mu_c), without gradient: how much an image looks like an old class. After the
task branches are added to the kernels they stand beside, which changes nothing that is computed.

Differs from the authors' code, and from PyCIL's, which cannot be run as it is: branches are an
addition to the middle of the kernels (mcit/models/taps.py); BatchNorm is not folded into
convolutions; s is not cut at 0.8 as in the paper, as in both codes; the recipe is the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.method import Outcome, Stage
from mcit.parallel.global_batch import sum_over_batch
from mcit.prototypes import PrototypeMethod
from mcit.task import Batch, Output, Task


@dataclass
class Ssre(PrototypeMethod):
    """Branches that are folded in, prototypes of old classes, distillation where it fits them."""

    name = "ssre"
    distillation: float = option(1.0, help="weight of the distance to the old features")

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        problems = super().find_problems(tasks, model)
        if not problems and not model.from_scratch:
            problems.append(
                "method 'ssre' puts branches beside the 3x3 convolutions of a network trained "
                f"from scratch, found model.name {model.name!r}; use resnet18"
            )
        return problems

    def begin_task(self, stage: Stage) -> Sequence[str]:
        warnings = super().begin_task(stage)
        if stage.index > 0:
            stage.learner.encoder.requires_grad_(False)
            stage.learner.add_taps()
        return warnings

    def begin_fit(self, stage: Stage) -> None:
        if stage.index > 0:
            stage.learner.encoder.eval()

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        losses = self.classify(task, batch, output, reduction="none")
        if stage.index == 0:
            return losses.mean()
        return ((1 - self.find_likeness(output.features)) * losses).mean()

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        if self.old is None:
            return None
        terms = []
        if self.distillation:
            moved = torch.linalg.vector_norm(output.features - self.read_old(stage, batch), dim=1)
            shares = self.find_likeness(output.features)
            terms.append(self.distillation * sum_over_batch((shares * moved).sum()))
        if self.prototypes:
            terms.append(self.prototypes * self.recall(stage, output, len(output.features)))
        return torch.stack(terms).sum() if terms else None

    def find_likeness(self, features: Tensor) -> Tensor:
        """Return s [rows], from 0 to 1: the cosine of the nearest prototype of an old class."""
        assert self.means is not None
        means = F.normalize(self.means.to(features), dim=1)
        cosines = F.normalize(features.detach(), dim=1) @ means.T
        return cosines.amax(dim=1).clamp(0, 1)

    def end_task(self, stage: Stage) -> Outcome:
        stage.learner.fold_taps()
        return super().end_task(stage)

    def describe(self) -> str:
        return (
            "branches that are folded in, all else frozen after the first task; prototypes of old "
            f"classes (weight {self.prototypes:g}), distance to the old features (weight "
            f"{self.distillation:g}), temperature {self.temperature:g}"
        )
