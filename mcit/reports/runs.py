"""Runs as reports see them, read from the folders that `mcit run` writes, with all checks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from mcit.config.files import read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RECIPE
from mcit.errors import ConfigError, DataError
from mcit.metrics import CONTENT, ScoreMatrix, SplitLoss, name_as_published, split_loss
from mcit.metrics import to_dict as compute_metrics
from mcit.reports.experiment import experiment_of
from mcit.reports.external import read_external, read_json
from mcit.reports.formats import natural_key

SCORES = "scores.json"
CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
# endings of files of other toolkits
EXTERNAL = (".csv", ".tsv", ".txt", ".json")
# how the keys of strengths end, and what leaves the choice to the program
STRENGTH = ".strength"
AUTO = "auto"
# the track of results that another toolkit made
ELSEWHERE = "external"
CHANGED = "was not written by `mcit run`, or has been changed since; run it again"
CLASSES = "efcil"
TEXT = "instructions"

T = TypeVar("T")
Matrix = tuple[tuple[float, ...], ...]


class NoRunError(DataError):
    """A file or folder that exists and is not one of a run."""


@dataclass(frozen=True)
class Metrics:
    """The metrics of scores.json that do not follow from its matrix."""

    A_old: tuple[float | None, ...] = ()
    knowledge_transfer: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class Scores:
    """The part of scores.json that reports read; other keys are ignored."""

    method: str
    seed: int | None
    track: str
    estimator: str
    metrics: Mapping[str, Any]
    tasks: tuple[str, ...]
    matrix: Matrix
    seen: tuple[float, ...]
    chance: tuple[float, ...] | None = None
    before: tuple[float | None, ...] = ()
    preset: str | None = None
    recipe: str | None = None
    # whether the data are the benchmark that ships with mcit
    embedded: bool | None = None
    diagnoses: tuple[str, ...] = ()
    stiffness: tuple[Mapping[str, float], ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    # of text: the scores by content alone, and the shares of answers in the asked form
    views: Mapping[str, Matrix] = field(default_factory=dict)
    # of text: score, content and form of every task before any was learned
    zero_shot: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # what answered
    classifier: str | None = None
    # the scores by the run's other classifiers
    classifiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Config:
    """The part of config.yaml that reports read."""

    order: tuple[str, ...] = ()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Provenance:
    """The part of provenance.json that reports read."""

    command: tuple[str, ...] = ()
    packages: Mapping[str, Any] = field(default_factory=dict)
    experiment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Experiment:
    """The part of an experiment that reports look into."""

    method: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One finished or unfinished run; `config` and `provenance` are empty for external results."""

    label: str
    scores: Scores
    matrix: ScoreMatrix
    config: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    # the classifier these scores are of, if it is not the run's own
    classifier: str | None = None
    views: Mapping[str, ScoreMatrix] = field(default_factory=dict)
    # the same run as its other classifiers scored it
    others: tuple[Run, ...] = ()

    @property
    def method(self) -> str:
        return self.scores.method

    @property
    def seed(self) -> int | None:
        return self.scores.seed

    @property
    def track(self) -> str:
        return self.scores.track

    @property
    def external(self) -> bool:
        return self.track == ELSEWHERE

    @property
    def text(self) -> bool:
        """Whether tasks are answered in words."""
        return self.track == TEXT

    @property
    def zero_shot(self) -> tuple[float, ...] | None:
        """The scores on all tasks before any was learned; None if they are not known."""
        return self.scores.zero_shot.get("score")

    @property
    def loss(self) -> SplitLoss | None:
        """What earlier tasks lost in content and in form; None if that is not known."""
        content = self.views.get(CONTENT)
        return None if content is None else split_loss(self.matrix, content)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.matrix.tasks

    @property
    def learned(self) -> int:
        """The number of tasks learned so far."""
        return len(self.matrix.rows)

    @property
    def complete(self) -> bool:
        return self.learned == len(self.tasks)

    @property
    def cost(self) -> Mapping[str, float]:
        return self.scores.cost

    @property
    def classes(self) -> tuple[int, ...] | None:
        """How many classes each task brings, in class-incremental runs."""
        chance = self.scores.chance
        if self.track != CLASSES or not chance or min(chance) <= 0:
            return None
        # chance is that of guessing among all classes seen
        totals = [0, *(round(100 / level) for level in chance)]
        sizes = tuple(later - earlier for earlier, later in pairwise(totals))
        return sizes if min(sizes) > 0 else None

    @property
    def recipe(self) -> str | None:
        """The recipe of a class-incremental run; None if there is none, or nobody knows."""
        if self.scores.recipe is None and self.track == CLASSES:
            # it was written when there was no other
            return RECIPE
        return self.scores.recipe

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """All that decided its results except for the seed; empty for external results."""
        return experiment_of(self.config, self.provenance)

    @property
    def chosen_strength(self) -> float | None:
        """The strength that strength auto chose; None if it was given, or is not known."""
        asked = [value for key, value in self.experiment.items() if key.endswith(STRENGTH)]
        if AUTO not in asked or not self.scores.stiffness:
            return None
        return self.scores.stiffness[-1].get("strength")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """All metrics, computed from the matrix by one definition for every run of a report."""
        values = compute_metrics(self.matrix)["metrics"]
        if self.text:
            values |= name_as_published(self.matrix)
        transfer = self.scores.metrics.get("knowledge_transfer")
        if transfer is not None and self.classifier is None:
            values["knowledge_transfer"] = transfer
        if self.scores.chance is None and not self.matrix.class_incremental:
            # forgetting transfer is measured from chance, which an external file may not state
            rows = values["forgetting_transfer"]
            values["forgetting_transfer"] = [[None] * len(row) for row in rows]
            values["forgetting_transfer_average"] = [None] * len(rows)
        return values


def read_runs(paths: Iterable[str | Path], skipped: list[str] | None = None) -> list[Run]:
    """Return the runs of folders, of folders that hold several, and of external files, once each.

    With `skipped`, a path among several that holds no run is left out and the reason is added to
    that list: `runs/*` includes the folder of an earlier report.
    """
    given = [Path(path) for path in paths]
    files: dict[Path, Path] = {}
    for path in given:
        try:
            files |= {file.resolve(): file for file in _find_files(path)}
        except NoRunError as error:
            if skipped is None or len(given) == 1:
                raise
            skipped.append(str(error))
    if not files:
        raise DataError(_explain_nothing(skipped or []))
    runs = [_read_file(file) for file in files.values()]
    names = Counter(run.label for run in runs)
    for place, run in enumerate(runs):
        # folders of the same name are told apart by those that they are in
        if names[run.label] > 1 and run.folder is not None:
            runs[place] = replace(run, label="/".join(run.folder.resolve().parts[-2:]))
    return runs


def read_run(folder: Path) -> Run:
    """Return the run in a folder that holds scores.json; raise a DataError if it is damaged."""
    path = folder / SCORES
    run = make_run(folder.name, check_scores(read_json(path), path), path)
    config = _read_config(folder / CONFIG)
    provenance = _read_provenance(folder / PROVENANCE)
    others = [
        replace(other, config=config, provenance=provenance, folder=folder) for other in run.others
    ]
    return replace(run, config=config, provenance=provenance, folder=folder, others=tuple(others))


def check_scores(data: Mapping[str, Any], path: Path) -> Scores:
    """Return the contents of scores.json as typed fields, or raise a DataError with all faults."""
    scores = _check(Scores, data, path)
    _check(Metrics, scores.metrics, path, where="metrics")
    rows = len(scores.matrix)
    if len(scores.seen) != rows:
        raise DataError(f"{path}: 'seen' must have {rows} items, found {len(scores.seen)}")
    for name, values in scores.zero_shot.items():
        if len(values) != len(scores.tasks):
            raise DataError(
                f"{path}: 'zero_shot.{name}' must have {len(scores.tasks)} items, "
                f"found {len(values)}"
            )
    return scores


def make_run(label: str, scores: Scores, path: Path = Path(SCORES)) -> Run:
    """Return a run with these scores, with its views and its other classifiers."""
    chance = scores.chance or (0.0,) * len(scores.tasks)
    shared = {"track": scores.track, "tasks": scores.tasks, "chance": chance}
    own = {"matrix": scores.matrix, "seen": scores.seen, "metrics": scores.metrics}
    try:
        matrix = ScoreMatrix.from_dict({**shared, "before": scores.before, **own})
        views = {
            name: ScoreMatrix(scores.tasks, _find_floor(name, chance), rows)
            for name, rows in scores.views.items()
        }
        others = [
            Run(label, scores, ScoreMatrix.from_dict({**shared, **entry}), classifier=name)
            for name, entry in scores.classifiers.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a matrix of scores: {error}") from None
    return Run(label, scores, matrix, views=views, others=tuple(others))


def _find_floor(view: str, chance: tuple[float, ...]) -> tuple[float, ...]:
    """Return what guessing scores: by content as much as else, while no form comes by chance."""
    return chance if view == CONTENT else (0.0,) * len(chance)


def _check(
    cls: type[T], data: Mapping[str, Any], path: Path, where: str = "", fault: str = CHANGED
) -> T:
    """Return the fields of `cls` that a file holds, or raise a DataError if their types differ."""
    known = cls.__annotations__.keys() & data.keys()
    try:
        # half of a surrogate pair, which JSON can spell, cannot be written or printed
        json.dumps(data, ensure_ascii=False, default=str).encode()
        return parse(cls, {key: data[key] for key in known}, where)
    except UnicodeEncodeError as error:
        problem = f"it holds half a character: {error.object[error.start]!r}"
    except ConfigError as error:
        problem = "; ".join(error.problems)
    raise DataError(f"{path} {fault}: {problem}")


def _read_config(path: Path) -> dict[str, Any]:
    """Return the configuration of a run; empty if the file is not there."""
    if not path.is_file():
        return {}
    try:
        config = read_yaml(path)
    except ConfigError as error:
        raise DataError(error) from None
    return config | vars(_check(_Config, config, path))


def _read_provenance(path: Path) -> dict[str, Any]:
    """Return the provenance of a run; empty if the file is not there."""
    if not path.is_file():
        return {}
    provenance = read_json(path)
    known = _check(_Provenance, provenance, path)
    _check(_Experiment, known.experiment, path, where="experiment")
    return provenance | vars(known)


def _read_file(path: Path) -> Run:
    if path.name == SCORES:
        return read_run(path.parent)
    about = {"track": ELSEWHERE, "estimator": "it does not say how it was made", "metrics": {}}
    data = {"seen": [], **read_external(path), **about}
    scores = _check(Scores, data, path, fault="is not a matrix of scores")
    return make_run(path.stem, scores, path)


def _find_files(path: Path) -> list[Path]:
    if path.is_file():
        if path.name != SCORES and path.suffix.lower() not in EXTERNAL:
            endings = ", ".join(EXTERNAL)
            raise NoRunError(f"{path} is not a matrix of scores: such files end in {endings}")
        return [path]
    if not path.is_dir():
        raise DataError(
            f"there is no run at {path}: give the folder of a run, or a CSV or JSON file of scores"
        )
    if (path / SCORES).is_file():
        return [path / SCORES]
    files = sorted(path.rglob(SCORES), key=natural_key)
    if files:
        return files
    if (path / CONFIG).is_file():
        raise NoRunError(
            f"{path} holds no run: none of its tasks is finished yet; use it when one is"
        )
    raise NoRunError(
        f"{path} holds no run: there is no {SCORES} in it or below it; give the folder of a run"
    )


def _explain_nothing(skipped: list[str]) -> str:
    if not skipped:
        return "nothing to report on: give the folder of a run, or a CSV or JSON file of scores"
    return "none of the paths holds a run:" + "".join(f"\n  - {line}" for line in skipped)
