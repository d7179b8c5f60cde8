"""Expected results as files: the numbers of a table, and the runs that should lead to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcit.config.files import read_yaml
from mcit.config.parse import parse
from mcit.errors import ConfigError
from mcit.spelling import suggest
from mcit.sweeps.grid import RunOptions

TABLES = Path(__file__).parent
# the numbers of the paper, which reports compare with too
PAPER = TABLES.parent / "reports" / "paper_tables.json"
# numbers of papers, by the name of their file
PUBLISHED = {
    path.name: path
    for path in (PAPER, TABLES / "instruction_tables.json", TABLES / "exemplar_free_tables.json")
}
# stands for the data root in commands that are only shown
PLACEHOLDER = "DIR"


@dataclass(frozen=True)
class Setting:
    """What is learned: a configuration or an order."""

    # the place of its numbers in the file, `{method}` standing for the row
    expected: str
    config: str | None = None
    order: str | None = None
    # operations of one example, forward and backward
    gigaflop: float | None = None


@dataclass(frozen=True)
class MethodRow:
    """A method as it stands in the table."""

    # its name in `mcit list`, if the row is called otherwise
    method: str | None = None
    set: tuple[str, ...] = ()
    set_by_setting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # what tells it from another row of the same method
    remark: str = ""


@dataclass(frozen=True)
class Cost:
    """How much is learned: examples of each task, or `per_class`; and the basis of the estimate."""

    examples: Mapping[str, int]
    basis: str


@dataclass(frozen=True)
class ExpectedResults:
    """A table as a file in `mcit/reproduce/` describes it."""

    title: str
    source: str
    # what --data-root must hold
    data: str | None
    # a JSON file
    numbers: str
    # in points
    tolerance: float
    tolerance_basis: str
    # of ours, and where they are among the numbers of a cell
    metrics: Mapping[str, str]
    settings: Mapping[str, Setting]
    methods: Mapping[str, MethodRow]
    seeds: tuple[int, ...] = (1,)
    cost: Cost | None = None
    deviations: tuple[str, ...] = ()
    # record whole matrices of scores too, for `mcit run` to show
    keep_scores: bool = False

    @property
    def published(self) -> bool:
        """Whether the numbers are a paper's, and not measured with this program."""
        return self.numbers in PUBLISHED

    @property
    def path(self) -> Path:
        """Return the file of the numbers."""
        return PUBLISHED.get(self.numbers, TABLES / self.numbers)

    def read_numbers(self) -> dict[str, Any]:
        """Return the contents of the file of the numbers; nothing if none were recorded yet."""
        if not self.path.is_file():
            return {}
        return json.loads(self.path.read_text(encoding="utf-8"))

    def find_numbers(self, setting: str, method: str) -> Any:
        """Return the numbers of a cell; None if there are none."""
        place = self.settings[setting].expected.replace("{method}", method)
        return find_place(self.read_numbers(), place)

    def options_of(
        self, setting: str, method: str, seed: int, *, data_root: str | None = None
    ) -> RunOptions:
        """Return the options of one run of a cell."""
        where = self.settings[setting]
        row = self.methods[method]
        if self.data is not None and data_root is None:
            data_root = PLACEHOLDER
        given = {
            "order": where.order,
            "data_root": data_root,
            "method": row.method or method,
            "seed": seed,
        }
        return RunOptions(where.config, given, (*row.set, *row.set_by_setting.get(setting, ())))


def list_tables() -> list[str]:
    """Return the names of the tables."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def read_expected(name: str) -> ExpectedResults:
    """Return the table of that name."""
    known = list_tables()
    if name not in known:
        listed = ", ".join(known)
        raise ConfigError([f"no table {name!r}{suggest(name, known)} (tables: {listed})"])
    return parse(ExpectedResults, read_yaml(TABLES / f"{name}.yaml"))


def find_unknown(
    table: ExpectedResults, settings: Sequence[str], methods: Sequence[str]
) -> list[str]:
    """Return what is wrong with the settings and methods that are asked for."""
    problems = []
    for what, asked, known in (
        ("setting", settings, table.settings),
        ("method", methods, table.methods),
    ):
        listed = ", ".join(known)
        for name in asked:
            if name not in known:
                near = suggest(name, known)
                problems.append(f"the table has no {what} {name!r}{near} ({what}s: {listed})")
    return problems


def find_place(data: Any, place: str) -> Any:
    """Return what is at a dotted place in nested mappings and lists; None if nothing is.

    An empty place is that of the data themselves.
    """
    if not place:
        return data
    for key in place.split("."):
        if isinstance(data, list):
            data = dict(enumerate(data)).get(int(key))
        elif isinstance(data, Mapping):
            data = data.get(key)
        else:
            return None
    return data
