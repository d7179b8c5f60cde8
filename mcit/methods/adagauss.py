"""AdaGauss: distillation through a projector, features that do not collapse, Gaussians that follow.

Rypesc et al., Task-recency bias strikes back: adapting covariances in exemplar-free class
incremental learning (AdaGauss), NeurIPS 2024, https://arxiv.org/abs/2409.18265

In every task    loss += anti_collapse * -mean_j min(L_jj, 1),  L L' = covariance of the batch
In later tasks   loss += strength * mean ||D(f) - f_old||^2,  D = linear, GELU, linear, which learns
                 along and is new in every task
Old classes      a network from old to new features moves mu_c and Sigma_c (transport `network`)
Answer           the Mahalanobis distance of unit features, with Sigma_c shrunk (`gaussian`)

Covariances need fewer features than a batch has examples: the paper has model.bottleneck 64.
Differs from the release: classes have one head that widens (the loss looks at new classes only, as
there), which is not trained alone before the rest; no task has rotation labels; a batch that is too
small has no anti-collapse term (there it is left out); and the recipe is the task's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import option
from mcit.config.parse import Selection
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage
from mcit.models.teacher import Teacher
from mcit.parallel.global_batch import find_batch_covariance
from mcit.task import Batch, Head, Output, Task, Track

# added to the diagonal, so that directions that rounding decides have a root
EPSILON = 1e-6


@dataclass
class AdaGauss(Method):
    """Projected distillation, and a Gaussian per class."""

    name = "adagauss"
    uses_every_head = True
    steps_move_network_only = True
    answers = Selection("gaussian", {"shrinkage": 3.0})
    carries = Selection("network")
    strength: float = option(10.0, help="weight of the projected distillation")
    anti_collapse: float = option(1.0, help="weight of the term that spreads features out")
    hidden: int = option(2048, help="width of the projector's hidden layer")
    old: Teacher | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name in ("strength", "anti_collapse"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                problems.append(f"method.{name} must be at least 0, found {value:g}")
        if self.hidden < 1:
            problems.append(f"method.hidden must be at least 1, found {self.hidden}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is not Track.CLASSES:
            return [
                f"method {self.name!r} is for class-incremental orders such as shapes:5x4, whose "
                "classes share one feature space"
            ]
        width = model.bottleneck or 8 * (model.width or 0)
        smallest = min(task.recipe.batch_size for task in tasks)
        if not (self.anti_collapse and model.from_scratch and smallest <= width):
            return []
        return [
            f"method {self.name!r} needs more examples in a batch than there are features, found "
            f"{smallest} and {width}; pass --set model.bottleneck=64 as the paper does, or "
            "method.anti_collapse=0"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = None
        if stage.index > 0 and self.strength:
            self.old = Teacher(stage.learner)
            stage.learner.grow(self.projector(stage))
        return ()

    def projector(self, stage: Stage) -> Head:
        """Return the head that turns features into what they were before the task."""
        width = stage.learner.encoder.width
        return Head("projector", outputs=width, layout="projector", hidden=self.hidden)

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        terms = []
        if self.old is not None:
            taught = self.old(batch, stage.task.head).features
            projected = stage.learner.answer(output.features, self.projector(stage))
            distance = F.mse_loss(projected.float(), taught.float())
            terms.append(self.strength * distance)
        if self.anti_collapse:
            terms.append(self.anti_collapse * measure_collapse(output.features))
        return sum(terms[1:], terms[0]) if terms else None

    def end_task(self, stage: Stage) -> Outcome:
        if self.old is not None:
            stage.learner.drop(self.projector(stage))
            self.old = None
        return Outcome()

    def state_dict(self) -> Mapping[str, Any]:
        return {} if self.old is None else {"old": self.old.state_dict()}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.old = None
        if "old" in state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def describe(self) -> str:
        terms = f"strength {self.strength:g}, anti-collapse {self.anti_collapse:g}"
        return f"distillation through a projector ({self.name}): {terms}"


def measure_collapse(features: Tensor) -> Tensor:
    """Return -mean_j min(L_jj, 1) of the batch's covariance L L', 0 if the batch is too small."""
    covariance, count = find_batch_covariance(features.double())
    width = len(covariance)
    if count <= width:
        return features.new_zeros(())
    identity = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
    factor, _ = torch.linalg.cholesky_ex(covariance + EPSILON * identity)
    return -factor.diagonal().clamp_max(1).mean().to(features.dtype)
