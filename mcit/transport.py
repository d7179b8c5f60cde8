"""The contract of a transport: how stored class statistics follow a network that has moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from mcit.class_statistics import ClassStatistics, Features, Needs
from mcit.method import Stage

if TYPE_CHECKING:
    from mcit.models.learner import Learner


@dataclass(frozen=True)
class Drift:
    """What is known of how a task has moved the features: its own images, seen before and after.

    The images are the task's training images without augmentation, in file order.
    """

    stage: Stage
    # the learner as it was when the task began, frozen
    old: Learner
    before: Features
    after: Features


@dataclass
class Transport:
    """Carries statistics over; a file in `mcit/transports/` defines one and has its name."""

    name: ClassVar[str]
    # Whether the network of before the task is needed.
    compares: ClassVar[bool] = True

    def find_problems(self, needs: Needs) -> list[str]:
        """Return why statistics that are needed cannot be carried over."""
        if self.compares and any(power != 1 for power in needs.powers):
            return [
                f"transport {self.name!r} carries statistics of features, and the classifier needs "
                "covariances of features raised to a power, which no map of features can move; "
                "pass "
                "--transport none, or --set classifier.power=1"
            ]
        return []

    def needs(self) -> Needs:
        """Return the statistics that the transport itself looks at."""
        return Needs()

    def count_looks(self) -> int:
        """Return how often, evenly spaced, it looks at the network while a task is learned."""
        return 0

    def begin_task(self) -> None:
        """Forget what was seen while the task before was learned."""

    def look(self, drift: Drift) -> None:
        """The task's images are seen between two of its steps."""

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        """Return the statistics of old classes as the network sees them after the task."""
        raise NotImplementedError

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return what was seen so far while the task is learned, for a run that is resumed."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state_dict` returned."""

    def describe(self) -> str:
        """Return a few words for reports."""
        return self.name
