"""Runs as reports see them: read from their folders or from a plain matrix of any other toolkit, and grouped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mcit import metrics
from mcit.errors import DataError
from mcit.reports.checks import check_config, check_passport, check_plain, check_scores
from mcit.reports.foreign import read_json, read_plain, read_text
from mcit.reports.identity import make_identity, make_key, tell_apart
from mcit.reports.splits import count_classes, find_split, weigh

SCORES = "scores.json"
NEEDED = ("method", "seed", "track", "estimator", "metrics", "seen")
MATRICES = (".csv", ".tsv", ".txt", ".json")  # endings of files of other toolkits
BOUNDS = ("joint", "single")  # they see what a continual learner may not: shown, but never the best


class NoRun(DataError):
    """A file or folder that is there, and is not of a run."""


@dataclass(frozen=True)
class Run:
    """One finished or unfinished run. `config` and `passport` are empty for results of other toolkits."""

    label: str  # of the folder or the file
    method: str
    seed: int | None
    track: str  # mcit, efcil, or foreign
    matrix: metrics.ScoreMatrix
    scores: Mapping[str, Any]  # the contents of scores.json
    config: Mapping[str, Any] = field(default_factory=dict)
    passport: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.matrix.tasks

    @property
    def complete(self) -> bool:
        """Whether every task was learned."""
        return len(self.matrix.rows) == len(self.matrix.tasks)

    @property
    def embedded(self) -> bool:
        """Whether the data are the benchmark that ships with mcit."""
        return bool(self.scores.get("embedded"))

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.scores["metrics"]

    @property
    def cost(self) -> Mapping[str, float]:
        return self.scores.get("cost", {})


@dataclass(frozen=True)
class Group:
    """Complete runs of one method that differ in their seed only; or one run that is not complete, by itself.

    variant: the method, with what tells it from other groups of the same method and setting: `ewc`, `ewc@300`.
    setting: the tasks, as the order that was given names them. Groups of one setting can stand in one table.
    label: the variant, with its setting where the report has several; no two groups of a report share it.
    """

    method: str
    runs: tuple[Run, ...]
    variant: str = ""
    setting: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variant", self.variant or self.method)
        object.__setattr__(self, "setting", self.setting or _name_setting(self.runs[0]))
        object.__setattr__(self, "label", self.label or self.variant)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.runs[0].tasks

    @property
    def complete(self) -> bool:
        return all(run.complete for run in self.runs)

    @property
    def ranked(self) -> bool:
        """Whether the group may be called best: complete, and no upper bound."""
        return self.complete and self.method not in BOUNDS

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]


def read_runs(paths: Iterable[str | Path], skipped: list[str] | None = None) -> list[Run]:
    """Return the runs of folders, of folders that hold several, and of CSV or JSON files; each once, in order.

    With `skipped`, what is among several paths and no run is left out, and that list is told why: `runs/*` names an
    earlier report too.
    """
    listed = [Path(path) for path in paths]
    found: dict[Path, Path] = {}
    for path in listed:
        try:
            found |= {file.resolve(): file for file in _find_files(path)}
        except NoRun as error:
            if skipped is None or len(listed) == 1:
                raise
            skipped.append(str(error))
    if not found and skipped:
        raise DataError(
            "there is no run among what was given:" + "".join(f"\n  - {line}" for line in skipped)
        )
    if not found:
        raise DataError(
            "there is nothing to report on: give the folder of a run, or a CSV or JSON file of scores"
        )
    runs = [
        read_run(file.parent) if file.name == SCORES else read_foreign(file)
        for file in found.values()
    ]
    count = Counter(run.label for run in runs)
    return [
        replace(run, label="/".join(place.parts[-2:]))
        if count[run.label] > 1 and run.folder
        else run
        for run, place in zip(runs, (file.parent for file in found), strict=True)
    ]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The runs by setting, by method and by all of their configuration but the seed, in order of first appearance."""
    found: dict[Any, list[Run]] = {}
    for number, run in enumerate(runs):
        alone = None if run.complete else number
        found.setdefault(
            (_find_setting(run, runs), run.method, _find_identity(run), alone), []
        ).append(run)
    settings = dict(
        zip(*_name_settings([(key[0], members[0]) for key, members in found.items()]), strict=True)
    )
    groups = [
        Group(key[1], tuple(members), setting=settings[key[0]]) for key, members in found.items()
    ]
    named = _name_variants(groups)
    several = len({group.setting for group in named}) > 1
    return [
        replace(group, label=f"{group.variant} on {group.setting}" if several else group.variant)
        for group in named
    ]


def split_settings(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each setting, in order of first appearance."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.setting, []).append(group)
    return found


def read_run(folder: Path) -> Run:
    """The run in a folder that holds `scores.json`."""
    path = folder / SCORES
    scores = read_json(path)
    missing = [name for name in NEEDED if name not in scores]
    if missing:
        listed = ", ".join(missing)
        raise DataError(
            f"{path} has no {listed}: it was not written by `mcit run`, or not to its end; run it again"
        )
    check_scores(path, scores)
    try:
        matrix = metrics.ScoreMatrix.from_dict(scores)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no matrix of scores: {error}") from None
    scores = {
        "diagnoses": [],
        "stiffness": [],
        "cost": {},
        **scores,
        "metrics": _recompute_metrics(matrix, scores),
    }
    config, passport = {}, {}
    if (folder / "config.yaml").is_file():
        config = _read_config(folder / "config.yaml")
        check_config(folder / "config.yaml", config)
    if (folder / "passport.json").is_file():
        passport = read_json(folder / "passport.json")
        check_passport(folder / "passport.json", passport)
    return Run(
        folder.name,
        scores["method"],
        scores["seed"],
        track=scores["track"],
        matrix=matrix,
        scores=scores,
        config=config,
        passport=passport,
        folder=folder,
    )


def _recompute_metrics(matrix: metrics.ScoreMatrix, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a matrix as they are defined now, for a run of an earlier version may have others.

    What does not follow from the matrix, such as knowledge transfer, is as it was written.
    """
    recorded = scores["metrics"]
    found = {**recorded, **metrics.to_dict(matrix)["metrics"]}
    if "A_old" not in recorded:
        found["A_old"] = _average_old(matrix)
    return found


def read_foreign(path: Path) -> Run:
    """The plain matrix of another toolkit (see `mcit.reports.foreign`); what it does not state is not made up."""
    data = read_plain(path)
    check_plain(path, data)
    stated = data["chance"] is not None
    chance = data["chance"] if stated else [0.0] * len(data["tasks"])
    try:
        pooled = find_split(data["tasks"]) is not None
        matrix = metrics.ScoreMatrix(
            data["tasks"], chance, data["matrix"], class_incremental=pooled
        )
        sizes = count_classes(matrix.tasks)
        seen = data.get("seen") or [weigh(row, sizes) for row in matrix.rows]
        matrix = replace(matrix, seen=seen, old=_average_old(matrix))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is no matrix of scores: {error}") from None
    scores = {
        "method": data["method"],
        "seed": data["seed"],
        "track": "foreign",
        "estimator": "not stated",
    }
    scores |= {
        "diagnoses": [],
        "stiffness": [],
        "cost": {},
        "file": path.name,
        **metrics.to_dict(matrix),
    }
    if not stated:
        scores["chance"] = None
    if not stated and not matrix.class_incremental:
        # forgetting is measured from the chance level
        losses = scores["metrics"]["forgetting_transfer"]
        scores["metrics"]["forgetting_transfer"] = [[None] * len(row) for row in losses]
        scores["metrics"]["forgetting_transfer_average"] = [None] * len(losses)
    return Run(path.stem, data["method"], data["seed"], "foreign", matrix, scores)


def _find_files(path: Path) -> list[Path]:
    if path.is_file():
        if path.name != SCORES and path.suffix.lower() not in MATRICES:
            raise NoRun(f"{path} is no matrix of scores: such files end in {', '.join(MATRICES)}")
        return [path]
    if not path.is_dir():
        raise DataError(
            f"there is no run at {path}: give the folder of a run, or a CSV or JSON file of scores"
        )
    if (path / SCORES).is_file():
        return [path / SCORES]
    found = sorted(path.rglob(SCORES), key=_count_up)
    if not found:
        reason = f", for there is no {SCORES} in it or below it; give the folder of a run"
        if (path / "config.yaml").is_file():
            reason = ": no task of it is finished yet; give it again when one is"
        raise NoRun(f"{path} holds no run{reason}")
    return found


def _count_up(path: Path) -> list[Any]:
    """A key that puts seed9 before seed10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", str(path))
    ]


def _find_identity(run: Run) -> Any:
    return make_key(make_identity(run.config, run.passport)) if run.config else run.track


def _find_setting(run: Run, runs: Sequence[Run]) -> tuple[tuple[str, ...], bool]:
    """The tasks, and whether they are embedded; foreign results are taken to be of the one kind that is there."""
    if run.track != "foreign":
        return run.tasks, run.embedded
    kinds = {
        other.embedded for other in runs if other.track != "foreign" and other.tasks == run.tasks
    }
    return run.tasks, kinds == {True}


def _name_settings(settings: Sequence[tuple[Any, Run]]) -> tuple[list[Any], list[str]]:
    """The distinct settings and a name for each."""
    first: dict[Any, Run] = {}
    for key, run in settings:
        if key not in first or (first[key].track == "foreign" and run.track != "foreign"):
            first[key] = run  # one of our own knows how the order was given
    names = [_name_setting(run) for run in first.values()]
    tasks = [key[0] for key in first]
    names = [
        f"{n}, {'embedded' if k[1] else 'real'}" if tasks.count(k[0]) > 1 else n
        for n, k in zip(names, first, strict=True)
    ]
    seen: Counter[str] = Counter()
    for number, name in enumerate(names):
        seen[name] += 1
        names[number] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return list(first), names


def _name_setting(run: Run) -> str:
    if run.config.get("order"):
        return ",".join(run.config["order"])
    split = find_split(run.tasks)
    return ",".join(run.tasks) if split is None else split.order


def _name_variants(groups: Sequence[Group]) -> list[Group]:
    """The groups with the words that tell them from others of their method and setting."""
    variants: dict[int, str] = {}
    for key in dict.fromkeys((group.setting, group.method) for group in groups):
        first = {
            n: group.runs[0]
            for n, group in enumerate(groups)
            if (group.setting, group.method) == key
        }
        own = {number: run for number, run in first.items() if run.config}
        suffixes = tell_apart([make_identity(run.config, run.passport) for run in own.values()])
        named = {
            number: run.method + suffix
            for (number, run), suffix in zip(own.items(), suffixes, strict=True)
        }
        taken: set[str] = set()
        for number, run in first.items():
            variant = named.get(number, run.method) + _describe_state(run)
            clash = variant in taken or (own and number not in own)  # our own keep the plain name
            variants[number] = f"{variant} ({run.label})" if clash else variant
            taken.add(variants[number])
    return [replace(group, variant=variants[number]) for number, group in enumerate(groups)]


def _describe_state(run: Run) -> str:
    if run.complete:
        return ""
    seed = "" if run.seed is None else f"seed {run.seed}, "
    return f" ({seed}{len(run.matrix.rows)} of {len(run.tasks)} tasks)"


def _average_old(matrix: metrics.ScoreMatrix) -> list[float | None]:
    """A_old of scores that do not tell it: over all earlier classes, as if all had as many images."""
    sizes = count_classes(matrix.tasks)
    return [weigh(row[:-1], sizes) if len(row) > 1 else None for row in matrix.rows]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise DataError(f"{path} must hold one mapping, found a {type(config).__name__}")
    return config
