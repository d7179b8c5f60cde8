"""A data set's classes as a sequence of tasks: the order of classes and the sizes of tasks."""

from __future__ import annotations

import re

import numpy as np

from mcit.errors import ConfigError

_GRAMMAR = re.compile(r"(?:(?P<start>\d+)\+)?(?P<tasks>\d+)x(?P<size>\d+)")


def order_classes(classes: int, seed: int) -> list[int]:
    """Return the labels 0..classes-1 in the order in which they are learned.

    The literature's orders come from numpy's legacy generator, which draws other numbers than
    `np.random.default_rng`.
    """
    return np.random.RandomState(seed).permutation(classes).tolist()


def parse_split(split: str | None, classes: int, name: str) -> list[int]:
    """Return the number of classes of each task.

    `10x5` is 10 tasks of 5; `50+10x5` is 50 classes, then 10 tasks of 5.
    """
    if split is None:
        example = _list_splits(classes, 0)[0]
        raise _refuse(f"{name!r} needs a split, such as {name}:{example}", classes)
    match = _GRAMMAR.fullmatch(split)
    what = f"split '{name}:{split}'"
    if match is None:
        raise _refuse(f"{what} is neither TASKSxSIZE nor START+TASKSxSIZE", classes)
    start = int(match["start"] or 0)
    tasks = int(match["tasks"])
    size = int(match["size"])
    if tasks == 0 or size == 0 or match["start"] == "0":
        raise _refuse(f"{what} has an empty task", classes, start)
    total = start + tasks * size
    if total != classes:
        problem = f"{what} stands for {total} classes where {name} has {classes}"
        raise _refuse(problem, classes, start)
    sizes = [size] * tasks
    if start:
        sizes.insert(0, start)
    return sizes


def _refuse(problem: str, classes: int, start: int = 0) -> ConfigError:
    """Return an error that lists the splits that do fit."""
    listed = ", ".join(_list_splits(classes, start))
    return ConfigError([f"{problem} (for {classes} classes: {listed})"])


def _list_splits(classes: int, start: int) -> list[str]:
    """Return the equal splits, then those with this big start, or with half of the classes."""
    if not 0 < start < classes:
        start = classes // 2
    equal = [f"{tasks}x{size}" for tasks, size in _factors(classes) if tasks > 1 or classes == 1]
    if not start:
        return equal
    return equal + [f"{start}+{tasks}x{size}" for tasks, size in _factors(classes - start)]


def _factors(number: int) -> list[tuple[int, int]]:
    return [(tasks, number // tasks) for tasks in range(1, number + 1) if number % tasks == 0]
