"""What the doctor finds: of each task whether it is ready, and of each problem what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mcit.printable import printable

Status = Literal["ready", "fixable", "missing"]
MISSING = " is missing"
EXIT_CODES = {
    "ready": 0,
    "fixable": 1,
    "missing": 3,
}  # 2 is that of a command line that cannot be understood


@dataclass(frozen=True)
class Problem:
    """Something that keeps a task from running, and the next thing to do about it."""

    text: str
    remedy: str
    status: Status = "missing"  # fixable: with what is here already


@dataclass
class SplitFinding:
    """How much of a split is there."""

    name: str
    examples: int | None = None  # None: not known, because its files are missing or broken
    official: int | None = None
    files: int | None = None  # images, and what belongs to them, that its examples name
    absent: int = 0  # of these

    def describe(self) -> str:
        """A cell of the table: `5,000 of 443,757`."""
        if self.examples is None:
            return "-"
        if self.official in (None, self.examples):
            return f"{self.examples:,}"
        return f"{self.examples:,} of {self.official:,}"


@dataclass
class Finding:
    """A task as it was found."""

    task: str
    track: Literal["mcit", "efcil"] = "mcit"
    order: str = ""  # how a run would name it
    options: list[str] = field(default_factory=list)  # that a run needs beside it
    prepared: bool = False  # all its images are in the cache
    splits: dict[str, SplitFinding] = field(default_factory=dict)  # train and eval
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """As bad as the worst problem."""
        found = {problem.status for problem in self.problems}
        return "missing" if "missing" in found else "fixable" if "fixable" in found else "ready"

    def add(self, text: str, remedy: str, status: Status = "missing") -> None:
        """Note a problem, once; all that is merely missing and comes from the same place is one."""
        text, remedy = printable(text), printable(remedy)
        for place, known in enumerate(self.problems):
            if (known.remedy, known.status) == (remedy, status):
                parts = known.text.split("; ")
                if text in parts:
                    return
                if all(part.endswith(MISSING) for part in (*parts, text)):
                    self.problems[place] = replace(known, text="; ".join([*parts, text]))
                    return
        self.problems.append(Problem(text, remedy, status))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"status": self.status, **asdict(self)}


def exit_code(findings: Iterable[Finding]) -> int:
    """0 if all tasks are ready, 1 if some can be mended with what is here, 3 if something must be fetched."""
    return max((EXIT_CODES[finding.status] for finding in findings), default=0)
