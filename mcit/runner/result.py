"""What a run has found so far: scores, what they cost, and where they are written."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcit.config import ConfigError
from mcit.metrics import ScoreMatrix, score_when_learned
from mcit.metrics import to_dict as metrics_to_dict
from mcit.reports.runs import read_run
from mcit.runner.plan import Plan
from mcit.training import Score

VERSION = 1  # of scores.json


@dataclass
class Result:
    """The scores so far, what they cost, and where they were written."""

    plan: Plan
    matrix: ScoreMatrix
    output: Path
    details: list[list[Mapping[str, float]]] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=Counter)
    diagnoses: list[str] = field(default_factory=list)  # of the penalty after each task, in words
    stiffness: list[Mapping[str, float]] = field(default_factory=list)  # and in figures
    single: Mapping[str, float] | None = None  # what each task scores alone

    def to_dict(self) -> dict[str, Any]:
        """The contents of scores.json."""
        config, method = self.plan.config, self.plan.method
        return {
            "version": VERSION,
            "track": self.plan.track,
            "method": config.method.name,
            "estimator": method.describe(),
            "flavour": config.flavour,
            "seed": config.seed,
            "embedded": self.plan.embedded,
            **metrics_to_dict(self.matrix, self.single),
            "details": self.details,
            "diagnoses": self.diagnoses,
            "stiffness": self.stiffness,
            "cost": {"bytes_held": method.bytes_held(), **self.cost},
        }

    def state_dict(self) -> dict[str, Any]:
        """What cannot be derived, as JSON; the tasks themselves belong to the plan."""
        matrix = {
            key: value
            for key, value in dataclasses.asdict(self.matrix).items()
            if key not in _OF_THE_PLAN
        }
        kept = {name: list(getattr(self, name)) for name in _LISTS}
        return {"matrix": matrix, **kept, "cost": dict(self.cost)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The counterpart of `state_dict`."""
        self.matrix = dataclasses.replace(self.matrix, **state["matrix"])
        for name in _LISTS:
            setattr(self, name, list(state[name]))
        self.cost.clear()  # the same object: others may be looking at it
        self.cost.update(state["cost"])


_OF_THE_PLAN = ("tasks", "chance", "class_incremental")
_LISTS = ("details", "diagnoses", "stiffness")  # one entry for every task


def begin_result(plan: Plan, output: Path) -> Result:
    """Nothing is known yet but the tasks, and what each of them scores alone if a run of that is named."""
    names, chances = (
        tuple(getattr(task, name) for task in plan.tasks) for name in ("name", "chance")
    )
    matrix = ScoreMatrix(names, chances, class_incremental=plan.track == "efcil")
    return Result(plan, matrix, output, single=read_single(plan.config.single))


@contextmanager
def timed(cost: dict[str, float], name: str) -> Iterator[Callable[[], float]]:
    """Add the seconds within to a cost, whatever happens; gives the cost as it is at a moment inside."""
    before, start = cost[name], time.perf_counter()
    spent = lambda: before + time.perf_counter() - start  # noqa: E731
    try:
        yield spent
    finally:
        cost[name] = spent()


def pool_scores(plan: Plan, scores: Sequence[Score]) -> float | None:
    """Accuracy over all classes seen, each image once; None where tasks have scores of their own kind."""
    if plan.track == "mcit" or not scores:
        return None
    return sum(s.score * s.examples for s in scores) / sum(s.examples for s in scores)


def read_single(folder: str | None) -> dict[str, float] | None:
    """What each task scored alone, from the folder of a run of method `single`."""
    if folder is None:
        return None
    path = Path(folder) / "scores.json"
    if not path.is_file():
        raise ConfigError(
            [
                f"'single' names {folder!r}, which has no scores.json; run the order with --method single"
            ]
        )
    run = read_run(path.parent)
    if run.method != "single":
        raise ConfigError(
            [f"{path} is a run of method {run.method!r}; knowledge transfer needs 'single'"]
        )
    return dict(zip(run.tasks, score_when_learned(run.matrix), strict=False))
