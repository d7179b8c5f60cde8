"""Problems of data; wrong records are an error, or are left out and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from mcit.errors import DataError
from mcit.printable import printable

Policy = Literal["fail", "skip"]
# called with every wrong record
OnBad = Callable[[DataError], None]
# problems that an error lists
SHOWN = 20
# a file with so many wrong records is the wrong file
_ENOUGH = 1000
# reasons that a summary lists
_REASONS = 5


class DataProblems(DataError):
    """Several things that are wrong with the data, one line each."""

    def __init__(self, problems: Iterable[str] | str):
        # a loader's worker hands an error over as its text alone
        listed = [problems] if isinstance(problems, str) else problems
        self.problems = [printable(problem) for problem in listed]
        lines = self.problems[:SHOWN]
        if len(self.problems) > SHOWN:
            lines.append(f"... and {len(self.problems) - SHOWN} more")
        if len(self.problems) > 1:
            lines.insert(0, f"the data have {len(self.problems)} problems:")
        super().__init__("\n  - ".join(lines))


class BadRecord(DataError):
    """A record that cannot be used; `reason` has the same words for all records with this fault."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = printable(reason or message)


class MissingData(DataError):
    """A data set that is nowhere below the data root; `needed` says what it would look like."""

    def __init__(self, message: str, needed: str = ""):
        super().__init__(message)
        self.needed = needed


class UnfitSetting(DataError):
    """Data that are right and do not go with a setting; `remedy` says which setting would do."""

    def __init__(self, problem: str, remedy: str = ""):
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


def list_problems(error: DataError) -> list[str]:
    """Return the single problems that an error stands for."""
    if isinstance(error, DataProblems):
        return error.problems
    return [str(error)]


def refuse(error: DataError) -> None:
    """Raise the first wrong record."""
    raise error


class BadRecords:
    """The wrong records of a split, counted by reason; the first message of each reason is kept."""

    def __init__(self, policy: Policy = "skip"):
        self.policy = policy
        self.counts: Counter[str] = Counter()
        # reason -> message
        self.first: dict[str, str] = {}
        self._messages: list[str] = []

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, error: DataError) -> None:
        """Count a record; if no record may be wrong, raise once there are very many."""
        message = str(error)
        reason = error.reason if isinstance(error, BadRecord) else message
        self.counts[reason] += 1
        self.first.setdefault(reason, message)
        if self.policy == "fail":
            self._messages.append(message)
            if len(self._messages) >= _ENOUGH:
                raise DataProblems([*self._messages, "no more were looked for"])

    def raise_if_any(self) -> None:
        """Raise one error that lists the wrong records, if no record may be wrong."""
        if self._messages:
            raise DataProblems(self._messages)

    def merge(self, other: BadRecords) -> BadRecords:
        """Return the records of both."""
        both = BadRecords(self.policy)
        both.counts = self.counts + other.counts
        both.first = {**other.first, **self.first}
        return both

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: how many, and by reason how many and the first."""
        reasons = {}
        for reason, count in self.counts.most_common():
            reasons[reason] = {"records": count, "first": self.first[reason]}
        return {"records": len(self), "reasons": reasons}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BadRecords:
        """Return the records that `to_dict` described."""
        bad = cls()
        for reason, noted in data["reasons"].items():
            bad.counts[reason] = noted["records"]
            bad.first[reason] = noted["first"]
        return bad

    def describe(self, total: int, verdict: str = "left out") -> str:
        """Return `3 of 100 records are left out: 2 duplicate id, 1 no image (first: ...)`."""
        common = self.counts.most_common(_REASONS)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in common)
        if len(self.counts) > _REASONS:
            reasons += f" and {len(self.counts) - _REASONS} more reasons"
        first = self.first[common[0][0]]
        return f"{len(self):,} of {total:,} records are {verdict}: {reasons} (first: {first})"
