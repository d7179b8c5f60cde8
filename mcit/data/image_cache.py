"""Pictures resized once and kept under the data root, with the pixels of the source.

An entry stands for the very files it was made of (their size and modification time) and for one way
of resizing. One that does not fit, or that is damaged, is never used: the picture is read from its
source, and that is said on stderr.
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

from mcit.data.images import Picture
from mcit.data.resizing import Resizing
from mcit.data.shards import ENTRY, SUFFIX, DamagedShard, hash_name, read_pixels, read_table
from mcit.errors import DataError
from mcit.files import cache_folder
from mcit.printable import printable

# report the 1st, 10th, 100th, ... picture so that a broken cache does not flood the terminal
_REPORTED = {1, 10, 100, 1_000, 10_000, 100_000}


class ShardIndex:
    """The pictures of one size: all entries, ordered by name, and the shards they are in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.paths: list[Path] = []
        # path -> what is wrong with it
        self.damaged: dict[Path, str] = {}
        tables = [np.empty(0, ENTRY)]
        shards = [np.empty(0, int)]
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                table = read_table(path)
            except DamagedShard as error:
                self.damaged[path] = str(error)
                continue
            tables.append(table)
            shards.append(np.full(len(table), len(self.paths)))
            self.paths.append(path)
        # arrays, not dictionaries: loader workers share their memory with the process that started
        # them
        entries = np.concatenate(tables)
        order = np.argsort(entries["name"], kind="stable")
        self.entries = entries[order]
        self.shards = np.concatenate(shards)[order]
        self.names = np.ascontiguousarray(self.entries["name"])

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str) -> int | None:
        """Return the place of a picture's entry, or None."""
        wanted = np.uint64(hash_name(name))
        place = int(np.searchsorted(self.names, wanted))
        if place == len(self.names) or self.names[place] != wanted:
            return None
        return place

    def find_fresh(self, picture: Picture) -> int | None:
        """Return the place of a picture's entry, or None if its files have changed since."""
        place = self.find(picture.name)
        if place is None or not self.is_fresh(place, picture):
            return None
        return place

    def is_fresh(self, place: int, picture: Picture) -> bool:
        """Whether the files a picture is made of are those that its entry was made of."""
        try:
            return self.entries[place]["stamp"].tobytes() == picture.stamp()
        except OSError:
            return False

    def path_of(self, place: int) -> Path:
        """Return the shard of an entry."""
        return self.paths[self.shards[place]]

    def read(self, place: int) -> np.ndarray:
        """Return the pixels of an entry, [height, width, 3], or raise a DamagedShard."""
        return read_pixels(self.path_of(place), self.entries[place])

    def describe_damage(self) -> str:
        """Return `2 damaged files of DIR (a.shard is too short)`."""
        path, reason = next(iter(self.damaged.items()))
        files = "file" if len(self.damaged) == 1 else "files"
        return f"{len(self.damaged)} damaged {files} of {self.folder} ({path.name} {reason})"


class ImageCache:
    """The indexes under one folder, by the name of the resizing they are for."""

    def __init__(self, folder: Path, indexes: dict[str, ShardIndex]):
        self.folder = folder
        self.indexes = indexes
        self.complaints: Counter[str] = Counter()

    @classmethod
    def find(cls, root: Path) -> ImageCache | None:
        """Return the cache of a data root, or None if it has none."""
        for folder in cache_places(root):
            if not folder.is_dir():
                continue
            names = sorted(path.name for path in folder.iterdir() if path.is_dir())
            indexes = {name: load_index(folder / name) for name in names}
            if any(len(index) or index.damaged for index in indexes.values()):
                return cls(folder, indexes)
        return None

    def read(self, picture: Picture, resizing: Resizing) -> np.ndarray | None:
        """Return the picture resized, [height, width, 3]; None if its entry cannot be used."""
        index = self.indexes.get(resizing.name)
        if index is None:
            return None
        place = index.find(picture.name)
        if place is None:
            if index.damaged:
                details = f", maybe because of {index.describe_damage()}"
                self._complain(picture, "is not found", details)
            return None
        if not index.is_fresh(place, picture):
            self._complain(picture, "has changed since `mcit prepare`")
            return None
        try:
            return index.read(place)
        except DamagedShard as error:
            details = f" in {index.folder} ({error})"
            self._complain(picture, "is damaged", details, "mcit prepare --verify")
            return None

    def verify(self, pictures: Sequence[Picture]) -> None:
        """Raise a DataError if the sources give other pixels now, as with another Pillow."""
        for name, index in self.indexes.items():
            resizing = Resizing.from_name(name)
            if resizing is None:
                continue
            for picture in pictures:
                place = index.find_fresh(picture)
                if place is None:
                    continue
                try:
                    pixels = index.read(place)
                except DamagedShard:
                    # it will be read from its source
                    continue
                if not np.array_equal(pixels, resizing.read(picture.open())):
                    raise DataError(
                        f"{index.folder} holds pixels of {picture.name} that differ from those "
                        f"its source gives now; another version of Pillow or of mcit made it: "
                        f"remove that folder, and `mcit prepare` makes it again"
                    )

    def describe(self, resizing: Resizing | None) -> str:
        """Return a line that says whether pictures of this size come from here."""
        index = None if resizing is None else self.indexes.get(resizing.name)
        if index is None or not (len(index) or index.damaged):
            wanted = "does not resize" if resizing is None else f"needs {resizing.name}"
            return (
                f"the image cache in {self.folder} is not used: it holds "
                f"{', '.join(self.indexes)}, and the model {wanted}"
            )
        if not len(index):
            damage = index.describe_damage()
            return (
                f"no image comes from the cache: it has {damage}; `mcit prepare` makes them again"
            )
        text = f"images come resized from {index.folder} ({len(index):,} held)"
        if index.damaged:
            text += f"; next to these it has {index.describe_damage()}"
        return text

    def _complain(
        self, picture: Picture, what: str, details: str = "", remedy: str = "mcit prepare"
    ) -> None:
        """Say on stderr that a picture is read from its source, and how often that was so."""
        self.complaints[what] += 1
        count = self.complaints[what]
        if count in _REPORTED:
            text = (
                f"mcit: image cache: {picture.name} {what}{details}; it is read from its source "
                f"({count} so far here); `{remedy}` fixes it"
            )
            print(printable(text), file=sys.stderr, flush=True)


@dataclass(frozen=True)
class PreparedPicture:
    """A picture that may be in the cache; only the processor knows the size that it wants."""

    picture: Picture
    cache: ImageCache
    # the record that shows it
    where: str = ""

    def open(self) -> Image.Image:
        """Return the picture at its own size, from its source."""
        try:
            return self.picture.open()
        except DataError as error:
            raise DataError(f"{self.where}: {error}" if self.where else str(error)) from None

    def read(self, resizing: Resizing) -> np.ndarray:
        """Return the picture resized, [height, width, 3], from the cache or from its source."""
        pixels = self.cache.read(self.picture, resizing)
        if pixels is None:
            return resizing.read(self.open())
        return pixels


def cache_places(root: Path) -> tuple[Path, Path]:
    """Return where the cache of a data root may be: in it, or in mcit's own cache."""
    whole = root.resolve()
    name = str(whole).encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(name, digest_size=6).hexdigest()
    return root / ".mcit" / "images", cache_folder() / "images" / f"{whole.name}-{digest}"


def choose_place(root: Path) -> Path:
    """Return where a cache is to be written."""
    inside, elsewhere = cache_places(root)
    if inside.is_dir():
        is_usable = os.access(inside, os.W_OK)
    else:
        is_usable = os.access(root, os.W_OK) and not elsewhere.is_dir()
    return inside if is_usable else elsewhere


def load_index(folder: Path) -> ShardIndex:
    """Return the index of a folder; its shards are read once as long as they stay the same."""
    states = []
    for path in folder.glob(f"*{SUFFIX}"):
        status = path.lstat()
        states.append((path.name, status.st_size, status.st_mtime_ns))
    return _load_index(str(folder), tuple(sorted(states)))


@functools.lru_cache(maxsize=8)
def _load_index(folder: str, shards: Sequence[tuple[str, int, int]]) -> ShardIndex:
    return ShardIndex(Path(folder))
