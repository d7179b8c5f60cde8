"""A sweep: strengths, methods, seeds and orders as a grid of runs, and the rule that picks a strength from it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcit import metrics
from mcit.arguments import parse_seeds
from mcit.config import ConfigError, RunConfig, parse, read_yaml, suggest
from mcit.registry import UnknownName, find_method, has_option
from mcit.reports.runs import read_run
from mcit.sweeps.jobs import Job

# what a grid itself says of each run, so that a setting of the same thing would contradict it
OF_THE_GRID = {
    "seed": "--seeds",
    "order": "--order",
    "method": "--methods",
    "method.name": "--methods",
}
OF_THE_GRID |= {"output": "--output"}
LEAST_SEEN = 2  # after one task nothing can have been forgotten, and no strength shows


@dataclass(frozen=True)
class MethodGrid:
    """What is tried of one method; no strengths: the one it is configured with."""

    strengths: tuple[float, ...] = ()
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bad = [value for value in self.strengths if not (math.isfinite(value) and value >= 0)]
        if bad:
            raise ConfigError([f"a strength must be a number from 0, found {bad[0]:g}"])


@dataclass(frozen=True)
class Grid:
    """What a sweep runs: every order with every method at each of its strengths, with every seed."""

    methods: Mapping[str, MethodGrid]
    orders: tuple[str, ...] = ()  # none: the order that the configuration names
    strengths: tuple[float, ...] = ()  # of methods that list none of their own
    seeds: tuple[int, ...] = (1, 2, 3)
    config: str | None = None
    flavour: str | None = None
    data_root: str | None = None
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = (
            [] if self.methods else ["no methods are given: use --methods finetune,ewc,ewc_dr"]
        )
        for name in ("orders", "seeds", "strengths"):
            values = getattr(self, name)
            twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
            problems += [f"{name} lists {value!r} twice; once is enough" for value in twice]
        if not self.seeds:
            problems.append("no seeds are given")
        if problems:
            raise ConfigError(problems)


def read_grid(path: Path) -> dict[str, Any]:
    """A grid's file, its short forms written out; `make_grid` checks it.

    `order` is one order and `orders` several. `methods` is a list of names, or a section in which each method has its
    strengths, `ewc: [300, 1000]`, or a section of its own, `ewc: {strengths: [300, 1000], set: [method.merge=online]}`.
    """
    data = dict(read_yaml(path))
    if "order" in data:
        if "orders" in data:
            raise ConfigError(
                [f"{path} has both 'order' and 'orders'; several orders go into 'orders'"]
            )
        data["orders"] = [data.pop("order")]
    orders = data.get("orders", [])
    orders = orders if isinstance(orders, list) else [orders]
    data["orders"] = [
        ",".join(map(str, order)) if isinstance(order, list) else order for order in orders
    ]
    methods = data.get("methods", {})
    if not isinstance(methods, dict):
        methods = dict.fromkeys(
            refuse_twice("methods", [str(name).strip() for name in _listed(methods)])
        )
    data["methods"] = {name: _write_out(value) for name, value in methods.items()}
    if isinstance(data.get("seeds"), str):
        data["seeds"] = list(parse_seeds(data["seeds"].split(",")))
    return data


def refuse_twice(what: str, names: Sequence[str]) -> Sequence[str]:
    """Return the names, or raise a ConfigError if one of them is given twice."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError([f"{what} lists {name!r} twice; once is enough" for name in twice])
    return names


def find_conflicts(grid: Grid) -> list[str]:
    """Return what a grid says twice, or for nobody."""
    problems = []
    takers = [name for name in grid.methods if has_option(name, "strength") is not False]
    if grid.strengths and not takers:
        listed = ", ".join(grid.methods)
        problems.append(
            f"strengths are given, and none of the methods has one ({listed}); leave them out"
        )
    for method, own in grid.methods.items():
        if own.strengths and method not in takers:
            problems.append(_describe_useless_strengths(method, own.strengths))
        for change in (*grid.set, *own.set):
            key = change.partition("=")[0].strip()
            if key == "method.strength" and method in takers and (own.strengths or grid.strengths):
                problems.append(
                    f"{change!r} sets what --strengths lists for {method!r}; give one of them"
                )
            if key in OF_THE_GRID:
                problems.append(
                    f"{change!r} cannot be set for every run of a grid; use {OF_THE_GRID[key]}"
                )
    return list(dict.fromkeys(problems))


def make_grid(data: Mapping[str, Any]) -> Grid:
    """The grid that data describe, or all that is wrong with them."""
    return parse(Grid, data)


def plan_jobs(grid: Grid, output: Path, read: Callable[[Sequence[str]], RunConfig]) -> list[Job]:
    """Every run of the grid; `read` makes a configuration of the options of `mcit run`. All problems in one error."""
    jobs, problems = [], {}
    for order in grid.orders or (None,):
        for method in grid.methods:
            for strength in find_strengths(grid, method, problems):
                for seed in grid.seeds:
                    try:
                        jobs.append(_plan_job(grid, output, read, order, method, strength, seed))
                    except ConfigError as error:
                        problems.update(dict.fromkeys(error.problems))
    names = [job.name for job in jobs]
    problems.update(
        {f"two runs would be called {n}": None for n in dict.fromkeys(names) if names.count(n) > 1}
    )
    if problems:
        raise ConfigError(problems)
    return jobs


def find_strengths(grid: Grid, method: str, problems: dict[str, None]) -> Sequence[float | None]:
    """The strengths that are tried; a method that has none is run as it is, unless some were given for it alone."""
    own = grid.methods[method].strengths
    try:
        if has_options(method, "strength"):
            return own or grid.strengths or (None,)
    except UnknownName as error:
        problems[str(error)] = None
        return ()
    if own:
        problems[_describe_useless_strengths(method, own)] = None
    return (None,)


def has_options(method: str, *names: str) -> bool:
    """Whether a method has fields of these names."""
    return {*names} <= {option.name for option in dataclasses.fields(find_method(method))}


def _plan_job(
    grid: Grid,
    output: Path,
    read: Callable[[Sequence[str]], RunConfig],
    order: str | None,
    method: str,
    strength: float | None,
    seed: int,
) -> Job:
    # late: it needs torch, and a typo is told before torch is imported
    from mcit.runner.plan import resolve

    changes = [] if strength is None else [f"method.strength={strength!r}"]
    options = make_options(grid, order, method, seed, changes)
    label = method if strength is None else f"{method}@{strength:g}"
    prefix = f"{_shorten(order)}-" if len(grid.orders) > 1 else ""
    config = read(options)
    resolve(config)  # what is wrong with the names and options of tasks and method is said now
    return Job(
        output / f"{prefix}{label}-seed{seed}", tuple(options), config, method, strength, order
    )


def make_options(
    grid: Grid, order: str | None, method: str, seed: int, changes: Sequence[str] = ()
) -> list[str]:
    """Return the options of `mcit run` for one run of a grid, without its folder."""
    options = ["--order", order] if order else []
    for name in ("config", "flavour", "data_root"):
        value = getattr(grid, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", value]
    options += ["--method", method, "--seed", str(seed)]
    for change in (*grid.set, *grid.methods[method].set, *changes):
        options += ["--set", change]
    return options


@dataclass(frozen=True)
class Choice:
    """The strength that a method gets, and what it was picked from."""

    order: str | None
    method: str
    strength: float
    seen: tuple[str, ...]  # the tasks that were looked at
    seeds: tuple[int, ...]
    tried: Mapping[float, tuple[float, ...]]  # by strength, the value of every seed

    def describe(self) -> str:
        values = ", ".join(
            f"{s:g}: {statistics.mean(v):.2f}" for s, v in sorted(self.tried.items())
        )
        edge = " (at the edge of the grid: try further)" if self._at_edge() else ""
        return f"{self.method}: strength {self.strength:g}{edge}, from {values}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "method": self.method,
            "strength": self.strength,
            "seen": list(self.seen),
            "seeds": list(self.seeds),
            "tried": [{"strength": s, "values": list(v)} for s, v in sorted(self.tried.items())],
            "at_edge": self._at_edge(),
        }

    def _at_edge(self) -> bool:
        return len(self.tried) > 1 and self.strength in (min(self.tried), max(self.tried))


def describe_rule(seen: int) -> str:
    """What the selection looks at, in words that go beside its result."""
    return (
        f"the strength with the highest mean of A_1..A_{seen}, averaged over the selection seeds; the smaller one of "
        f"equals. Only the first {seen} tasks are looked at, as if the later ones had not come yet"
    )


def select(jobs: Sequence[Job], seen: int) -> list[Choice]:
    """For each order and method with several strengths, the best by what was seen after the first `seen` tasks.

    Runs that failed are left out; a strength counts only if it has as many runs as the others.
    """
    if seen < LEAST_SEEN:
        raise ConfigError(
            [
                f"--select needs at least {LEAST_SEEN} tasks: after the first, all strengths are alike"
            ]
        )
    groups: dict[tuple[str | None, str], list[Job]] = {}
    for job in jobs:
        if job.strength is not None:
            groups.setdefault((job.order, job.method), []).append(job)
    return [_choose(order, method, group, seen) for (order, method), group in groups.items()]


def _choose(order: str | None, method: str, jobs: Sequence[Job], seen: int) -> Choice:
    values: dict[float, dict[int, float]] = {}
    tasks: tuple[str, ...] = ()
    for job in jobs:
        run = read_run(job.folder)
        if len(run.tasks) < seen:
            raise ConfigError([f"--select {seen}: {job.name} has {len(run.tasks)} tasks only"])
        tasks = run.tasks[:seen]
        values.setdefault(job.strength, {})[job.seed] = statistics.fmean(
            metrics.average_seen(run.matrix)[:seen]
        )
    most = max(len(found) for found in values.values())
    values = {strength: found for strength, found in values.items() if len(found) == most}
    best = max(sorted(values), key=lambda strength: statistics.fmean(values[strength].values()))
    tried = {strength: tuple(found.values()) for strength, found in values.items()}
    return Choice(order, method, best, tasks, tuple(dict.fromkeys(job.seed for job in jobs)), tried)


def keep_chosen(jobs: Sequence[Job], choices: Sequence[Choice]) -> list[Job]:
    """The runs at the chosen strengths, and those of methods that have none to choose."""
    chosen = {(choice.order, choice.method): choice.strength for choice in choices}
    return [
        job for job in jobs if job.strength == chosen.get((job.order, job.method), job.strength)
    ]


def parse_strengths(
    texts: Sequence[str], methods: Sequence[str]
) -> tuple[list[float], dict[str, list[float]]]:
    """`100,300` for every method, `ewc=100,300` for one: those for all, and those by method."""
    shared: list[float] = []
    own: dict[str, list[float]] = {}
    problems = []
    for text in texts:
        method, equals, numbers = text.rpartition("=")
        if equals and method not in methods:
            problems.append(
                f"--strengths {text}: {method!r} is not in --methods{suggest(method, methods)}"
            )
            continue
        try:
            values = [float(number) for number in numbers.split(",")]
        except ValueError:
            problems.append(
                f"--strengths {text}: expected numbers such as 100,300 or METHOD=100,300"
            )
            continue
        (own.setdefault(method, []) if equals else shared).extend(values)
    if problems:
        raise ConfigError(problems)
    return shared, own


def _describe_useless_strengths(method: str, strengths: Sequence[float]) -> str:
    return (
        f"method {method!r} has no strength, and the grid gives it {len(strengths)}; leave them out"
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else str(value).split(",") if value else []


def _write_out(value: Any) -> Any:
    if value is None:
        return {}
    return (
        value
        if isinstance(value, dict)
        else {"strengths": value if isinstance(value, list) else [value]}
    )


def _shorten(order: str) -> str:
    return "-".join(item.strip().replace(":", "-") for item in order.split(","))
