"""Folders of images: listed once, looked up by key, opened in RGB or refused."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from mcit.data.files import Stamp, list_folder, open_regular, stamp_files
from mcit.data.problems import BadRecord
from mcit.errors import DataError

# what the data sets come in, under whatever suffix; Pillow knows more, and some of it runs programs
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
# of a picture; more would fill the memory of every worker
MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 89_478_485
# One side over the other. A picture is scaled by its shorter side: a file of 300 bytes that holds
# 1 x 60,000 pixels would take gigabytes once it is 256 pixels wide.
MOST_RATIO = 200
# bytes of a decoded image that is kept in memory: 64 x 64 pixels
MOST_KEPT = 3 * 64 * 64
# reasons of bad records
MISSING = "image missing"
UNREADABLE = "image unreadable"
TOO_LARGE = "image too large"
TOO_LONG = "image too long"
NO_RANGE = "image with an unknown range of values"
_NUMBERS = {"I": "signed or 32-bit numbers", "F": "floating-point numbers"}
# Pillow reports a damaged file by any of these, depending on the format and the damage
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
    RuntimeError,
    SystemError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d+_)?(\d+)\.(?:jpg|jpeg|png)", re.IGNORECASE)
# sub-folders that are listed below each other
_DEPTH = 3


@dataclass(frozen=True)
class Picture:
    """An image of an example, not decoded yet."""

    path: Path
    # below the data root, with whatever is drawn on it: different pictures have different names
    name: str

    @property
    def sources(self) -> tuple[Path, ...]:
        """Return the files that it is made of."""
        return (self.path,)

    def open(self) -> Image.Image:
        """Return the picture at its own size, or raise a DataError."""
        return open_image(self.path)

    def verify(self) -> None:
        """Raise a DataError if `open` would; quicker than that where the format allows."""
        verify_image(self.path)

    def stamp(self) -> bytes:
        """Return eight bytes that change when a file that it is made of is written again."""
        states = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, self.sources)]
        return hashlib.blake2b(repr(states).encode(), digest_size=8).digest()


class KeptImages:
    """Small images that are decoded once: opening their files takes longer than what they hold."""

    def __init__(self, room: int = 128 * 2**20):
        # bytes that are left
        self.room = room
        self.images: dict[str, Image.Image] = {}

    def open(self, picture: Picture) -> Image.Image:
        """Return the picture, decoded now or before, or raise a DataError."""
        image = self.images.get(picture.name)
        if image is not None:
            return image
        image = picture.open()
        size = 3 * image.width * image.height
        if size <= min(MOST_KEPT, self.room):
            self.images[picture.name] = image
            self.room -= size
        return image


@dataclass(frozen=True)
class ImageFolder:
    """A folder and its files by key; only what is listed can be opened, so no name leads out."""

    path: Path
    # key -> path relative to the folder
    index: Mapping[Any, str]
    # the folder's own path below the data root
    prefix: str = ""

    @classmethod
    def listed(
        cls, path: Path, key: Callable[[str], Any], remedy: str, prefix: str = ""
    ) -> ImageFolder:
        """Return the folder, listed. `key` of a relative path is None to leave it out."""
        if not path.is_dir():
            raise DataError(f"no image folder {path}; {remedy}")
        index: dict[Any, str] = {}
        for name in _list_files(path):
            found = key(name)
            if found is not None:
                index.setdefault(found, name)
        return cls(path, index, prefix)

    def find(self, key: Any) -> Path:
        """Return the file of that key, or raise a DataError."""
        return self.path / self._look_up(key)

    def picture(self, key: Any) -> Picture:
        """Return the picture of that key, or raise a DataError."""
        name = self._look_up(key)
        return Picture(self.path / name, f"{self.prefix}/{name}")

    def stamp(self, keys: Iterable[Any]) -> Stamp:
        """Return the stamp of the files with these keys, in a fixed order."""
        names = sorted({self.index[key] for key in keys if key in self.index})
        folder = os.fspath(self.path)
        return stamp_files([(name, f"{folder}/{name}") for name in names])

    def _look_up(self, key: Any) -> str:
        name = self.index.get(key)
        if name is None:
            raise BadRecord(f"{key!r} is not in {self.path}", MISSING)
        return name


def file_name(name: str) -> str:
    """Return the key of a path that is looked up by its name, whichever sub-folder it is in."""
    return name.rpartition("/")[2]


def stem(name: str) -> str:
    """Return the key of a path that is looked up by its name without the suffix."""
    return file_name(name).rpartition(".")[0]


def coco_id(name: str) -> int | None:
    """Return the number in `COCO_train2014_000000000009.jpg` or `000000000009.jpg`, or None."""
    match = _COCO_NAME.fullmatch(file_name(name))
    if match is None:
        return None
    return int(match[1])


def whole_name(name: str) -> str:
    """Return the key of a path that is looked up as it is, below its folder."""
    return name


def stays_inside(name: str) -> bool:
    """Whether a name can only mean something below the folder that it is looked up in."""
    path = PurePosixPath(name)
    is_plain = bool(name) and "\\" not in name and "\0" not in name
    return is_plain and not path.is_absolute() and ".." not in path.parts


def open_image(path: Path) -> Image.Image:
    """Return the image, decoded and in RGB; raise a DataError that names the file otherwise."""
    return _convert(path, str(path))


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return the image in these bytes, decoded and in RGB, or raise a DataError with its name."""
    return _convert(io.BytesIO(data), name)


@functools.lru_cache(maxsize=1024)
def verify_image(path: Path) -> None:
    """Raise a DataError if the file is not a whole image; a JPEG is read at an eighth."""
    with _opened(path, str(path)) as image:
        image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()


def _convert(source: Path | BinaryIO, name: str) -> Image.Image:
    with _opened(source, name) as image:
        if image.mode == "P" and "transparency" in image.info:
            return image.convert("RGBA").convert("RGB")
        if _is_deep_gray(image):
            # the upper 8 of 16 bits, as Pillow reads 16-bit colors; it would make 255 of all above
            upper = (np.asarray(image) >> 8).astype(np.uint8)
            return Image.fromarray(upper).convert("RGB")
        return image.convert("RGB")


def _is_deep_gray(image: Image.Image) -> bool:
    """Whether it is of 16-bit grays; PNG files of them had mode I in earlier versions of Pillow."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[Image.Image]:
    try:
        file = open_regular(source) if isinstance(source, Path) else source
        with file, Image.open(file, formats=FORMATS) as image:
            _check_kind(image, name)
            yield image
    except FileNotFoundError:
        raise BadRecord(f"no image {name}", MISSING) from None
    except BadRecord:
        raise
    except _DAMAGE as error:
        is_bomb = isinstance(error, Image.DecompressionBombError)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadRecord(
            f"{name} is not a readable image ({lines[0][:200]}); fetch it again",
            TOO_LARGE if is_bomb else UNREADABLE,
        ) from error


def _check_kind(image: Image.Image, name: str) -> None:
    """Raise a BadRecord if the image would fill the memory, or does not say what is white."""
    short = min(image.size)
    found = f"{name} has {image.width}x{image.height} pixels"
    alien = "and cannot be of these data; fetch it again"
    if short < 1:
        raise BadRecord(f"{found}; fetch it again", UNREADABLE)
    if image.width * image.height > MOST_PIXELS:
        raise BadRecord(f"{found}, more than {MOST_PIXELS:,}, {alien}", TOO_LARGE)
    if max(image.size) > MOST_RATIO * short:
        raise BadRecord(
            f"{found}, one side more than {MOST_RATIO} times the other, {alien}", TOO_LONG
        )
    if image.mode in _NUMBERS and not _is_deep_gray(image):
        raise BadRecord(
            f"{name} is an image of {_NUMBERS[image.mode]}, and nothing says which of them is "
            "white; save it with 8 or 16 bits a channel",
            NO_RANGE,
        )


def _list_files(folder: Path, depth: int = _DEPTH, prefix: str = "") -> Iterator[str]:
    """Yield relative paths of files in a fixed order, a folder's own before its sub-folders'."""
    entries = list_folder(folder)
    for entry in entries:
        if entry.is_file:
            yield prefix + entry.name
    for entry in entries:
        if entry.is_folder and depth:
            yield from _list_files(folder / entry.name, depth - 1, f"{prefix}{entry.name}/")
