"""The doctor's look at a task that is read from annotation files and image folders."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as arrow_compute

from mcit.data.annotated import AnnotatedTask
from mcit.data.image_cache import ImageCache
from mcit.data.images import ImageFolder
from mcit.data.preparing import collect_pictures
from mcit.data.records import DataProblems, problems_of
from mcit.data.verification import find_bad_rows, verify_cache
from mcit.doctor.findings import Finding, SplitFinding
from mcit.doctor.layout import explain_missing, explain_packed, show
from mcit.task import DataError

_SAMPLE = 32  # rows of a split whose images are opened without --deep
_FEW = 0.01  # share of images that may be absent before a set counts as incomplete
SKIP = "leave them out: mcit run --on-bad-record skip"


def examine_annotated(task: AnnotatedTask, deep: bool) -> Finding:
    """Files, records, images, a sample or all of them opened, vocabulary, cache."""
    finding = Finding(task.name, order=task.name)
    tables: dict[str, datasets.Dataset] = {}
    for split in ("train", "eval"):
        official = task.splits[split]
        finding.splits[split] = SplitFinding(official, official=task.sizes.get(official))
        table, images = _read_table(task, split, finding), _list_folder(task, official, finding)
        if table is not None:
            tables[split] = table
            finding.splits[split].examples = len(table)
            _count_images(task, split, table, images, finding)
            if images is not None:
                _open_images(task, split, table, images, deep, finding)
    if len(tables) == 2:
        _compare_splits(task, tables, finding)
        _add_remarks(task, finding)
    if finding.status == "ready":
        _look_at_cache(task, finding)
    return finding


def _fetch(task: AnnotatedTask) -> str:
    return f"download from {task.page}; {task.source}"


def _read_table(task: AnnotatedTask, split: str, finding: Finding) -> datasets.Dataset | None:
    root, absent = (
        task.path(),
        [path for path in task.files(task.splits[split]) if not path.is_file()],
    )
    for path in absent:
        problem = explain_missing(root, path, task.archives, _fetch(task))
        finding.add(problem.text, problem.remedy, problem.status)
    if absent:
        return None
    try:
        return task.table(split)
    except DataError as error:
        return _read_the_rest(task, split, error, finding)


def _read_the_rest(
    task: AnnotatedTask, split: str, error: DataError, finding: Finding
) -> datasets.Dataset | None:
    """The table of the records that are right, where the others could be left out."""
    lenient = replace(task, on_bad_record="skip")
    try:
        table = lenient.table(split)
    except DataError:
        for problem in problems_of(error):
            finding.add(problem, f"download it again from {task.page}")
        return None
    described = lenient.skipped_records(split).describe(lenient.count_records(split))
    finding.add(described.replace("are left out", "are wrong"), SKIP, "fixable")
    return table


def _list_folder(task: AnnotatedTask, official: str, finding: Finding) -> ImageFolder | None:
    try:
        return task.folder(official)
    except DataError:
        path = task.path(*task.image_place(official))
        problem = explain_missing(task.path(), path, task.archives, _fetch(task))
        finding.add(problem.text, problem.remedy, problem.status)
        return None


def _count_images(
    task: AnnotatedTask,
    split: str,
    table: datasets.Dataset,
    images: ImageFolder | None,
    finding: Finding,
) -> None:
    found = finding.splits[split]
    columns = {
        column: arrow_compute.unique(table.data.column(column)).to_pylist()
        for column in task.image_columns
    }
    found.files = sum(map(len, columns.values()))
    if images is None:
        found.absent = found.files
        return
    absent = {
        column: [name for name in names if name not in images.index]
        for column, names in columns.items()
    }
    found.absent = sum(map(len, absent.values()))
    if not found.absent:
        return
    column = next(column for column, names in absent.items() if names)
    first = absent[column][0]
    text = f"{show(task.path(), images.path)} lacks {found.absent:,} of {found.files:,} files that {found.name} names"
    text = f"{text}, the first is {column} {first!r}"
    packed = explain_packed(task.path(), images.path, task.archives, _fetch(task))
    if packed is not None:
        finding.add(f"{text}; {packed.text}", packed.remedy, packed.status)
    elif found.absent <= _FEW * found.files:
        finding.add(text, f"{SKIP}; or fetch them from {task.page}", "fixable")
    else:
        named = _compare_names(first, images) if found.absent == found.files else ""
        finding.add(f"{text}{named}", _fetch(task))


def _compare_names(wanted: Any, images: ImageFolder) -> str:
    """What the files there are called, where they are called otherwise."""
    held = list(dict.fromkeys(images.index.values()))
    if not held:
        return "; no file there has a name of that kind"
    last = str(wanted).rpartition("/")[2]
    if "/" in str(wanted) and any(name.rpartition("/")[2] == last for name in held):
        return f"; {last} is there outside of its folder: unpack again, with folders (no unzip -j)"
    return f"; files there are called {held[0]!r}"


def _open_images(
    task: AnnotatedTask,
    split: str,
    table: datasets.Dataset,
    images: ImageFolder,
    deep: bool,
    finding: Finding,
) -> None:
    file, bad = task.files(task.splits[split])[-1], {}
    if deep:
        bad = {
            row: str(error)
            for row, error in find_bad_rows(task, table, images).items()
            if _is_there(error)
        }
    else:
        for row in np.unique(np.linspace(0, len(table) - 1, _SAMPLE).astype(int)).tolist():
            if all(table[row][column] in images.index for column in task.image_columns):
                try:
                    task.open(table[row], images)
                except DataError as error:
                    bad[row] = str(error)
    if bad:
        row, error = next(iter(bad.items()))
        tried = len(table) if deep else min(_SAMPLE, len(table))
        text = f"{len(bad):,} of {tried:,} examples that were opened have a bad image"
        finding.add(
            f"{text}, first {file}, record {table[row]['record']}: {error}", SKIP, "fixable"
        )


def _is_there(error: DataError) -> bool:
    return getattr(error, "reason", "") != "image missing"  # those are counted from the listing


def _compare_splits(
    task: AnnotatedTask, tables: dict[str, datasets.Dataset], finding: Finding
) -> None:
    """The same example in both splits would be learned and then scored."""
    train, held_out = (tables[split].data.column("id") for split in ("train", "eval"))
    shared = arrow_compute.sum(
        arrow_compute.is_in(held_out, value_set=train.combine_chunks())
    ).as_py()
    if shared and tables["eval"][0]["id"] != str(
        tables["eval"][0]["record"]
    ):  # numbered where the file has no ids
        names = " and ".join(task.splits[split] for split in ("train", "eval"))
        finding.add(
            f"{shared:,} examples are in {names} alike",
            f"download the split's own file from {task.page}",
        )


def _add_remarks(task: AnnotatedTask, finding: Finding) -> None:
    try:
        finding.notes += task.remarks()
    except DataProblems as error:
        for problem in error.problems:
            finding.add(problem, f"download it again from {task.page}")
    except DataError as error:
        text, _, remedy = str(error).rpartition("; ")
        finding.add(text or str(error), remedy, "fixable")


def _look_at_cache(task: AnnotatedTask, finding: Finding) -> None:
    cache = ImageCache.find(task.path())
    if cache is None:
        return
    root = shlex.quote(str(task.path()))
    pictures = {**collect_pictures(task, "train"), **collect_pictures(task, "eval")}.values()
    for name, shelf in cache.shelves.items():
        places = [(shelf.find(picture.name), picture) for picture in pictures]
        held = sum(place is not None for place, _ in places)
        stale = sum(
            place is not None and not shelf.is_fresh(place, picture) for place, picture in places
        )
        lead = f"image cache {name}: {held:,} of {len(pictures):,} images"
        if shelf.damaged or stale:
            changed = f"{stale:,} changed since, " if stale else ""
            lead += f" ({changed}{len(shelf.damaged)} damaged files): run `mcit prepare --data-root {root}`"
        if held or shelf.damaged:
            finding.notes.append(lead)
        finding.prepared |= held == len(pictures) and not stale
    try:
        verify_cache(cache, list(pictures)[:3])
    except DataError as error:
        finding.add(str(error), f"rm -r {shlex.quote(str(cache.folder))}", "fixable")
