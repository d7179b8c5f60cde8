"""The doctor's look at a task that is read from annotation files and image folders."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pyarrow.compute as arrow_compute

from mcit.data.annotated import AnnotatedExamples, AnnotatedSplit, AnnotatedTask
from mcit.data.image_cache import ImageCache
from mcit.data.images import MISSING, ImageFolder
from mcit.data.preparing import collect_pictures
from mcit.data.problems import UnfitSetting, list_problems
from mcit.doctor.findings import SKIP, Finding, Problem, SplitFinding
from mcit.doctor.layout import explain_missing, explain_packed, show
from mcit.errors import DataError
from mcit.task import Split

_SPLITS: tuple[Split, ...] = ("train", "eval")
# rows of a split whose images are opened without --deep
_SAMPLE = 32
# share of images that may be absent before a set counts as incomplete
_FEW = 0.01
# pictures that are compared with the image cache
_COMPARED = 3


def examine_annotated(task: AnnotatedTask, deep: bool) -> Finding:
    """Look at files, records, images (a sample or all of them opened), vocabulary and cache."""
    finding = Finding(task.name, track=task.track, order=task.in_order)
    readable = []
    for name in _SPLITS:
        official = task.splits[name]
        noted = SplitFinding(official, official=task.sizes.get(official))
        finding.splits[name] = noted
        split = _read_records(task, name, finding)
        images = _list_images(task.split(name), finding)
        if split is None:
            continue
        readable.append(split)
        noted.examples = len(split.table)
        named = sum(len(keys) for keys in split.list_keys().values())
        noted.files = named
        if images is None:
            noted.absent = named
            continue
        _count_absent(split, noted, named, finding=finding)
        _open_images(split, deep, finding)
    if len(readable) == 2:
        _compare_splits(readable, finding)
        _add_notes(task, finding)
    if finding.status == "ready":
        _examine_cache(task, finding)
    return finding


def _download(task: AnnotatedTask) -> str:
    return f"download from {task.page}; {task.source}"


def _read_records(task: AnnotatedTask, name: Split, finding: Finding) -> AnnotatedSplit | None:
    """Return the split if its records can be read, without the wrong ones if others are right."""
    split = task.split(name)
    absent = [path for path in split.files if not path.is_file()]
    for path in absent:
        finding.add(explain_missing(task.path(), path, task.archives, _download(task)))
    if absent:
        return None
    lenient = replace(task, on_bad_record="skip").split(name)
    try:
        _ = split.table
        return split
    except DataError as error:
        problems = list_problems(error)
    try:
        _ = lenient.table
    except DataError:
        for problem in problems:
            finding.add(Problem(problem, f"download it again from {task.page}"))
        return None
    described = lenient.skipped_records.describe(lenient.count_records(), verdict="wrong")
    finding.add(Problem(described, SKIP, "fixable"))
    return lenient


def _list_images(split: AnnotatedSplit, finding: Finding) -> ImageFolder | None:
    task = split.task
    try:
        return split.images
    except DataError:
        path = task.path(*task.image_place(split.name))
        finding.add(explain_missing(task.path(), path, task.archives, _download(task)))
        return None


def _count_absent(split: AnnotatedSplit, noted: SplitFinding, named: int, finding: Finding) -> None:
    task = split.task
    absent = {column: keys for column, keys in split.find_absent().items() if keys}
    noted.absent = sum(len(keys) for keys in absent.values())
    if not absent:
        return
    column, keys = next(iter(absent.items()))
    folder = split.images.path
    text = (
        f"{show(task.path(), folder)} lacks {noted.absent:,} of {named:,} files that "
        f"{noted.name} names, the first is {column} {keys[0]!r}"
    )
    packed = explain_packed(task.path(), folder, task.archives, _download(task))
    if packed is not None:
        finding.add(replace(packed, text=f"{text}; {packed.text}"))
    elif noted.absent <= _FEW * named:
        finding.add(Problem(text, f"{SKIP}; or fetch them from {task.page}", "fixable"))
    elif noted.absent == named:
        finding.add(Problem(text + _compare_names(keys[0], split.images), _download(task)))
    else:
        finding.add(Problem(text, _download(task)))


def _compare_names(wanted: Any, images: ImageFolder) -> str:
    """Return what the files there are called, if all are called otherwise."""
    held = list(images.index.values())
    if not held:
        return "; no file there has such a name"
    folder, _, last = str(wanted).rpartition("/")
    if folder and any(name.rpartition("/")[2] == last for name in held):
        return f"; {last} is there, but outside its folder: unpack with folders (no unzip -j)"
    return f"; files there are called {held[0]!r}"


def _open_images(split: AnnotatedSplit, deep: bool, finding: Finding) -> None:
    """Note examples whose images are there and cannot be opened: all, or of a sample."""
    bad = []
    tried = len(split.table)
    if deep:
        for number, error in split.find_bad_rows().items():
            if error.reason != MISSING:
                record = split.table[number]["record"]
                bad.append(f"{split.annotations}, record {record}: {error}")
    else:
        examples = AnnotatedExamples(split, split.table)
        rows = split.sample_rows(split.table, _SAMPLE)
        tried = len(rows)
        for row in rows:
            try:
                examples.open(row)
            except DataError as error:
                bad.append(str(error))
    if bad:
        text = f"{len(bad):,} of {tried:,} examples that were opened have a bad image"
        finding.add(Problem(f"{text}, first {bad[0]}", SKIP, "fixable"))


def _compare_splits(splits: list[AnnotatedSplit], finding: Finding) -> None:
    """Note examples that would be learned and then scored."""
    train, held_out = (split.table for split in splits)
    # numbered, if the file has no ids
    if held_out[0]["id"] == str(held_out[0]["record"]):
        return
    known = train.data.column("id").combine_chunks()
    is_shared = arrow_compute.is_in(held_out.data.column("id"), value_set=known)
    count = arrow_compute.sum(is_shared).as_py()
    if count:
        names = " and ".join(split.name for split in splits)
        remedy = f"download the split's own file from {splits[1].task.page}"
        finding.add(Problem(f"{count:,} examples are in both {names}", remedy))


def _add_notes(task: AnnotatedTask, finding: Finding) -> None:
    try:
        finding.notes += task.doctor_notes()
    except UnfitSetting as error:
        finding.add(Problem(error.problem, error.remedy, "fixable"))
    except DataError as error:
        for problem in list_problems(error):
            finding.add(Problem(problem, f"fix the file, or download it again from {task.page}"))


def _examine_cache(task: AnnotatedTask, finding: Finding) -> None:
    cache = ImageCache.find(task.path())
    if cache is None:
        return
    root = shlex.quote(str(task.path()))
    pictures = list(collect_pictures(task, "train", "eval").values())
    for name, index in cache.indexes.items():
        found = [picture for picture in pictures if index.find(picture.name) is not None]
        stale = sum(index.find_fresh(picture) is None for picture in found)
        note = f"image cache {name}: {len(found):,} of {len(pictures):,} images"
        if index.damaged or stale:
            changed = f"{stale:,} changed since, " if stale else ""
            damaged = f"{len(index.damaged)} damaged files"
            note += f" ({changed}{damaged}): run `mcit prepare --data-root {root}`"
        if found or index.damaged:
            finding.notes.append(note)
        if len(found) == len(pictures) and not stale:
            finding.prepared = True
    try:
        cache.verify(pictures[:_COMPARED])
    except DataError as error:
        finding.add(Problem(str(error), f"rm -r {shlex.quote(str(cache.folder))}", "fixable"))
