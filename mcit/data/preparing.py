"""Fill the cache of resized pictures: in parallel, resumable, nothing half written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from mcit.data.annotated import AnnotatedTask
from mcit.data.image_cache import ShardIndex, choose_place, load_index
from mcit.data.images import Picture
from mcit.data.problems import BadRecord
from mcit.data.resizing import Resizing
from mcit.data.shards import DRAFT, DamagedShard, pack, write_shard
from mcit.data.workers import map_pieces
from mcit.errors import DataError
from mcit.files import LockedError, hold_lock, make_folder
from mcit.task import Split

# pictures of a shard: lost if a worker is killed
_PIECE = 256
# pictures that are packed to guess how much room all will take
_TRIED = 16
# bytes of the disk that are left alone
_SPARE = 1 << 28


@dataclass
class Work:
    """The pictures that are to be resized for one data root."""

    folder: Path
    resizing: Resizing
    pictures: list[Picture]
    # pictures that the cache holds already
    kept: int = 0
    # shards to be removed
    outdated: list[Path] = field(default_factory=list)
    # about as many as the pictures will take
    bytes: int = 0


@dataclass
class Written:
    """The amount that was written, and why pictures could not be resized, by name."""

    pictures: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, other: Written) -> None:
        """Add what another process wrote."""
        self.pictures += other.pictures
        self.bytes += other.bytes
        self.problems.update(other.problems)


def collect_pictures(task: AnnotatedTask, *splits: Split) -> dict[str, Picture]:
    """Return the pictures of splits by name; missing images are the doctor's business."""
    pictures: dict[str, Picture] = {}
    for split in splits:
        for _, shown in task.split(split).iterate_pictures():
            if not isinstance(shown, BadRecord):
                pictures.update((picture.name, picture) for picture in shown)
    return pictures


def plan_work(
    root: Path, pictures: Sequence[Picture], resizing: Resizing, verify: bool = False
) -> Work:
    """Return which pictures are missing from the cache, stale or, with `verify`, damaged in it."""
    folder = choose_place(root) / resizing.name
    index = load_index(folder)
    outdated = set(index.damaged)
    places = [index.find(picture.name) for picture in pictures]
    for place, picture in zip(places, pictures, strict=True):
        if place is not None and not index.is_fresh(place, picture):
            outdated.add(index.path_of(place))
    if verify:
        outdated |= _find_damaged(index, outdated)
    missing = []
    for place, picture in zip(places, pictures, strict=True):
        if place is None or index.path_of(place) in outdated:
            missing.append(picture)
    return Work(
        folder=folder,
        resizing=resizing,
        pictures=missing,
        kept=len(pictures) - len(missing),
        outdated=sorted(outdated),
        bytes=_guess_bytes(missing, resizing),
    )


def do_work(work: Work, jobs: int) -> Written:
    """Resize and write the pictures; what was finished stays, whatever happens to the rest."""
    make_folder(work.folder, "--data-root")
    try:
        with hold_lock(work.folder / ".lock"):
            return _fill(work, jobs)
    except LockedError:
        raise DataError(
            f"another `mcit prepare` is filling {work.folder}; wait until it is done"
        ) from None


def _fill(work: Work, jobs: int) -> Written:
    for path in [*work.outdated, *work.folder.glob(f".*{DRAFT}")]:
        path.unlink(missing_ok=True)
    _check_room(work)
    written = Written()
    resize = partial(_resize_piece, folder=work.folder, resizing=work.resizing)
    with tqdm(desc="resize", total=len(work.pictures), unit=" images", disable=None) as progress:
        for piece, done in map_pieces(resize, _cut(work.pictures), jobs):
            written.add(done)
            progress.update(len(piece))
    return written


def _cut(pictures: Sequence[Picture]) -> list[list[Picture]]:
    """Return the pictures of each shard, never of two data sets, which are prepared apart."""
    sets: dict[str, list[Picture]] = {}
    for picture in pictures:
        sets.setdefault(picture.name.partition("/")[0], []).append(picture)
    pieces = []
    for members in sets.values():
        pieces += [members[start : start + _PIECE] for start in range(0, len(members), _PIECE)]
    return pieces


def _resize_piece(pictures: Sequence[Picture], folder: Path, resizing: Resizing) -> Written:
    problems: dict[str, str] = {}

    def resize() -> Iterator[tuple[str, bytes, np.ndarray]]:
        for picture in pictures:
            try:
                # before it is read: a change in between must not go unseen
                stamp = picture.stamp()
                yield picture.name, stamp, resizing.read(picture.open())
            except (DataError, OSError) as error:
                problems[picture.name] = str(error)

    try:
        count, size = write_shard(folder, resize())
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error.strerror}; what is done so far is kept"
        ) from None
    return Written(count, size, problems)


def _guess_bytes(pictures: Sequence[Picture], resizing: Resizing) -> int:
    """Return about how much room pictures will take, from a few of them."""
    sizes = []
    for picture in pictures[:: max(1, len(pictures) // _TRIED)]:
        try:
            sizes.append(len(pack(resizing.read(picture.open()))))
        except DataError:
            # it is named when its turn comes
            continue
    if not sizes:
        return 0
    return int(np.mean(sizes) * len(pictures))


def _check_room(work: Work) -> None:
    free = shutil.disk_usage(work.folder).free
    if work.pictures and work.bytes + _SPARE > free:
        raise DataError(
            f"{len(work.pictures):,} pictures would take about {work.bytes / 1e9:.1f} GB in "
            f"{work.folder}, where {free / 1e9:.1f} GB are free; make room, or prepare fewer tasks "
            "with --order"
        )


def _find_damaged(index: ShardIndex, known: set[Path]) -> set[Path]:
    damaged: set[Path] = set()
    places = tqdm(
        range(len(index)), "verify the cache", unit=" images", leave=False, disable=None, delay=1
    )
    for place in places:
        path = index.path_of(place)
        if path in known or path in damaged:
            continue
        try:
            index.read(place)
        except DamagedShard:
            damaged.add(path)
    return damaged
