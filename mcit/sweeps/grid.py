"""A grid of runs: orders, methods with their strengths, and seeds, from a file or from options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcit.arguments import parse_seeds
from mcit.config.files import find_early_problems, load_config, read_yaml
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError
from mcit.registry import METHOD, has_option
from mcit.spelling import suggest

# what a grid decides for each of its runs, and the option that lists the values
DECIDED = {
    "seed": "--seeds",
    "order": "--order",
    "method": "--methods",
    "method.name": "--methods",
    "output": "--output",
}


@dataclass(frozen=True)
class RunOptions:
    """The options of one `mcit run`, as `load_config` takes them."""

    file: str | None
    # by key of the configuration; None: not given
    given: Mapping[str, Any]
    assignments: tuple[str, ...] = ()

    def load(self) -> RunConfig:
        """Return the configuration."""
        return load_config(self.file, self.given, self.assignments)

    def words(self) -> list[str]:
        """Return the options as a user types them."""
        words = []
        for key, value in {"config": self.file, **self.given}.items():
            if value is not None:
                option = key.replace("_", "-")
                words += [f"--{option}", str(value)]
        for assignment in self.assignments:
            words += ["--set", assignment]
        return words


@dataclass(frozen=True)
class MethodGrid:
    """What is tried of one method; without strengths, the one that it is configured with."""

    strengths: tuple[float, ...] = ()
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for strength in self.strengths:
            if not (math.isfinite(strength) and strength >= 0):
                raise ConfigError([f"a strength must be at least 0, found {strength:g}"])


@dataclass(frozen=True)
class Grid:
    """Every order with every method at each of its strengths, with every seed."""

    methods: Mapping[str, MethodGrid]
    # none: the order that the configuration names
    orders: tuple[str, ...] = ()
    # of methods that list none of their own
    strengths: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    config: str | None = None
    preset: Literal["release", "exact"] | None = None
    recipe: str | None = None
    data_root: str | None = None
    tracker: str | None = None
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if not self.methods:
            problems.append("no methods are given: use --methods finetune,ewc,ewc_dr")
        if not self.seeds:
            problems.append("no seeds are given")
        for name in ("orders", "seeds", "strengths"):
            problems += find_repeated(name, getattr(self, name))
        if problems:
            raise ConfigError(problems)

    def strengths_of(self, method: str) -> Sequence[float | None]:
        """Return the strengths to try; None stands for the one that is configured."""
        if not takes_strength(method):
            return (None,)
        return self.methods[method].strengths or self.strengths or (None,)

    def options_of(
        self, order: str | None, method: str, seed: int, *, strength: float | None = None
    ) -> RunOptions:
        """Return the options of one run."""
        given = {
            "order": order,
            "preset": self.preset,
            "recipe": self.recipe,
            "data_root": self.data_root,
            "tracker": self.tracker,
            "method": method,
            "seed": seed,
        }
        assignments = [*self.set, *self.methods[method].set]
        if strength is not None:
            assignments.append(f"method.strength={strength!r}")
        return RunOptions(self.config, given, tuple(assignments))


def read_grid(path: Path) -> dict[str, Any]:
    """Return the contents of a grid file, its short forms written out, for `parse(Grid, ...)`.

    `order` is one order and `orders` several. `methods` is a list of names, or a section in which
    each method has its strengths, `ewc: [300, 1000]`, or a section of its own,
    `ewc: {strengths: [300, 1000], set: [method.merge=online]}`.
    """
    data = dict(read_yaml(path))
    if "order" in data:
        if "orders" in data:
            raise ConfigError(
                [f"{path} has both 'order' and 'orders'; several orders go into 'orders'"]
            )
        data["orders"] = [data.pop("order")]
    orders = []
    for order in _to_list(data.get("orders")):
        orders.append(",".join(map(str, _to_list(order))))
    data["orders"] = orders
    data["methods"] = _read_methods(data.get("methods"))
    data["set"] = _to_list(data.get("set"))
    if isinstance(data.get("seeds"), str):
        data["seeds"] = parse_seeds(data["seeds"].split(","))
    return data


def parse_strengths(
    texts: Sequence[str], methods: Sequence[str]
) -> tuple[list[float], dict[str, list[float]]]:
    """Return the strengths for every method, `100,300`, and those for one, `ewc=100,300`."""
    shared: list[float] = []
    own: dict[str, list[float]] = {}
    problems = []
    for text in texts:
        method, equals, numbers = text.rpartition("=")
        if equals and method not in methods:
            near = suggest(method, methods)
            problems.append(f"--strengths {text}: {method!r} is not in --methods{near}")
            continue
        try:
            strengths = [float(number) for number in numbers.split(",")]
        except ValueError:
            example = "expected numbers such as 100,300 or METHOD=100,300"
            problems.append(f"--strengths {text}: {example}")
            continue
        if equals:
            own.setdefault(method, []).extend(strengths)
        else:
            shared += strengths
    if problems:
        raise ConfigError(problems)
    return shared, own


def find_repeated(name: str, values: Sequence[Any]) -> list[str]:
    """Return a problem for every value that a list holds more than once."""
    repeated = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    return [f"{name} lists {value!r} twice; once is enough" for value in repeated]


def find_problems(grid: Grid) -> list[str]:
    """Return what is wrong with the runs of a grid, as far as is known without torch."""
    problems = []
    for order in grid.orders or (None,):
        for method in grid.methods:
            try:
                config = grid.options_of(order, method, grid.seeds[0]).load()
                problems += find_early_problems(config)
            except ConfigError as error:
                problems += error.problems
    problems += find_conflicts(grid)
    # most are the same for every method
    return list(dict.fromkeys(problems))


def find_conflicts(grid: Grid) -> list[str]:
    """Return what a grid sets twice, and strengths for methods that have none."""
    problems = []
    if grid.strengths and not any(takes_strength(method) for method in grid.methods):
        listed = ", ".join(grid.methods)
        problems.append(
            f"strengths are given, and none of the methods has one ({listed}); leave them out"
        )
    for method, own in grid.methods.items():
        takes_one = takes_strength(method)
        if own.strengths and not takes_one:
            count = len(own.strengths)
            problems.append(
                f"method {method!r} has no strength, and the grid gives it {count}; leave them out"
            )
        is_listed = takes_one and (own.strengths or grid.strengths)
        for assignment in (*grid.set, *own.set):
            key = assignment.partition("=")[0].strip()
            if key == "method.strength" and is_listed:
                problems.append(
                    f"{assignment!r} sets what --strengths lists for {method!r}; give one of them"
                )
            if key in DECIDED:
                problems.append(
                    f"{assignment!r} cannot be set for every run of a grid; use {DECIDED[key]}"
                )
    return list(dict.fromkeys(problems))


def takes_strength(method: str) -> bool:
    """Whether a method has a strength; if its file alone does not say, it is given one."""
    return has_option(METHOD, method, "strength") is not False


def _read_methods(methods: Any) -> dict[str, Any]:
    """Return a section for each method of a grid file."""
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",")]
    if not isinstance(methods, dict):
        names = [str(name) for name in _to_list(methods)]
        problems = find_repeated("methods", names)
        if problems:
            raise ConfigError(problems)
        methods = dict.fromkeys(names)
    sections = {}
    for name, section in methods.items():
        if not isinstance(section, dict):
            section = {"strengths": _to_list(section)}
        sections[name] = section
    return sections


def _to_list(value: Any) -> list[Any]:
    """Return a list as it is, a single value as a list, and nothing as an empty one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
