"""Which tasks are examined, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from mcit.config.files import find_config, read_yaml, task_name
from mcit.config.parse import parse
from mcit.data.annotated import AnnotatedSplit, AnnotatedTask
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.workers import count_jobs, map_pieces
from mcit.doctor.annotated import examine_annotated
from mcit.doctor.class_incremental import examine_classes
from mcit.doctor.findings import Finding, Problem
from mcit.errors import ConfigError, DataError
from mcit.registry import TASK, UnknownName, find_task, list_names
from mcit.task import Task, Track

# bytes of annotations that are parsed in several processes
_WORTHWHILE = 20_000_000

TaskOptions = Mapping[str, Mapping[str, Any]]


def examine(
    root: Path, order: Sequence[str] = (), options: TaskOptions | None = None, deep: bool = False
) -> list[Finding]:
    """Return a finding for each task of an order; without one, for all tasks that need data."""
    tasks = make_tasks(root, order, options)
    _parse_together(tasks)
    return [_examine_task(task, deep) for task in tasks]


def make_tasks(
    root: Path, order: Sequence[str] = (), options: TaskOptions | None = None
) -> list[Task]:
    """Return the tasks of an order, a data set that is split as a whole.

    All that is wrong with the order is one error.
    """
    changes = {find_task(name): given for name, given in (options or {}).items()}
    tasks: list[Task] = []
    problems: list[str] = []
    for item in order or _list_tasks():
        name, _, split = item.partition(":")
        try:
            kind = find_task(name)
            given = {"root": str(root), **changes.get(kind, {})}
            if split:
                # raises if the data set cannot be split like that
                parts = kind.sequence(split, given, seed=1)
                if kind.track is not Track.CLASSES:
                    tasks += parts
                    continue
            tasks.append(parse(kind, given, where=f"tasks.{name}"))
        except UnknownName as error:
            problems.append(str(error))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tasks


def _list_tasks() -> list[str]:
    """Return the tasks that need data, those of CLiMB first and in its order."""
    climb = [task_name(item) for item in read_yaml(find_config("climb"))["order"]]
    names = list_names(TASK)
    ordered = [name for name in climb if name in names]
    ordered += [name for name in names if name not in climb]
    return [name for name in ordered if _needs_data(find_task(name))]


def _needs_data(kind: type[Task]) -> bool:
    if issubclass(kind, ClassIncrementalTask):
        return kind.page != ""
    return kind.on_its_own


def _parse_together(tasks: Sequence[Task]) -> None:
    """Parse annotations in several processes; the examination then finds them in the cache."""
    sizes: dict[AnnotatedSplit, int] = {}
    for task in tasks:
        if not isinstance(task, AnnotatedTask):
            continue
        for split in (task.split("train"), task.split("eval")):
            if all(path.is_file() for path in split.files):
                sizes[split] = sum(path.stat().st_size for path in split.files)
    if sum(sizes.values()) < _WORTHWHILE:
        return
    # the longest first
    splits = sorted(sizes, key=lambda split: -sizes[split])
    with tqdm(
        desc="parse annotations", total=len(splits), unit=" splits", leave=False, disable=None
    ) as progress:
        for _ in map_pieces(_parse, splits, count_jobs()):
            progress.update()


def _parse(split: AnnotatedSplit) -> None:
    # the examination meets the error again, and explains it
    with suppress(DataError):
        _ = split.table


def _examine_task(task: Task, deep: bool) -> Finding:
    if isinstance(task, AnnotatedTask):
        return examine_annotated(task, deep)
    if isinstance(task, ClassIncrementalTask) and task.page:
        return examine_classes(task, deep)
    finding = Finding(task.dataset or task.name, track=task.track)
    try:
        task.check()
    except DataError as error:
        finding.add(Problem(str(error), "fix the problem above"))
    else:
        finding.notes.append("checked with Task.check() (generated data or a task of your own)")
    return finding
