"""Findings of the doctor: whether each task is ready, and what to do about each problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mcit.printable import printable
from mcit.task import Track

Status = Literal["ready", "fixable", "missing"]
# 2 is that of a command line that cannot be understood
EXIT_CODES = {"ready": 0, "fixable": 1, "missing": 3}
SKIP = "leave them out: mcit run --on-bad-record skip"


@dataclass
class Problem:
    """Something that keeps a task from running, and the next thing to do about it."""

    text: str
    remedy: str
    # fixable: with what is here already
    status: Status = "missing"
    # files and folders, if nothing else is wrong than that they are not there
    absent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = printable(self.text)
        self.remedy = printable(self.remedy)

    @classmethod
    def of_absent(cls, name: str, remedy: str) -> Problem:
        """Return the problem that a file or folder is not there."""
        return cls(f"{name} is missing", remedy, absent=[printable(name)])


@dataclass
class SplitFinding:
    """The part of a split that is there."""

    name: str
    # None: unknown, because its files are missing or broken
    examples: int | None = None
    official: int | None = None
    # images, and what belongs to them, that its examples name
    files: int | None = None
    # of these
    absent: int = 0

    def describe(self) -> str:
        """Return a cell of the table: `5,000 of 443,757`."""
        if self.examples is None:
            return "-"
        if self.official in (None, self.examples):
            return f"{self.examples:,}"
        return f"{self.examples:,} of {self.official:,}"


@dataclass
class Finding:
    """A task as it was found."""

    task: str
    track: Track = Track.TASKS
    # how a run would name it
    order: str = ""
    # what a run needs besides
    options: list[str] = field(default_factory=list)
    # all its images are in the cache
    prepared: bool = False
    # train and eval
    splits: dict[str, SplitFinding] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """Return the status of the worst problem."""
        statuses = [problem.status for problem in self.problems]
        return max(statuses, key=EXIT_CODES.__getitem__, default="ready")

    def add(self, problem: Problem) -> None:
        """Note a problem, once; all that is absent and comes from the same place is one problem."""
        for known in self.problems:
            if known.remedy != problem.remedy or known.status != problem.status:
                continue
            if known.text == problem.text:
                return
            if known.absent and problem.absent:
                known.absent = list(dict.fromkeys([*known.absent, *problem.absent]))
                if len(known.absent) > 1:
                    known.text = f"missing: {', '.join(known.absent)}"
                return
        self.problems.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"status": self.status, **asdict(self)}


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 if all tasks are ready, 1 if some can be fixed here, 3 if something is missing."""
    return max((EXIT_CODES[finding.status] for finding in findings), default=0)
