"""What a run has found so far: scores, and what they cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from mcit.errors import ConfigError
from mcit.files import read_object
from mcit.method import Outcome
from mcit.metrics import (
    CONTENT,
    ScoreMatrix,
    name_as_published,
    score_when_learned,
    split_loss,
)
from mcit.metrics import to_dict as metrics_to_dict
from mcit.runner.plan import Plan
from mcit.task import Track
from mcit.training.trainer import Score

# of scores.json
VERSION = 1
SCORES = "scores.json"
# fields of the matrix that belong to the plan
_OF_THE_PLAN = ("tasks", "chance", "class_incremental")
# fields with one entry for every task
_LISTS = ("details", "diagnoses", "stiffness")


class Tally(dict[str, float]):
    """Numbers that are added up by name, from 0."""

    def __missing__(self, name: str) -> float:
        return 0


@dataclass
class Result:
    """The scores of a run, what they cost, and where they are written."""

    plan: Plan
    matrix: ScoreMatrix
    output: Path | None = None
    details: list[list[Mapping[str, float]]] = field(default_factory=list)
    cost: Tally = field(default_factory=Tally)
    # the scores by the run's other classifiers
    others: dict[str, ScoreMatrix] = field(default_factory=dict)
    # of the penalty after each task, in words and as numbers
    diagnoses: list[str] = field(default_factory=list)
    stiffness: list[Mapping[str, float]] = field(default_factory=list)
    # what each task scores alone
    single: Mapping[str, float] | None = None
    # of each task, before any was learned: the score and the further results of its metric
    zero_shot: list[Mapping[str, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, plan: Plan, output: Path | None) -> Result:
        """Return a result without scores."""
        matrix = ScoreMatrix(
            tasks=tuple(task.name for task in plan.tasks),
            chance=tuple(task.chance for task in plan.tasks),
            class_incremental=plan.track is Track.CLASSES,
        )
        others = dict.fromkeys(plan.answering.others, matrix)
        single = read_single(plan.config.single)
        return cls(plan, matrix, output, single=single, others=others)

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the scores so far: A_last, A_avg, forgetting, ..."""
        return self._describe_scores()["metrics"]

    @property
    def views(self) -> dict[str, ScoreMatrix]:
        """Return the matrices of further scores that all tasks have, such as content and form."""
        views = {}
        for name in self.plan.tasks[0].further_scores:
            if all(name in task.further_scores for task in self.plan.tasks):
                rows = tuple(tuple(entry[name] for entry in row) for row in self.details)
                views[name] = dataclasses.replace(self.matrix, rows=rows, before=())
        return views

    def add_zero_shot(self, scores: Sequence[Score]) -> None:
        """Add what the untouched network scores on every task."""
        self.zero_shot = [{"score": score.score, **score.details} for score in scores]

    def add_scores(self, scores: Sequence[Score], before: float | None) -> None:
        """Add the scores of all tasks seen, after one more task was learned."""
        self.matrix = self._extend(self.matrix, scores, before)
        for name, matrix in self.others.items():
            self.others[name] = self._extend(matrix, [score.others[name] for score in scores])
        self.details.append([score.details for score in scores])

    def _extend(
        self, matrix: ScoreMatrix, scores: Sequence[Score], before: float | None = None
    ) -> ScoreMatrix:
        pooled = self._pool(scores)
        old = self._pool(scores[:-1])
        row = [score.score for score in scores]
        return matrix.add(row, pooled, before=before, old=old)

    def add_outcome(self, outcome: Outcome) -> None:
        """Add what the method found at the end of a task."""
        if outcome.diagnosis is not None:
            self.diagnoses.append(outcome.diagnosis.describe())
            self.stiffness.append(outcome.diagnosis.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of scores.json."""
        config = self.plan.config
        classifiers = {name: _describe_other(matrix) for name, matrix in self.others.items()}
        return {
            "version": VERSION,
            "track": self.plan.track.value,
            "method": config.method.name,
            "estimator": self.plan.describe_method(),
            "classifier": self.plan.answering.own,
            "preset": config.preset,
            "recipe": config.recipe,
            "seed": config.seed,
            "embedded": self.plan.embedded,
            **self._describe_scores(),
            **self._describe_text(),
            "details": self.details,
            "diagnoses": self.diagnoses,
            "stiffness": self.stiffness,
            "classifiers": classifiers,
            "cost": {"bytes_held": self.plan.bytes_held(), **self.cost},
        }

    def _describe_scores(self) -> dict[str, Any]:
        """Return matrix and metrics, those of text also by the names that its papers use."""
        described = metrics_to_dict(self.matrix, self.single)
        if self.plan.track is not Track.TEXT:
            return described
        described["metrics"] |= name_as_published(self.matrix)
        views = self.views
        loss = split_loss(self.matrix, views[CONTENT]) if CONTENT in views else None
        if loss is not None:
            described["metrics"] |= {"lost_content": loss.content, "lost_form": loss.form}
        return described

    def _describe_text(self) -> dict[str, Any]:
        """Return what only answers in words have: content and form, and the zero-shot scores."""
        described: dict[str, Any] = {}
        views = self.views
        if views and self.details:
            described["views"] = {
                name: [list(row) for row in matrix.rows] for name, matrix in views.items()
            }
        if self.zero_shot:
            named = {"score", *views}
            described["zero_shot"] = {
                name: [entry[name] for entry in self.zero_shot] for name in sorted(named)
            }
        return described

    def state_dict(self) -> dict[str, Any]:
        """Return what cannot be derived, as JSON."""
        others = {name: _strip(matrix) for name, matrix in self.others.items()}
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {
            "matrix": _strip(self.matrix),
            "others": others,
            **lists,
            "zero_shot": list(self.zero_shot),
            "cost": dict(self.cost),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.matrix = dataclasses.replace(self.matrix, **state["matrix"])
        for name, matrix in state["others"].items():
            self.others[name] = dataclasses.replace(self.matrix, **matrix)
        for name in _LISTS:
            setattr(self, name, list(state[name]))
        # a stage of another run may have been followed by other tasks
        if not self.zero_shot:
            self.zero_shot = list(state.get("zero_shot", ()))
        # the same object, since a tracker may hold it
        self.cost.clear()
        self.cost.update(state["cost"])

    def _pool(self, scores: Sequence[Score]) -> float | None:
        """Return the accuracy over all classes seen, each image once; None for other tracks."""
        if self.plan.track is not Track.CLASSES or not scores:
            return None
        right = sum(score.score * score.examples for score in scores)
        return right / sum(score.examples for score in scores)


def _strip(matrix: ScoreMatrix) -> dict[str, Any]:
    """Return a matrix without what the plan says."""
    stripped = dataclasses.asdict(matrix)
    for name in _OF_THE_PLAN:
        del stripped[name]
    return stripped


def _describe_other(matrix: ScoreMatrix) -> dict[str, Any]:
    """Return what scores.json holds of another classifier."""
    described = metrics_to_dict(matrix)
    return {name: described[name] for name in ("matrix", "seen", "metrics")}


class Stopwatch:
    """Adds the seconds inside its `with` block to an entry of a run's costs, whatever happens."""

    def __init__(self, cost: dict[str, float], name: str):
        self.cost = cost
        self.name = name
        self.begun = 0.0
        self.before = 0.0

    def __enter__(self) -> Stopwatch:
        self.before = self.cost[self.name]
        self.begun = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cost[self.name] = self.total()

    def total(self) -> float:
        """Return the entry as it is at this moment."""
        return self.before + time.perf_counter() - self.begun


def read_single(folder: str | None) -> dict[str, float] | None:
    """Return what each task scored alone, from the folder of a run of method `single`."""
    if folder is None:
        return None
    path = Path(folder) / SCORES
    if not path.is_file():
        raise ConfigError(
            [
                f"'single' names {folder!r}, which has no {SCORES}; run the order with "
                "--method single"
            ]
        )
    scores = read_object(path)
    if scores is None:
        raise ConfigError([f"{path} is not valid JSON; run the order with --method single again"])
    try:
        matrix = ScoreMatrix(scores["tasks"], scores["chance"], scores["matrix"])
        method = scores["method"]
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(
            [f"{path} holds no scores ({error}); run the order with --method single again"]
        ) from None
    if method != "single":
        raise ConfigError(
            [f"{path} is a run of method {method!r}; knowledge transfer needs 'single'"]
        )
    return dict(zip(matrix.tasks, score_when_learned(matrix), strict=False))
