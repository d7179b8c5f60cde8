"""What becomes of records that are wrong: one error that lists them, or they are left out, counted and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mcit.data.records import BadRecord, DataProblems
from mcit.task import DataError

Policy = Literal["fail", "skip"]
OnBad = Callable[[DataError], None]  # told of every wrong record
_ENOUGH = 1000  # a file with so many wrong records is the wrong file


def refuse(error: DataError) -> None:
    """The first wrong record is an error."""
    raise error


class BadRecords:
    """The wrong records of a split, counted by reason; the first of each reason is kept as it was reported."""

    def __init__(self, policy: Policy = "skip"):
        self.policy = policy
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}  # reason -> message
        self._messages: list[str] = []

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, error: DataError) -> None:
        """Count a record; where records may not be wrong, enough of them are an error."""
        reason = error.reason if isinstance(error, BadRecord) else str(error)
        self.counts[reason] += 1
        self.first.setdefault(reason, str(error))
        if self.policy == "fail":
            self._messages.append(str(error))
            if len(self._messages) >= _ENOUGH:
                raise DataProblems([*self._messages, "no more were looked for"])

    def raise_if_any(self) -> None:
        """One error that lists them, where records may not be wrong."""
        if self.policy == "fail" and self._messages:
            raise DataProblems(self._messages)

    def merge(self, other: BadRecords) -> BadRecords:
        """Both together, in a new one."""
        both = BadRecords(self.policy)
        both.counts = self.counts + other.counts
        both.first = {**other.first, **self.first}
        return both

    def to_dict(self) -> dict[str, Any]:
        """For JSON: how many, and by reason how many and the first."""
        reasons = {
            reason: {"records": n, "first": self.first[reason]}
            for reason, n in self.counts.most_common()
        }
        return {"records": len(self), "reasons": reasons}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BadRecords:
        """What `to_dict` was made of."""
        bad = cls()
        for reason, found in data["reasons"].items():
            bad.counts[reason], bad.first[reason] = found["records"], found["first"]
        return bad

    def describe(self, total: int) -> str:
        """One line: `3 of 100 records are left out: 2 duplicate id, 1 no image (first: ...)`."""
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in self.counts.most_common(5))
        more = f" and {len(self.counts) - 5} more reasons" if len(self.counts) > 5 else ""
        first = self.first[self.counts.most_common(1)[0][0]]
        return f"{len(self):,} of {total:,} records are left out: {reasons}{more} (first: {first})"
