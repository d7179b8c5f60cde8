"""The raw scores of a study: one line of JSON per run, from which tables and figures are made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcit.config.parse import parse, to_dict
from mcit.errors import ConfigError, DataError
from mcit.files import write_text
from mcit.metrics import FORM, ScoreMatrix, average_old, average_seen
from mcit.reports.runs import Run
from mcit.studies.plan import Point, StudyPlan

# of scores in percent; two runs agree if they are the same to half of the last one shown
DIGITS = 4
SAME = 0.005


@dataclass(frozen=True)
class Scores:
    """The scores of a run by one classifier, in percent."""

    # rows[t][j]: on task j once task t was learned
    rows: tuple[tuple[float, ...], ...]
    # over all tasks seen, after each task
    seen: tuple[float, ...]
    # over all earlier tasks, after each task but the first
    old: tuple[float, ...]
    # of answers in words: the shares in the asked form, as in `rows`
    form: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        lengths = [len(row) for row in self.rows]
        count = len(lengths)
        if count < 2 or lengths != list(range(1, count + 1)):
            raise ConfigError([f"'rows' must have 1, 2, ... scores, found {lengths}"])
        if len(self.seen) != count or len(self.old) != count - 1:
            raise ConfigError(
                [
                    f"{count} tasks need {count} numbers in 'seen' and {count - 1} in 'old', found "
                    f"{len(self.seen)} and {len(self.old)}"
                ]
            )
        if self.form and [len(row) for row in self.form] != lengths:
            raise ConfigError(["'form' must have as many numbers in every row as 'rows'"])

    @property
    def last(self) -> float:
        """A_last: over all tasks at the end."""
        return self.seen[-1]

    @property
    def learned(self) -> float:
        """A_new: the mean of the scores on each task just after it was learned."""
        return math.fsum(row[-1] for row in self.rows) / len(self.rows)

    @property
    def kept(self) -> float:
        """The score over all tasks but the last, at the end."""
        return self.old[-1]

    @property
    def form_kept(self) -> float | None:
        """The share of answers in the asked form over all tasks but the last, at the end."""
        if not self.form:
            return None
        return math.fsum(self.form[-1][:-1]) / (len(self.form) - 1)


@dataclass(frozen=True)
class Record:
    """What the tables need of a run."""

    entry: str
    seed: int
    # what the plan said of the entry
    plan: str
    # by classifier
    scores: Mapping[str, Scores]
    strength: float | None = None
    stiffness: float | None = None
    # the strength that strength auto chose
    chosen: float | None = None
    seconds: float | None = None

    @property
    def point(self) -> Point:
        return Point(self.entry, self.seed, self.strength, self.stiffness)


def make_record(run: Run, point: Point, plan: StudyPlan) -> Record:
    """Return the record of a complete run."""
    first = run.scores.classifier or "head"
    scores = {first: _make_scores(run)}
    for other in run.others:
        scores[str(other.classifier)] = _make_scores(other)
    cost = run.cost
    parts = [cost.get(f"{part}_seconds") for part in ("fit", "end_task", "score")]
    known = [part for part in parts if part is not None]
    return Record(
        entry=point.entry,
        seed=point.seed,
        plan=plan.digest(point.entry),
        scores=scores,
        strength=point.strength,
        stiffness=point.stiffness,
        chosen=run.chosen_strength,
        seconds=round(math.fsum(known), 1) if known else None,
    )


def read_records(path: Path, plan: StudyPlan) -> dict[Point, Record]:
    """Return the records of a file, and of a file that is not there none.

    Raise a DataError if a line is no record, is of a plan with other settings, or comes twice.
    """
    if not path.is_file():
        return {}
    records: dict[Point, Record] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            record = parse(Record, json.loads(line))
        except ValueError as error:
            raise DataError(f"{where} is not a record of a run: {error}") from None
        if record.entry not in plan.entries:
            raise DataError(f"{where} is of {record.entry!r}, which {plan.path} does not name")
        if record.plan != plan.digest(record.entry):
            raise DataError(
                f"{where}: {plan.path} had other settings for {record.entry!r} when it ran; put "
                "them back, or delete the line"
            )
        if record.point in records:
            raise DataError(f"{where} repeats {record.point.name}; delete one of the lines")
        records[record.point] = record
    return records


def write_records(path: Path, records: Mapping[Point, Record]) -> None:
    """Write the file whole, in the order of entries, strengths, levels and seeds."""
    lines = [_write_line(record) for record in sorted(records.values(), key=_order)]
    write_text(path, "".join(f"{line}\n" for line in lines))


def find_disagreements(
    expected: Mapping[Point, Record], found: Mapping[Point, Record]
) -> tuple[list[str], list[str]]:
    """Return the runs that both have: those whose scores agree, and those that differ."""
    agree: list[str] = []
    differ: list[str] = []
    for point, record in found.items():
        if point not in expected:
            continue
        pairs = zip(_flatten(expected[point]), _flatten(record), strict=False)
        same = len(_flatten(expected[point])) == len(_flatten(record))
        same = same and all(abs(one - other) <= SAME for one, other in pairs)
        (agree if same else differ).append(point.name)
    return agree, differ


def _make_scores(run: Run) -> Scores:
    matrix = run.matrix
    old = [value for value in average_old(matrix)[1:] if value is not None]
    form = run.views.get(FORM)
    return Scores(
        rows=_round_rows(matrix),
        seen=_round(average_seen(matrix)),
        old=_round(old),
        form=() if form is None else _round_rows(form),
    )


def _round_rows(matrix: ScoreMatrix) -> tuple[tuple[float, ...], ...]:
    return tuple(_round(row) for row in matrix.rows)


def _round(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, DIGITS) for value in values)


def _write_line(record: Record) -> str:
    data = {key: value for key, value in to_dict(record).items() if value is not None}
    for scores in data["scores"].values():
        if not scores["form"]:
            del scores["form"]
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _order(record: Record) -> tuple[Any, ...]:
    strength = -1.0 if record.strength is None else record.strength
    stiffness = -1.0 if record.stiffness is None else record.stiffness
    return record.entry, stiffness, strength, record.seed


def _flatten(record: Record) -> Sequence[float]:
    numbers: list[float] = []
    for scores in record.scores.values():
        numbers += [value for row in scores.rows for value in row]
        numbers += scores.seen
    return numbers
