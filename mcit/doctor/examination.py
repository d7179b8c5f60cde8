"""Which tasks are looked at, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from mcit.config import ConfigError, parse
from mcit.data.annotated import AnnotatedTask
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.pool import count_jobs, map_pieces
from mcit.doctor.annotated import examine_annotated
from mcit.doctor.class_incremental import examine_classes
from mcit.doctor.findings import Finding
from mcit.registry import UnknownName, find_task, task_names
from mcit.task import DataError, Task

_WORTHWHILE = 20_000_000  # bytes of annotations that are parsed in several processes
CLIMB = ("vqa", "nlvr2", "snli-ve", "vcr")  # the order in which they are usually learned


def examine(
    root: Path,
    order: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    deep: bool = False,
) -> list[Finding]:
    """What is found of each task of an order; without one, of all tasks that need data."""
    tasks = make_tasks(root, order, options)
    _parse_together([task for task in tasks if isinstance(task, AnnotatedTask)])
    return [_examine_task(task, deep) for task in tasks]


def make_tasks(
    root: Path, order: Sequence[str] = (), options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Task]:
    """The tasks of an order, a data set that is split as a whole; all that is wrong with it comes in one error."""
    named = {find_task(name): changes for name, changes in (options or {}).items()}
    tasks, problems = [], []
    for item in order or _need_data():
        name, _, split = item.partition(":")
        try:
            kind = find_task(name)
            given = {"root": str(root), **named.get(kind, {})}
            if split:
                kind.sequence(
                    split, given, seed=1
                )  # is it one that the data set can be split into?
            tasks.append(parse(kind, given, where=f"tasks.{name}"))
        except UnknownName as error:
            problems.append(str(error))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tasks


def _need_data() -> list[str]:
    """All but those that are generated: the vision-language tasks in the order of `CLIMB`, then the others."""
    kinds = {name: find_task(name) for name in task_names()}
    needing = [name for name, kind in kinds.items() if getattr(kind, "page", None) != ""]
    return [
        *(name for name in CLIMB if name in needing),
        *(name for name in needing if name not in CLIMB),
    ]


def _parse_together(tasks: Sequence[AnnotatedTask]) -> None:
    """Parse the annotations of all splits side by side; they stay in the cache, where the examination finds them."""
    pieces = []
    for task, split in [(task, split) for task in tasks for split in ("train", "eval")]:
        files = task.files(task.splits[split])
        if all(path.is_file() for path in files):
            pieces.append((sum(path.stat().st_size for path in files), task, split))
    if sum(size for size, _, _ in pieces) < _WORTHWHILE:
        return
    pieces.sort(key=lambda piece: -piece[0])  # the longest first
    with tqdm(
        total=len(pieces), desc="parse annotations", unit=" splits", leave=False, disable=None
    ) as bar:
        for _ in map_pieces(_parse, pieces, count_jobs()):
            bar.update()


def _parse(piece: tuple[int, AnnotatedTask, str]) -> None:
    _, task, split = piece
    with suppress(DataError):  # the examination comes upon it again, and explains it
        task.table(split)


def _examine_task(task: Task, deep: bool) -> Finding:
    if isinstance(task, AnnotatedTask):
        return examine_annotated(task, deep)
    if isinstance(task, ClassIncrementalTask) and task.page:
        return examine_classes(task, deep)
    finding = Finding(getattr(task, "dataset", task.name))
    try:
        task.check()
    except DataError as error:
        finding.add(str(error), "mend what is named")
    else:
        finding.notes.append("checked as a run would; it is generated, or a task of your own")
    return finding
