"""Methods that keep the mean feature of every class, and the network before the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Features, draw_prototypes, read_features
from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.data.rotations import TURNED, TURNS, label_rotations
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage
from mcit.models.learner import Learner
from mcit.task import Batch, Output, Recipe, Task, Track


@dataclass
class PrototypeMethod(Method):
    """Old classes are held by the means of their features, and features by the old network."""

    distillation: float = option(10.0, help="weight of the distance to the old features")
    prototypes: float = option(10.0, help="weight of the loss of old classes' prototypes")
    temperature: float = option(0.1, help="divides logits")
    # the learner as it was when the task began, frozen and in eval mode
    old: Learner | None = field(default=None, init=False, repr=False)
    # of all classes seen [classes, width]
    means: Tensor | None = field(default=None, init=False, repr=False)
    # how far the classes of the first task reach
    radius: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name in ("distillation", "prototypes"):
            value = getattr(self, name)
            if not value >= 0:
                problems.append(f"method.{name} must be at least 0, found {value:g}")
        if not self.temperature > 0:
            problems.append(f"method.temperature must be above 0, found {self.temperature:g}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            f"method {self.name!r} is for class-incremental orders such as shapes:5x4; these tasks "
            "have heads of their own"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = stage.learner.frozen_copy() if stage.index > 0 else None
        return ()

    def classify(self, task: Task, batch: Batch, output: Output, reduction: str) -> Tensor:
        """Return the cross entropy over all classes seen, rotated ones among them.

        Without prototypes nothing stands for old classes, and only new ones are in the softmax.
        """
        assert task.span is not None
        total = task.span.total
        first = 0 if self.prototypes else task.span.known
        logits = output.logits / self.temperature
        # outputs of rotated images follow those of the classes
        rotated = logits[:, total + (TURNS - 1) * first :]
        logits = torch.cat([logits[:, first:total], rotated], dim=1)
        wanted = batch["labels"] - first
        if TURNED in batch:
            wanted = label_rotations(wanted, batch[TURNED], total - first)
        return F.cross_entropy(logits, wanted, reduction=reduction)

    def recall(self, stage: Stage, output: Output, images: int, radius: float = 0.0) -> Tensor:
        """Return the cross entropy of the prototypes of random old classes, one per image."""
        assert self.means is not None
        means = self.means.to(output.features)
        features, labels = draw_prototypes(means, images, radius)
        extra = self.extra_head(stage, stage.task)
        logits = stage.learner.answer(features, stage.task.head, extra)
        return F.cross_entropy(logits / self.temperature, labels)

    def read_old(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the features [rows, width] that the old network has for a batch."""
        assert self.old is not None
        with torch.no_grad():
            return self.old(batch, stage.task.head).features

    def end_task(self, stage: Stage) -> Outcome:
        features = read_features(stage.learner, stage.task, stage.load(stage.task, "plain"))
        means, radius = measure_prototypes(features)
        if self.means is None:
            self.means = means
            self.radius = radius
        else:
            self.means = torch.cat([self.means, means])
        return Outcome()

    def explain_divergence(self, recipe: Recipe) -> list[str]:
        if recipe.optimizer != "sgd":
            return []
        return [
            f"{self.name} divides logits by {self.temperature:g} and adds up distances over the "
            f"batch; with sgd at {recipe.learning_rate:g} that may be too much. Its authors use "
            "Adam at 0.001: try --recipe adam"
        ]

    def examples_read(self, stage: Stage) -> int:
        return len(stage.task.examples("plain"))

    def state_dict(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {"radius": self.radius}
        if self.means is not None:
            state["means"] = self.means
        if self.old is not None:
            state["old"] = self.old.state_dict()
        return state

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.radius = state["radius"]
        self.means = state.get("means")
        self.old = None
        if "old" in state:
            self.old = stage.learner.frozen_copy()
            # it had none when the copy was made
            self.old.fold_taps()
            self.old.load_state_dict(state["old"])

    def bytes_held(self) -> int:
        held = [] if self.means is None else [self.means]
        if self.old is not None:
            held += self.old.state_dict().values()
        return sum(tensor.nbytes for tensor in held)


def measure_prototypes(features: Features) -> tuple[Tensor, float]:
    """Return the mean [classes, width] of each class that there is, and how far classes reach.

    The latter is sqrt(mean_c trace(cov_c) / width).
    """
    means = []
    spreads = []
    for label in features.labels.unique().tolist():
        values = features.of_class(label).double()
        means.append(values.mean(dim=0))
        # a class of one image has no spread
        if len(values) > 1:
            spreads.append(values.var(dim=0).mean())
    radius = float(torch.stack(spreads).mean().sqrt()) if spreads else 0.0
    return torch.stack(means).float(), radius
