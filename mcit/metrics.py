"""The score matrix of a sequence and all that derives from it: pure functions of percentages.

Tasks count from 0 here. A value that is undefined, such as forgetting what never rose above chance,
is None; so is an average over values of which one is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Baseline = Literal["chance", "measured"]

# points above chance that say nothing: chance levels such as a third are given to two digits
ROUNDING = 0.01

# results of a text metric beside its score: by content alone, and of the asked form
CONTENT = "normalized"
FORM = "obedience"


@dataclass(frozen=True)
class ScoreMatrix:
    """`rows[t][j]`: the score on task j once task t was learned, j up to t, in percent.

    There may be fewer rows than tasks: the sequence is then under way. `before[j]` is the score on
    task j just before it was learned, None where it was not measured. `seen[t]` is given where the
    average over all tasks seen is not the mean of the row, as for pooled classes; `old[t]`
    likewise, over all tasks before t, None for the first. `class_incremental` says that one
    classifier answers among all classes seen so far: chance then falls with every class that is
    added, and a task can lose all of its score.
    """

    tasks: tuple[str, ...]
    chance: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...] = ()
    before: tuple[float | None, ...] = ()
    seen: tuple[float, ...] = ()
    old: tuple[float | None, ...] = ()
    class_incremental: bool = False

    def __post_init__(self) -> None:
        for name in ("tasks", "chance", "before", "seen", "old"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        problems = [*_check_lengths(self), *_check_values(self)]
        if problems:
            raise ValueError("; ".join(problems))

    def add(
        self,
        row: Sequence[float],
        seen: float | None = None,
        before: float | None = None,
        old: float | None = None,
    ) -> ScoreMatrix:
        """Return the matrix with one more row; `before`: the task's score before it was learned."""
        known = _pad(self.before, len(self.rows))
        return replace(
            self,
            rows=(*self.rows, tuple(row)),
            before=self.before if before is None else (*known, before),
            seen=self.seen if seen is None else (*average_seen(self), seen),
            old=self.old if old is None else (*average_old(self), old),
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScoreMatrix:
        """The matrix that `to_dict` wrote."""
        pooled = data.get("track") == "efcil"
        matrix = cls(
            data["tasks"],
            data["chance"],
            data["matrix"],
            before=data.get("before", ()),
            class_incremental=pooled,
        )
        # Averages that only repeat the rows are not kept as data of their own.
        seen = () if tuple(data["seen"]) == average_seen(matrix) else data["seen"]
        old = tuple(data["metrics"].get("A_old", ()))
        return replace(matrix, seen=seen, old=() if old == average_old(matrix) else old)


def average_seen(matrix: ScoreMatrix) -> tuple[float, ...]:
    """A_t: the average over the tasks seen, after each task."""
    return matrix.seen or tuple(math.fsum(row) / len(row) for row in matrix.rows)


def score_when_learned(matrix: ScoreMatrix) -> tuple[float, ...]:
    """A_new: the score on each task just after it was learned, a_tt."""
    return tuple(row[-1] for row in matrix.rows)


def average_old(matrix: ScoreMatrix) -> tuple[float | None, ...]:
    """Return A_old: the average over all earlier tasks, after each task; None for the first."""
    return matrix.old or tuple(_mean(row[:-1]) for row in matrix.rows)


def last_average(matrix: ScoreMatrix) -> float | None:
    """A_last: the average over all tasks after the last."""
    return average_seen(matrix)[-1] if matrix.rows else None


def mean_average(matrix: ScoreMatrix) -> float | None:
    """A_avg: the mean of A_t over the sequence."""
    return _mean(average_seen(matrix))


def backward_transfer(matrix: ScoreMatrix) -> float | None:
    """BWT: how much the earlier tasks changed since they were learned, in points."""
    learned = score_when_learned(matrix)[:-1]
    return _mean([now - then for now, then in zip(_last(matrix), learned, strict=False)])


def forward_transfer(matrix: ScoreMatrix) -> float | None:
    """FWT: how far above chance the later tasks were before they were learned, in points."""
    count = len(matrix.rows)
    if len(matrix.before) < count:
        return None
    pairs = zip(matrix.before[1:count], matrix.chance[1:count], strict=True)
    return _mean([None if before is None else before - chance for before, chance in pairs])


def forgetting(matrix: ScoreMatrix) -> float | None:
    """How far the earlier tasks ended below the best they had ever been, in points, on average."""
    earlier = matrix.rows[:-1]
    best = [max(row[task] for row in earlier[task:]) for task in range(len(earlier))]
    return _mean([peak - now for peak, now in zip(best, _last(matrix), strict=False)])


def forgetting_transfer(
    matrix: ScoreMatrix, baseline: Baseline = "chance"
) -> tuple[tuple[float | None, ...], ...]:
    """Return 100 (a_jj - a_tj) / (a_jj - floor_j) for every earlier task j of every row t.

    The floor is the chance level, as in CLiMB's tables, and 0 of class-incremental tasks: a
    classifier over all classes can score nothing on the old ones, and a share of more than all
    could not be read. With the baseline `measured` it is the score before the task was learned.
    """
    learned = score_when_learned(matrix)
    floor = find_floor(matrix) if baseline == "chance" else _pad(matrix.before, len(learned))
    return tuple(
        tuple(
            _share(learned[task] - row[task], learned[task], floor[task])
            for task in range(len(row) - 1)
        )
        for row in matrix.rows
    )


def find_floor(matrix: ScoreMatrix) -> tuple[float, ...]:
    """Return the score at which nothing of a task is left: chance, or 0 if class-incremental."""
    return (0.0,) * len(matrix.tasks) if matrix.class_incremental else matrix.chance


def forgetting_transfer_average(
    matrix: ScoreMatrix, baseline: Baseline = "chance"
) -> tuple[float | None, ...]:
    """Return the mean of each row of `forgetting_transfer`; None for the first row."""
    return tuple(_mean(row) for row in forgetting_transfer(matrix, baseline))


def knowledge_transfer(
    matrix: ScoreMatrix, single: Mapping[str, float]
) -> tuple[float | None, ...]:
    """Return 100 (a_jj - single_j) / (single_j - chance_j): the gain over learning j alone.

    None for a task whose score alone is not in `single`, or is not above chance.
    """
    rows = zip(matrix.tasks, score_when_learned(matrix), matrix.chance, strict=False)
    return tuple(
        _share(learned - single[task], single[task], chance) if task in single else None
        for task, learned, chance in rows
    )


@dataclass(frozen=True)
class SplitLoss:
    """What the earlier tasks lost since they were learned, in points, on average.

    `content` was lost as content; `form` is the rest: answers that are still right but no longer in
    the form that scores.
    """

    total: float
    content: float

    @property
    def form(self) -> float:
        return self.total - self.content


def split_loss(matrix: ScoreMatrix, content: ScoreMatrix) -> SplitLoss | None:
    """Return how much of what was lost is content; None before there are earlier tasks."""
    total = backward_transfer(matrix)
    of_content = backward_transfer(content)
    if total is None or of_content is None:
        return None
    return SplitLoss(-total, -of_content)


def name_as_published(matrix: ScoreMatrix) -> dict[str, float | None]:
    """Return MFT, MFN and MAA: what papers on instructions call A_new (its mean), A_last, A_avg.

    Their BWT is ours.
    """
    return {
        "MFT": _mean(score_when_learned(matrix)),
        "MFN": last_average(matrix),
        "MAA": mean_average(matrix),
    }


def to_dict(matrix: ScoreMatrix, single: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The part of `scores.json` that is about scores."""
    metrics: dict[str, Any] = {
        "A_last": last_average(matrix),
        "A_avg": mean_average(matrix),
        "A_new": list(score_when_learned(matrix)),
        "A_old": list(average_old(matrix)),
        "BWT": backward_transfer(matrix),
        "FWT": forward_transfer(matrix),
        "forgetting": forgetting(matrix),
        "forgetting_transfer": [list(row) for row in forgetting_transfer(matrix)],
        "forgetting_transfer_average": list(forgetting_transfer_average(matrix)),
    }
    if matrix.before:
        metrics["forgetting_transfer_measured"] = [
            list(row) for row in forgetting_transfer(matrix, "measured")
        ]
    if single is not None:
        metrics["knowledge_transfer"] = list(knowledge_transfer(matrix, single))
    return {
        "tasks": list(matrix.tasks),
        "chance": list(matrix.chance),
        "matrix": [list(row) for row in matrix.rows],
        **({"before": list(matrix.before)} if matrix.before else {}),
        "seen": list(average_seen(matrix)),
        "metrics": metrics,
    }


def _pad(values: Sequence[float | None], length: int) -> tuple[float | None, ...]:
    return (*values, *[None] * (length - len(values)))


def _share(lost: float, learned: float, floor: float | None) -> float | None:
    """`lost` in percent of what was above the floor; None if that is nothing but rounding."""
    if floor is None or learned - floor < ROUNDING:
        return None
    return 100 * lost / (learned - floor)


def _last(matrix: ScoreMatrix) -> tuple[float, ...]:
    return matrix.rows[-1] if matrix.rows else ()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _check_lengths(matrix: ScoreMatrix) -> list[str]:
    tasks, rows, problems = len(matrix.tasks), len(matrix.rows), []
    twice = sorted({task for task in matrix.tasks if matrix.tasks.count(task) > 1})
    if twice:
        problems.append(f"tasks named twice: {', '.join(twice)}")
    if len(matrix.chance) != tasks:
        problems.append(f"{tasks} tasks need as many chance levels, found {len(matrix.chance)}")
    if rows > tasks:
        problems.append(f"{tasks} tasks cannot have {rows} rows")
    for index, row in enumerate(matrix.rows):
        if len(row) != index + 1:
            problems.append(f"row {index} of the matrix needs {index + 1} scores, found {len(row)}")
    if len(matrix.before) > tasks:
        problems.append(f"{tasks} tasks cannot have {len(matrix.before)} scores from before")
    if len(matrix.seen) not in (0, rows):
        problems.append(
            f"{rows} rows need as many averages over what was seen, or none; found "
            f"{len(matrix.seen)}"
        )
    if len(matrix.old) not in (0, rows):
        problems.append(
            f"{rows} rows need as many averages over earlier tasks, or none; found "
            f"{len(matrix.old)}"
        )
    return problems


def _check_values(matrix: ScoreMatrix) -> list[str]:
    named = [
        (f"the chance level of task {task}", value) for task, value in enumerate(matrix.chance)
    ]
    named += [
        (f"row {t}, task {j}", value)
        for t, row in enumerate(matrix.rows)
        for j, value in enumerate(row)
    ]
    named += [
        (f"the score before task {j}", value)
        for j, value in enumerate(matrix.before)
        if value is not None
    ]
    named += [(f"the average after task {t}", value) for t, value in enumerate(matrix.seen)]
    named += [
        (f"the old average after task {t}", value)
        for t, value in enumerate(matrix.old)
        if value is not None
    ]
    return [
        f"{name} must be a percentage from 0 to 100, found {value!r}"
        for name, value in named
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100
    ]
