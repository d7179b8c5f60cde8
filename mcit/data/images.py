"""Folders of images: listed once, looked up by key, opened in RGB; nothing hostile gets further than a DataError."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from PIL import Image

from mcit.data.records import BadRecord
from mcit.task import DataError

# What the data sets come in, under whatever suffix. Pillow knows more, and some of it runs other programs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 89_478_485  # of a picture; more would fill the memory of every worker
MISSING, UNREADABLE, TOO_LARGE = "image missing", "image unreadable", "image too large"
# Pillow reports a damaged file by any of these, depending on the format and the damage.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class Picture:
    """What an example shows, not decoded yet."""

    path: Path
    name: str  # below the data root, with whatever is drawn on it: different pictures have different names

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that it is made of."""
        return (self.path,)

    def open(self) -> Image.Image:
        """The picture at its own size, or a DataError."""
        return open_image(self.path)

    def verify(self) -> None:
        """A DataError if `open` would end in one; quicker where the format allows."""
        verify_image(self.path)

    def stamp(self) -> bytes:
        """Eight bytes that change when a file that it is made of is written anew."""
        state = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, self.sources)]
        return hashlib.blake2b(repr(state).encode(), digest_size=8).digest()


@dataclass(frozen=True)
class ImageFolder:
    """A folder and the files in it by key. What is not listed cannot be opened, so no name leads out of it."""

    path: Path
    index: Mapping[Any, str]  # key -> path relative to the folder
    prefix: str = ""  # the folder's own path below the data root

    @classmethod
    def listed(cls, path: Path, key: Callable[[str], Any], remedy: str, prefix: str = "") -> ImageFolder:
        """List the folder once. `key` gives a relative path's key, None for a file that does not matter."""
        if not path.is_dir():
            raise DataError(f"no image folder {path}; {remedy}")
        index: dict[Any, str] = {}
        for name in _list_files(path):
            found = key(name)
            if found is not None:
                index.setdefault(found, name)
        return cls(path, index, prefix)

    def find(self, key: Any) -> Path:
        """The file of that key, or a DataError."""
        return self.path / self._look_up(key)

    def picture(self, key: Any) -> Picture:
        """The picture of that key, or a DataError."""
        name = self._look_up(key)
        return Picture(self.path / name, f"{self.prefix}/{name}")

    def _look_up(self, key: Any) -> str:
        name = self.index.get(key)
        if name is None:
            raise BadRecord(f"{key!r} is not in {self.path}", MISSING)
        return name


def file_name(name: str) -> str:
    """Key: the file's name, whichever sub-folder it is in."""
    return name.rpartition("/")[2]


def stem(name: str) -> str:
    """Key: the file's name without its suffix."""
    return file_name(name).rpartition(".")[0]


def coco_id(name: str) -> int | None:
    """Key: the number in `COCO_train2014_000000000009.jpg` or `000000000009.jpg`."""
    match = re.fullmatch(r"(?:COCO_[a-z]+\d+_)?(\d+)\.(?:jpg|jpeg|png)", file_name(name), re.IGNORECASE)
    return int(match[1]) if match else None


def whole_name(name: str) -> str:
    """Key: the path below the folder."""
    return name


def stays_inside(name: str) -> bool:
    """Whether a name out of an annotation can only mean something below the folder it is looked up in."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def open_image(path: Path) -> Image.Image:
    """The image, decoded and in RGB, or a DataError that names the file."""
    return _convert(path, str(path))


def decode_image(data: bytes, name: str) -> Image.Image:
    """The image in these bytes, decoded and in RGB, or a DataError with the name it goes by."""
    return _convert(io.BytesIO(data), name)


@functools.lru_cache(maxsize=1024)
def verify_image(path: Path) -> None:
    """A DataError if the file is no whole image. A JPEG is read to its end at an eighth of its size."""
    with _opened(path, str(path)) as image:
        image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()


def _convert(source: Path | BinaryIO, name: str) -> Image.Image:
    with _opened(source, name) as image:
        if image.mode == "P" and "transparency" in image.info:
            return image.convert("RGBA").convert("RGB")
        return image.convert("RGB")


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[Image.Image]:
    try:
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width}x{image.height} pixels, more than {MOST_PIXELS:,}"
                raise BadRecord(f"{name} has {size}, and is no image of these data; fetch it again", TOO_LARGE)
            yield image
    except FileNotFoundError:
        raise BadRecord(f"no image {name}", MISSING) from None
    except BadRecord:
        raise
    except _DAMAGE as error:
        reason = TOO_LARGE if isinstance(error, Image.DecompressionBombError) else UNREADABLE
        raise BadRecord(f"{name} is no readable image ({_first_line(error)}); fetch it again", reason) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _list_files(folder: Path, depth: int = 3, prefix: str = "") -> Iterator[str]:
    """Relative paths of the files down to `depth` sub-folders, shallow ones first, in a fixed order."""
    try:
        with os.scandir(folder) as listing:
            # the listing itself knows files from folders; nothing is asked file by file
            entries = sorted((entry.name, entry.is_dir()) for entry in listing)
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be listed: {error.strerror}") from error
    yield from (prefix + name for name, is_folder in entries if not is_folder)
    if depth:
        for name, is_folder in entries:
            if is_folder:
                yield from _list_files(folder / name, depth - 1, f"{prefix}{name}/")
