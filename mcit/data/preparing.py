"""Fill the cache of resized pictures: in parallel, from where the last time stopped, nothing half written."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from mcit.data.arrow import make_folder
from mcit.data.image_cache import Shelf, choose_place, load_shelf
from mcit.data.images import Picture
from mcit.data.pool import map_pieces
from mcit.data.records import BadRecord
from mcit.data.resizing import Resizing
from mcit.data.shards import DamagedShard, pack, write_shard
from mcit.data.verification import iterate_pictures
from mcit.task import DataError, Split

_PIECE = 256  # pictures of a shard: what is lost when a worker is killed
_TRIED = 16  # pictures that are packed to guess how much room all will take
_SPARE = 1 << 28  # bytes of the disk that are left alone


@dataclass
class Work:
    """What is to be done for one data root, and why."""

    folder: Path
    resizing: Resizing
    pictures: list[Picture]  # to be resized
    kept: int = 0  # that the cache holds already
    outdated: list[Path] = field(
        default_factory=list
    )  # shards to be removed, and what they hold to be made anew
    bytes: int = 0  # about what the pictures will take


@dataclass
class Done:
    """What was written."""

    pictures: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)  # name -> why it cannot be resized


def collect_pictures(task: Any, split: Split) -> dict[str, Picture]:
    """The pictures that a split of a task shows, each once; rows whose image is missing are the doctor's business."""
    table, images = task.table(split), task.folder(task.splits[split])
    found: dict[str, Picture] = {}
    for _, shown in iterate_pictures(task, table, images):
        if not isinstance(shown, BadRecord):
            found.update((picture.name, picture) for picture in shown)
    return found


def plan_work(
    root: Path, pictures: Sequence[Picture], resizing: Resizing, verify: bool = False
) -> Work:
    """Which pictures are missing from the cache, stale or, with `verify`, damaged in it."""
    folder = choose_place(root) / resizing.name
    shelf = load_shelf(folder) if folder.is_dir() else Shelf(folder)
    outdated = set(shelf.damaged)
    places = [shelf.find(picture.name) for picture in pictures]
    for place, picture in zip(places, pictures, strict=True):
        if place is not None and not shelf.is_fresh(place, picture):
            outdated.add(shelf.paths[shelf.shards[place]])
    if verify:
        outdated |= _find_damaged(shelf, outdated)
    held = [
        place is not None and shelf.paths[shelf.shards[place]] not in outdated for place in places
    ]
    missing = [picture for picture, there in zip(pictures, held, strict=True) if not there]
    return Work(
        folder, resizing, missing, sum(held), sorted(outdated), _guess_bytes(missing, resizing)
    )


def do_work(work: Work, jobs: int) -> Done:
    """Resize and write the pictures; what was finished stays, whatever happens to the rest."""
    done = Done()
    make_folder(work.folder)
    with _alone(work.folder):
        for path in [*work.outdated, *work.folder.glob(".*.draft")]:
            path.unlink(missing_ok=True)
        _check_room(work)
        pieces = _cut(work.pictures)
        with tqdm(total=len(work.pictures), desc="resize", unit=" images", disable=None) as bar:
            for piece, (count, size, problems) in map_pieces(
                partial(_resize_piece, folder=work.folder, resizing=work.resizing), pieces, jobs
            ):
                done.pictures, done.bytes = done.pictures + count, done.bytes + size
                done.problems.update(problems)
                bar.update(len(piece))
    return done


def _cut(pictures: Sequence[Picture]) -> list[list[Picture]]:
    """What goes into a shard each; never images of two data sets, which may be prepared one without the other."""
    folders: dict[str, list[Picture]] = {}
    for picture in pictures:
        folders.setdefault(picture.name.partition("/")[0], []).append(picture)
    return [
        held[start : start + _PIECE]
        for held in folders.values()
        for start in range(0, len(held), _PIECE)
    ]


def _resize_piece(
    pictures: Sequence[Picture], folder: Path, resizing: Resizing
) -> tuple[int, int, dict[str, str]]:
    problems: dict[str, str] = {}

    def resize() -> Iterator[tuple[str, bytes, np.ndarray]]:
        for picture in pictures:
            try:
                stamp = picture.stamp()  # before it is read: a change in between must not go unseen
                yield picture.name, stamp, resizing.read(picture.open())
            except (DataError, OSError) as error:
                problems[picture.name] = str(error)

    try:
        count, size = write_shard(folder, resize())
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error.strerror}; what is done so far is kept"
        ) from None
    return count, size, problems


def _guess_bytes(pictures: Sequence[Picture], resizing: Resizing) -> int:
    """About how much room pictures will take, from a few of them."""
    sizes = []
    for place in (
        np.unique(np.linspace(0, len(pictures) - 1, _TRIED).astype(int)).tolist()
        if pictures
        else ()
    ):
        try:
            sizes.append(len(pack(resizing.read(pictures[place].open()))))
        except DataError:
            continue  # it is named when its turn comes
    return int(np.mean(sizes) * len(pictures)) if sizes else 0


def _check_room(work: Work) -> None:
    free = shutil.disk_usage(work.folder).free
    if work.pictures and work.bytes + _SPARE > free:
        raise DataError(
            f"{len(work.pictures):,} pictures would take about {work.bytes / 1e9:.1f} GB in {work.folder}, where "
            f"{free / 1e9:.1f} GB are free; make room, or prepare fewer tasks with --order"
        )


def _find_damaged(shelf: Shelf, known: set[Path]) -> set[Path]:
    damaged = set()
    for place in tqdm(
        range(len(shelf)), "verify the cache", unit=" images", leave=False, disable=None, delay=1
    ):
        path = shelf.paths[shelf.shards[place]]
        if path not in known and path not in damaged:
            try:
                shelf.read(place)
            except DamagedShard:
                damaged.add(path)
    return damaged


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time fills a folder; a killed one lets go."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another `mcit prepare` is filling {folder}; wait until it is done"
            ) from None
        yield
