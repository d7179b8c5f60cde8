"""How a class-incremental order splits its classes, read from the names of its tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class ClassSplit:
    """How many classes of a data set each task brings."""

    dataset: str
    sizes: tuple[int, ...]

    @property
    def big_start(self) -> bool:
        return len(self.sizes) > 1 and self.sizes[0] > self.sizes[1]

    @property
    def length(self) -> int:
        """The number of incremental tasks: after a big start the first is not counted."""
        return len(self.sizes) - 1 if self.big_start else len(self.sizes)

    @property
    def order(self) -> str:
        """As `--order` is given: `cifar100:10x10`, `cifar100:50+10x5`."""
        if len(set(self.sizes)) == 1:
            return f"{self.dataset}:{len(self.sizes)}x{self.sizes[0]}"
        return f"{self.dataset}:{self.sizes[0]}+{len(self.sizes) - 1}x{self.sizes[1]}"

    def describe(self) -> str:
        """The split in words."""
        total = sum(self.sizes)
        if self.big_start:
            tasks = f"{self.length} task{'' if self.length == 1 else 's'}"
            return f"big start, {self.sizes[0]} of {total} classes, then {tasks}"
        return f"equal split, {total} classes in {self.length} tasks"


def find_split(tasks: Sequence[str]) -> ClassSplit | None:
    """The split that names such as `cifar100[0-49]`, `cifar100[50-54]` tell of; None for tasks of other kinds."""
    parts = [re.fullmatch(r"(.+)\[(\d+)-(\d+)\]", task) for task in tasks]
    if not parts or None in parts or len({part[1] for part in parts}) != 1:
        return None
    bounds = [(int(part[2]), int(part[3]) + 1) for part in parts]
    if bounds[0][0] != 0 or any(end != begin for (_, end), (begin, _) in pairwise(bounds)):
        return None
    return ClassSplit(parts[0][1], tuple(end - begin for begin, end in bounds))


def count_classes(tasks: Sequence[str]) -> tuple[int, ...]:
    """The classes of each task; tasks of other kinds count as one each."""
    split = find_split(tasks)
    return split.sizes if split else (1,) * len(tasks)


def weigh(values: Sequence[float], sizes: Sequence[int]) -> float:
    """The mean of values that stand for as many classes as the first of `sizes` say."""
    weights = sizes[: len(values)]
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
