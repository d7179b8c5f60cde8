"""Pictures resized once and kept under the data root; what is read from there is what the source would give.

An entry stands for the very files it was made of (their size and time of change) and for one way of resizing. One that
does not fit, or that is damaged, is never used: the picture is read from its source, and that is said on stderr.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mcit.data.arrow import cache_folder
from mcit.data.images import Picture
from mcit.data.resizing import Resizing
from mcit.data.shards import ENTRY, SUFFIX, DamagedShard, hash_name, read_pixels, read_table
from mcit.printable import printable
from mcit.task import DataError


class Shelf:
    """The pictures of one size: a table of all entries, ordered by name, and the shards they are in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.paths: list[Path] = []
        self.damaged: dict[Path, str] = {}
        tables, shards = [np.empty(0, ENTRY)], []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                tables.append(read_table(path))
            except DamagedShard as error:
                self.damaged[path] = str(error)
            else:
                shards.append(np.full(len(tables[-1]), len(self.paths)))
                self.paths.append(path)
        # arrays, not dictionaries: loader workers share their memory with the process that started them
        entries = np.concatenate(tables)
        order = np.argsort(entries["name"], kind="stable")
        self.entries = entries[order]
        self.shards = np.concatenate(shards)[order] if shards else np.empty(0, int)
        self.names = np.ascontiguousarray(self.entries["name"])

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bytes(self) -> int:
        """How much is packed in it."""
        return int(self.entries["length"].sum())

    def find(self, name: str) -> int | None:
        """The place of a picture's entry."""
        wanted, rest = hash_name(name)
        place = int(np.searchsorted(self.names, np.uint64(wanted)))
        while place < len(self.names) and self.names[place] == wanted:
            if self.entries[place]["rest"] == rest:
                return place
            place += 1
        return None

    def describe_damage(self) -> str:
        """How many shards cannot be used, and why the first: `2 damaged files of DIR (a.shard is too short)`."""
        path, reason = next(iter(self.damaged.items()))
        files = "file" if len(self.damaged) == 1 else "files"
        return f"{len(self.damaged)} damaged {files} of {self.folder} ({path.name} {reason})"

    def is_fresh(self, place: int, picture: Picture) -> bool:
        """Whether the files a picture is made of are those its entry was made of."""
        try:
            return self.entries[place]["stamp"].tobytes() == picture.stamp()
        except OSError:
            return False

    def read(self, place: int) -> np.ndarray:
        """The pixels of an entry, [height, width, 3], or a DamagedShard."""
        return read_pixels(self.paths[self.shards[place]], self.entries[place])


class ImageCache:
    """The shelves under one folder, by the name of the resizing they are for."""

    def __init__(self, folder: Path, shelves: dict[str, Shelf]):
        self.folder, self.shelves = folder, shelves
        self.complaints: Counter[str] = Counter()

    @classmethod
    def find(cls, root: Path) -> ImageCache | None:
        """The cache of a data root, if it has any."""
        for folder in cache_places(root):
            shelves = {path.name: load_shelf(path) for path in _subfolders(folder)}
            if any(len(shelf) or shelf.damaged for shelf in shelves.values()):
                return cls(folder, shelves)
        return None

    def read(self, picture: Picture, resizing: Resizing) -> np.ndarray | None:
        """The picture resized, uint8 [height, width, 3]; None where its entry is missing, stale or damaged."""
        shelf = self.shelves.get(resizing.name)
        place = None if shelf is None else shelf.find(picture.name)
        if place is None:
            if shelf is not None and shelf.damaged:
                self._complain(
                    f"is not found, maybe because of {shelf.describe_damage()}", picture, ""
                )
            return None
        if not shelf.is_fresh(place, picture):
            self._complain("has changed since `mcit prepare`", picture, "")
            return None
        try:
            return shelf.read(place)
        except DamagedShard as error:
            self._complain(f"is damaged in {shelf.folder} ({error})", picture, " --verify")
            return None

    def describe(self, resizing: Resizing | None) -> str:
        """Whether pictures of this size come from here, in a line."""
        shelf = None if resizing is None else self.shelves.get(resizing.name)
        if shelf is not None and shelf.damaged and not len(shelf):
            return f"no image comes from the cache: it has {shelf.describe_damage()}; `mcit prepare` makes them anew"
        if shelf is None or not len(shelf):
            held = ", ".join(self.shelves)
            wanted = "does not resize" if resizing is None else f"needs {resizing.name}"
            return f"the image cache in {self.folder} is not used: it holds {held}, and the model {wanted}"
        damage = f"; beside these it has {shelf.describe_damage()}" if shelf.damaged else ""
        return f"images come resized from {shelf.folder} ({len(shelf):,} held){damage}"

    def _complain(self, what: str, picture: Picture, option: str) -> None:
        """On stderr: the first, the tenth, the hundredth... in this process."""
        kind = what.split(" (")[0]
        self.complaints[kind] += 1
        count = self.complaints[kind]
        if count in {1, 10, 100, 1_000, 10_000, 100_000}:
            remedy = f"`mcit prepare{option}` mends it"
            text = f"image cache: {picture.name} {what}; it is read from its source ({count} so far here); {remedy}"
            print(printable(f"mcit: {text}"), file=sys.stderr, flush=True)


@dataclass(frozen=True)
class PreparedPicture:
    """A picture that may be in the cache; which size is asked for, only the processor knows."""

    picture: Picture
    cache: ImageCache
    where: str = ""  # the record that shows it

    def open(self) -> Image.Image:
        """The picture at its own size, from its source."""
        try:
            return self.picture.open()
        except DataError as error:
            raise DataError(f"{self.where}: {error}" if self.where else str(error)) from None

    def read(self, resizing: Resizing) -> np.ndarray:
        """The picture resized, uint8 [height, width, 3]: from the cache, or else from its source."""
        pixels = self.cache.read(self.picture, resizing)
        return resizing.read(self.open()) if pixels is None else pixels


def cache_places(root: Path) -> tuple[Path, Path]:
    """Where the cache of a data root is looked for: in it, or beside parsed data where it cannot be written."""
    digest = hashlib.blake2b(
        str(root.resolve()).encode("utf-8", "surrogateescape"), digest_size=6
    ).hexdigest()
    return root / ".mcit" / "images", cache_folder() / "images" / f"{root.resolve().name}-{digest}"


def choose_place(root: Path) -> Path:
    """Where a cache is to be written."""
    inside, beside = cache_places(root)
    if inside.is_dir() or not beside.is_dir():
        return inside if os.access(inside if inside.is_dir() else root, os.W_OK) else beside
    return beside


def load_shelf(folder: Path) -> Shelf:
    """The shelf in a folder; read once as long as its shards stay the same."""
    states = {path.name: path.lstat() for path in folder.glob(f"*{SUFFIX}")}
    found = sorted((name, state.st_size, state.st_mtime_ns) for name, state in states.items())
    return _load_shelf(str(folder), tuple(found))


@functools.lru_cache(maxsize=8)
def _load_shelf(folder: str, shards: Sequence[tuple[str, int, int]]) -> Shelf:
    return Shelf(Path(folder))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
