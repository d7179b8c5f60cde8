"""Every picture opened once: which rows cannot be used, and whether the cache holds what the sources give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
from tqdm.auto import tqdm

from mcit.data.arrow import cache_folder, read_sealed, write_sealed
from mcit.data.image_cache import ImageCache
from mcit.data.images import ImageFolder, Picture
from mcit.data.pool import count_jobs, map_pieces
from mcit.data.records import BadRecord
from mcit.data.resizing import parse_name
from mcit.data.shards import DamagedShard
from mcit.task import DataError

_PIECE = 64  # pictures that a process takes at a time


def find_bad_rows(task: Any, table: datasets.Dataset, images: ImageFolder) -> dict[int, BadRecord]:
    """The rows of a task's table whose pictures are missing or cannot be opened, and why.

    All are opened, in several processes; what was found is remembered for as long as no image changes.
    """
    pictures, rows_of, bad = {}, {}, {}
    for row, shown in iterate_pictures(task, table, images):
        if isinstance(shown, BadRecord):
            bad[row] = shown
            continue
        for picture in shown:
            pictures[picture.name] = picture
            rows_of.setdefault(picture.name, []).append(row)
    for name, error in _remembered(task.name, list(pictures.values())).items():
        bad.update(dict.fromkeys(rows_of[name], error))
    return dict(sorted(bad.items()))


def iterate_pictures(
    task: Any, table: datasets.Dataset, images: ImageFolder
) -> Iterator[tuple[int, tuple[Picture, ...] | BadRecord]]:
    """Each row's number with the pictures it shows, or with the reason why it shows none."""
    columns = table.select_columns(list(task.picture_columns))
    for start in range(0, len(columns), 1000):
        chunk = columns[start : start + 1000]
        for place, values in enumerate(zip(*chunk.values(), strict=True)):
            try:
                yield start + place, task.pictures(dict(zip(chunk, values, strict=True)), images)
            except BadRecord as error:
                yield start + place, error


def find_bad_pictures(
    pictures: Sequence[Picture], title: str, jobs: int | None = None
) -> dict[str, BadRecord]:
    """Why pictures cannot be opened, by name; every one is read to its end."""
    pieces = [pictures[start : start + _PIECE] for start in range(0, len(pictures), _PIECE)]
    bad: dict[str, BadRecord] = {}
    with tqdm(
        total=len(pictures), desc=title, unit=" images", leave=False, disable=None, delay=1
    ) as bar:
        for piece, found in map_pieces(_verify, pieces, count_jobs(jobs) if len(pieces) > 4 else 1):
            bad.update({name: BadRecord(*error) for name, error in found.items()})
            bar.update(len(piece))
    return bad


def verify_cache(cache: ImageCache, pictures: Sequence[Picture]) -> None:
    """A DataError where the cache holds other pixels than these pictures' sources give now, as another Pillow may."""
    for shelf in cache.shelves.values():
        resizing = parse_name(shelf.folder.name)
        for picture in pictures if resizing is not None else ():
            place = shelf.find(picture.name)
            if place is None or not shelf.is_fresh(place, picture):
                continue  # it will be read from its source
            try:
                same = np.array_equal(shelf.read(place), resizing.read(picture.open()))
            except DamagedShard:
                continue  # and so will this
            if not same:
                raise DataError(
                    f"{shelf.folder} holds other pixels of {picture.name} than its source gives now; it was made by "
                    "another version of Pillow or of mcit: remove that folder; `mcit prepare` then makes it anew"
                )


def _remembered(name: str, pictures: Sequence[Picture]) -> Mapping[str, BadRecord]:
    digest = hashlib.blake2b(digest_size=12)
    for picture in pictures:
        try:
            digest.update(picture.name.encode("utf-8", "surrogatepass") + b"\0" + picture.stamp())
        except OSError as error:
            digest.update(repr(error).encode())
    path = cache_folder() / "verified" / f"{name}-{digest.hexdigest()}.json"
    known = read_sealed(path)
    if known is not None:
        return {key: BadRecord(*error) for key, error in known.items()}
    bad = find_bad_pictures(pictures, f"open all images of {name}")
    write_sealed(path, {key: [str(error), error.reason] for key, error in bad.items()})
    return bad


def _verify(pictures: Sequence[Picture]) -> dict[str, tuple[str, str]]:
    bad = {}
    for picture in pictures:
        try:
            picture.verify()
        except DataError as error:
            bad[picture.name] = str(error), getattr(error, "reason", str(error))
    return bad
