"""The plan of a study: which methods, strengths, levels of stiffness and seeds, in one YAML file.

development   every entry at each of its strengths, on the development seeds
best          every entry at the strength chosen there, on the other seeds
levels        every entry with strengths, unless it says otherwise, at each stated mean stiffness,
              on the other seeds

The rule that chooses: the strength with the highest mean A_last over the development seeds; of
equals the smaller.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcit.config.files import find_config, read_yaml
from mcit.config.parse import parse
from mcit.errors import ConfigError

RULE = (
    "the strength with the highest mean A_last over the development seeds, of equals the smaller; "
    "it is reported on other seeds"
)


@dataclass(frozen=True)
class Entry:
    """A method of a study; without strengths it is run as it is configured, on the other seeds."""

    # none: the name of the entry
    method: str = ""
    strengths: tuple[float, ...] = ()
    set: tuple[str, ...] = ()
    # whether it is run at equal stiffness too, which methods without importance cannot be; none: if
    # it has strengths
    levels: bool | None = None

    def __post_init__(self) -> None:
        problems = _find_wrong_numbers("strengths", self.strengths, least=0.0)
        if problems:
            raise ConfigError(problems)

    @property
    def is_leveled(self) -> bool:
        """Whether it is run at every level of stiffness."""
        return bool(self.strengths) if self.levels is None else self.levels


@dataclass(frozen=True)
class Point:
    """A run of a study: with a strength, with a stiffness for strength auto, or as configured."""

    entry: str
    seed: int
    strength: float | None = None
    stiffness: float | None = None

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        setting = ""
        if self.strength is not None:
            setting = f"@{self.strength:g}"
        elif self.stiffness is not None:
            setting = f"@auto{self.stiffness:g}"
        return f"{self.entry.replace(' ', '-')}{setting}-seed{self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """Everything that a study runs, and what decides its strengths."""

    title: str
    entries: Mapping[str, Entry]
    # seeds that strengths are chosen on
    development: tuple[int, ...]
    # seeds that are reported
    seeds: tuple[int, ...]
    order: str | None = None
    # mean stiffnesses after the first task
    levels: tuple[float, ...] = ()
    # of a run, until runs have been timed
    minutes: float = 1.0
    config: str | None = None
    preset: Literal["release", "exact"] | None = None
    recipe: str | None = None
    classifier: str | None = None
    transport: str | None = None
    set: tuple[str, ...] = ()
    path: Path = field(default=Path())

    def __post_init__(self) -> None:
        problems = []
        if not self.entries:
            problems.append("'entries' names no method")
        if not self.seeds:
            problems.append("'seeds' is empty: these are the seeds that are reported")
        chosen = [name for name, entry in self.entries.items() if entry.strengths]
        if chosen and not self.development:
            problems.append(f"'development' is empty, and the strength of {chosen[0]!r} is chosen")
        both = sorted({*self.development} & {*self.seeds})
        if both:
            problems.append(
                f"'development' and 'seeds' share {', '.join(map(str, both))}: what picks a "
                "strength must not report on it"
            )
        problems += _find_wrong_numbers("levels", self.levels, above=0.0)
        if not self.minutes > 0:
            problems.append(f"'minutes' must be above 0, found {self.minutes:g}")
        if problems:
            raise ConfigError(problems)

    @property
    def raw(self) -> Path:
        """The file of raw scores, beside the plan."""
        return self.path.with_suffix(".jsonl")

    def method_of(self, entry: str) -> str:
        """Return the method of an entry."""
        return self.entries[entry].method or entry

    def list_development(self) -> list[Point]:
        """Return the runs that choose strengths."""
        return [
            Point(name, seed, strength=strength)
            for name, entry in self.entries.items()
            for strength in entry.strengths
            for seed in self.development
        ]

    def list_best(self, chosen: Mapping[str, float]) -> list[Point]:
        """Return the runs that are reported, at the strengths chosen so far."""
        points = []
        for name, entry in self.entries.items():
            if not entry.strengths or name in chosen:
                points += [Point(name, seed, strength=chosen.get(name)) for seed in self.seeds]
        return points

    def list_levels(self) -> list[Point]:
        """Return the runs at equal stiffness, level by level: a study may be stopped between."""
        return [
            Point(name, seed, stiffness=level)
            for level in self.levels
            for name in self.list_leveled()
            for seed in self.seeds
        ]

    def list_leveled(self) -> list[str]:
        """Return the entries that are run at every level of stiffness."""
        entries = self.entries.items() if self.levels else ()
        return [name for name, entry in entries if entry.is_leveled]

    def count(self) -> dict[str, int]:
        """Return the number of runs of each part, once all strengths are chosen."""
        return {
            "development": len(self.list_development()),
            "best": len(self.entries) * len(self.seeds),
            "levels": len(self.list_levels()),
        }

    def assignments(self, point: Point) -> list[str]:
        """Return the settings of a run, as `--set` takes them."""
        assignments = [*self.set, *self.entries[point.entry].set]
        if point.strength is not None:
            assignments.append(f"method.strength={point.strength!r}")
        if point.stiffness is not None:
            assignments.append("method.strength=auto")
            assignments.append(f"method.stiffness={point.stiffness!r}")
        return assignments

    def given(self, point: Point) -> dict[str, Any]:
        """Return the options of a run beside its settings, by key of the configuration."""
        return {
            "order": self.order,
            "preset": self.preset,
            "recipe": self.recipe,
            "classifier": self.classifier,
            "transport": self.transport,
            "method": self.method_of(point.entry),
            "seed": point.seed,
        }

    def digest(self, entry: str) -> str:
        """Return a short hash of what a run of the entry is, beside strength and seed."""
        own = self.entries[entry]
        shared = [self.order, self.config, self.preset, self.recipe, self.classifier]
        described = [*shared, self.transport, self.set, self.method_of(entry), own.set]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:12]


def read_plan(name: str) -> StudyPlan:
    """Return the plan in a YAML file, or of a name in `configs/`."""
    path = find_config(name)
    data = dict(read_yaml(path))
    entries = data.get("entries")
    if isinstance(entries, dict):
        # a list is short for a section with strengths
        data["entries"] = {
            key: value if isinstance(value, dict) else {"strengths": value or []}
            for key, value in entries.items()
        }
    if isinstance(data.get("order"), list):
        data["order"] = ",".join(map(str, data["order"]))
    try:
        return parse(StudyPlan, {**data, "path": str(path)})
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _find_wrong_numbers(
    name: str, values: Sequence[float], least: float = -math.inf, above: float = -math.inf
) -> list[str]:
    """Return what is wrong with a list of numbers that may each stand in it once."""
    problems = []
    for value in values:
        if not (math.isfinite(value) and value >= least and value > above):
            bound = f"from {least:g}" if math.isfinite(least) else f"above {above:g}"
            problems.append(f"'{name}' holds numbers {bound}, found {value:g}")
    if len(set(values)) < len(values):
        problems.append(f"'{name}' lists a number twice")
    return problems
