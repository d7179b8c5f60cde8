"""How a data set's classes become a sequence of tasks: the order of the classes and the sizes of the tasks."""

from __future__ import annotations

import re

import numpy

from mcit.config import ConfigError

_GRAMMAR = re.compile(r"(?:(?P<start>\d+)\+)?(?P<tasks>\d+)x(?P<size>\d+)")


def order_classes(classes: int, seed: int) -> list[int]:
    """The labels 0..classes-1 in the order in which they are learned; entry i is the label of the i-th class.

    The literature's orders come from numpy's legacy generator, which draws otherwise than `numpy.random.default_rng`.
    """
    return numpy.random.RandomState(seed).permutation(classes).tolist()


def parse_split(split: str | None, classes: int, name: str) -> list[int]:
    """The number of classes of each task: `10x5` is 10 tasks of 5; `50+10x5` is 50 classes, then 10 tasks of 5."""
    if split is None:
        raise ConfigError(
            [f"{name!r} needs a split, such as {name}:{_fitting(classes)[0]} ({_help(classes)})"]
        )
    match = _GRAMMAR.fullmatch(split)
    if match is None:
        raise ConfigError(
            [
                f"split '{name}:{split}' is neither TASKSxSIZE nor START+TASKSxSIZE ({_help(classes)})"
            ]
        )
    start, tasks, size = (int(match[group] or 0) for group in ("start", "tasks", "size"))
    if tasks == 0 or size == 0 or match["start"] == "0":
        raise ConfigError([f"split '{name}:{split}' has an empty task ({_help(classes, start)})"])
    if start + tasks * size != classes:
        total = f"{start + tasks * size} classes where {name} has {classes}"
        raise ConfigError([f"split '{name}:{split}' stands for {total} ({_help(classes, start)})"])
    return [start] * (start > 0) + [size] * tasks


def is_equal(sizes: list[int]) -> bool:
    """Whether no task is larger than another; a big start is not."""
    return len(set(sizes)) == 1


def _help(classes: int, start: int = 0) -> str:
    fitting = ", ".join(_fitting(classes, start))
    return f"for {classes} classes: {fitting}"


def _fitting(classes: int, start: int = 0) -> list[str]:
    """The equal splits, then those with this big start, or with one of half the classes where it fits nothing."""
    start = start if 0 < start < classes else classes // 2
    equal = [f"{tasks}x{size}" for tasks, size in _factors(classes) if tasks > 1 or classes == 1]
    return equal + [f"{start}+{tasks}x{size}" for tasks, size in _factors(classes - start) if start]


def _factors(number: int) -> list[tuple[int, int]]:
    return [(tasks, number // tasks) for tasks in range(1, number + 1) if number % tasks == 0]
