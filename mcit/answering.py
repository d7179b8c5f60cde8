"""What answers when tasks are scored: classifiers on features, and the statistics they come from.

It stands beside the method, which holds the network: any method goes with any classifier and any
transport. At the end of a task the statistics of old classes are carried over to the features as
they are now, those of new classes are measured, and every classifier is computed from them. Nothing
of it touches the steps of a task, so that several classifiers are scored on one training; a
transport may look at the network between two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from mcit.class_statistics import (
    ClassStatistics,
    Features,
    Needs,
    find_device,
    find_sensitivity,
    read_features,
)
from mcit.classifier import Classifier, Fitted, Known, Scorer
from mcit.config.schema import ModelConfig
from mcit.method import Stage
from mcit.models.learner import Learner
from mcit.task import Task, Track
from mcit.transport import Drift, Transport

# the classifier that is the method's own
HEAD = "head"


@dataclass
class Answering:
    """Classifiers by name, the first of which is the run's own, and what they have in common."""

    classifiers: Mapping[str, Classifier]
    transport: Transport
    # the statistics that the method itself looks at
    wanted: Needs = Needs()
    statistics: ClassStatistics | None = field(default=None, repr=False)
    fitted: dict[str, Fitted] = field(default_factory=dict, repr=False)
    old: Learner | None = field(default=None, repr=False)
    # the task's images as the old network sees them, once they were looked at
    before: Features | None = field(default=None, repr=False)

    @property
    def needs(self) -> Needs:
        """Return what is kept of classes; nothing if head and method need none."""
        wanted = self.wanted
        for classifier in self.classifiers.values():
            wanted |= classifier.needs()
        if wanted:
            wanted |= self.transport.needs()
        return wanted

    @property
    def own(self) -> str:
        """Return the name of the run's own classifier."""
        return next(iter(self.classifiers))

    @property
    def others(self) -> list[str]:
        """Return the names of the classifiers that are scored besides."""
        return list(self.classifiers)[1:]

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        """Return why these tasks cannot be answered so; nothing is built yet."""
        named = [name for name, each in self.classifiers.items() if each.needs()]
        if not named:
            if not self.transport.compares:
                return []
            return [
                f"transport {self.transport.name!r} carries class statistics, and the classifier "
                "'head' has none; choose one that does, such as --classifier lda"
            ]
        if tasks[0].track is not Track.CLASSES:
            return [
                f"classifier {named[0]!r} is for class-incremental orders such as shapes:5x4; "
                "tasks "
                "with heads of their own are answered by their heads"
            ]
        problems = []
        for classifier in self.classifiers.values():
            problems += classifier.find_problems(tasks, model)
            problems += self.transport.find_problems(classifier.needs())
        return list(dict.fromkeys(problems))

    def begin_task(self, stage: Stage) -> None:
        """Keep the network as it is, if a transport will compare it with what it becomes."""
        self.old = None
        self.before = None
        self.transport.begin_task()
        if self.needs and self.transport.compares and stage.index > 0:
            self.old = stage.learner.frozen_copy()

    def after_step(self, stage: Stage, taken: int, total: int) -> None:
        """Let the transport look at the network, if that is due after so many of all steps."""
        looks = self.transport.count_looks()
        if not looks or self.old is None or taken == total:
            return
        due = {round(total * number / (looks + 1)) for number in range(1, looks + 1)}
        if taken in due:
            after = self._read(stage, stage.learner)
            self.transport.look(self._compare(stage, self.old, after))

    @property
    def looks_while_training(self) -> bool:
        """Whether the steps of a task leave something here, so that they cannot be skipped."""
        return bool(self.needs) and self.transport.count_looks() > 0

    def end_task(self, stage: Stage) -> None:
        """Carry over, measure and fit: the weights are final for the task."""
        needs = self.needs
        span = stage.task.span
        if not needs or span is None:
            return
        features = self._read(stage, stage.learner)
        new = ClassStatistics.measure(features, span.known, span.total, needs)
        if self.statistics is not None:
            new = self._carry(stage, self.statistics, features).join(new)
        self.old = None
        self.before = None
        self.transport.begin_task()
        known = Known(new, features)
        self.fitted = {}
        for name, classifier in self.classifiers.items():
            if classifier.needs():
                self.fitted[name] = classifier.fit(known)
        if needs.sensitivity:
            new = replace(new, sensitivity=self.measure_sensitivity(stage, features))
        self.statistics = new

    def scorers(self, stage: Stage, own: Scorer | None) -> dict[str, Scorer | None]:
        """Return what scores, by name; own: what the method answers with, None for the head."""
        found: dict[str, Scorer | None] = {}
        for name, classifier in self.classifiers.items():
            if not classifier.needs():
                found[name] = own
                continue
            if name not in self.fitted:
                if self.statistics is None:
                    raise RuntimeError(
                        "no task has ended yet: there are no statistics to answer from"
                    )
                self.fitted[name] = classifier.fit(Known(self.statistics))
            device = find_device(stage.learner)
            placed = {key: value.to(device) for key, value in self.fitted[name].items()}
            found[name] = partial(classifier.score, placed)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        state: dict[str, Any] = {}
        if self.statistics is not None:
            state["statistics"] = self.statistics.state_dict()
        if self.old is not None:
            state["old"] = self.old.state_dict()
        seen = self.transport.state_dict()
        if seen:
            state["transport"] = dict(seen)
        fitted = {
            name: dict(value)
            for name, value in self.fitted.items()
            if self.classifiers[name].fits_features
        }
        if fitted:
            state["fitted"] = fitted
        return state

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        """Take up a state, inside or after the task of `stage`."""
        self.statistics = None
        if "statistics" in state:
            self.statistics = ClassStatistics.from_state_dict(state["statistics"])
        self.old = None
        if "old" in state:
            self.old = stage.learner.frozen_copy()
            self.old.load_state_dict(state["old"])
        self.before = None
        self.transport.restore(state.get("transport", {}))
        self.fitted = dict(state.get("fitted", {}))

    def bytes_held(self) -> int:
        """Return the memory that is kept between tasks; what is fitted follows from it."""
        return 0 if self.statistics is None else self.statistics.bytes_held()

    def describe(self) -> str:
        """Return one line for reports; nothing if the head alone answers."""
        if not any(classifier.needs() for classifier in self.classifiers.values()):
            return ""
        named = ", ".join(classifier.describe() for classifier in self.classifiers.values())
        return f"answered by {named}; statistics carried over: {self.transport.describe()}"

    def _read(self, stage: Stage, learner: Learner) -> Features:
        return read_features(learner, stage.task, stage.load(stage.task, "plain"))

    def _carry(self, stage: Stage, statistics: ClassStatistics, after: Features) -> ClassStatistics:
        if self.old is None:
            return statistics
        return self.transport.move(statistics, self._compare(stage, self.old, after))

    def _compare(self, stage: Stage, old: Learner, after: Features) -> Drift:
        if self.before is None:
            self.before = self._read(stage, old)
        return Drift(stage, old, self.before, after)

    def measure_sensitivity(self, stage: Stage, features: Features) -> Tensor:
        """Return how fast the answers of the run's own softmax, or of the head, change."""
        layer = None
        if self.own in self.fitted:
            layer = self.classifiers[self.own].softmax_layer(self.fitted[self.own])
        if layer is None:
            state = stage.learner.state_dict()
            name = stage.learner.classifier_weight(stage.task.head)
            layer = (state[name].cpu(), state[name.removesuffix("weight") + "bias"].cpu())
        return find_sensitivity(features.values, *layer).float()
