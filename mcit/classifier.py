"""The contract of a classifier: what answers from features when tasks are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from mcit.class_statistics import ClassStatistics, Features, Needs
from mcit.config.schema import ModelConfig
from mcit.task import Task

# what a classifier has computed once for a task: tensors by name
Fitted = Mapping[str, Tensor]


class Scorer(Protocol):
    """Scores [batch, classes] from features [batch, width], the largest for the predicted class."""

    def __call__(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Known:
    """What is known of the classes when a task ends."""

    # of all classes seen, as the network sees them now
    statistics: ClassStatistics
    # of the task's own training images; None where a finished run is loaded
    features: Features | None = None


@dataclass
class Classifier:
    """Answers from features; a file in `mcit/classifiers/` defines one and has its name.

    `fit` is called once at the end of a task and does all that is expensive; `score` is called for
    every batch.
    """

    name: ClassVar[str]
    # Whether `fit` looks at the task's features, so that statistics alone cannot repeat it.
    fits_features: ClassVar[bool] = False

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        """Return why the classifier cannot answer for these tasks; nothing is built yet."""
        return []

    def needs(self) -> Needs:
        """Return which statistics of the classes it is computed from; none for the head."""
        return Needs()

    def fit(self, known: Known) -> Fitted:
        """Return what `score` needs, on the CPU."""
        raise NotImplementedError

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        """Return scores [batch, classes] of features [batch, width]; larger is better."""
        raise NotImplementedError

    def softmax_layer(self, fitted: Fitted) -> tuple[Tensor, Tensor] | None:
        """Return weight and bias of the layer whose softmax answers; None if it is no such."""
        return None

    def describe(self) -> str:
        """Return a few words for reports."""
        return self.name
