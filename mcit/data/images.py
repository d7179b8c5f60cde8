"""Folders of images: listed once, looked up by key, opened in RGB; nothing hostile gets further than a DataError."""

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
from mcit.data.records import BadRecord
from mcit.task import DataError

# What the data sets come in, under whatever suffix. Pillow knows more, and some of it runs other programs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
MOST_PIXELS = (
    Image.MAX_IMAGE_PIXELS or 89_478_485
)  # of a picture; more would fill the memory of every worker
# One side over the other. A picture is scaled by its shorter side: a file of 300 bytes that holds 1 x 60,000 pixels
# would take gigabytes once it is 256 pixels wide.
MOST_RATIO = 200
MISSING, UNREADABLE, TOO_LARGE = "image missing", "image unreadable", "image too large"
TOO_LONG, NO_RANGE = "image too long", "image of an unknown range"
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
    RuntimeError,
    SystemError,
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
    def listed(
        cls, path: Path, key: Callable[[str], Any], remedy: str, prefix: str = ""
    ) -> ImageFolder:
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

    def stamp(self, keys: Iterable[Any]) -> Stamp:
        """Names, sizes and times of change of the files with these keys, in a fixed order."""
        names = sorted({self.index[key] for key in keys if key in self.index})
        folder = os.fspath(self.path)
        return stamp_files([(name, f"{folder}/{name}") for name in names])

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
    match = re.fullmatch(
        r"(?:COCO_[a-z]+\d+_)?(\d+)\.(?:jpg|jpeg|png)", file_name(name), re.IGNORECASE
    )
    return int(match[1]) if match else None


def whole_name(name: str) -> str:
    """Key: the path below the folder."""
    return name


def stays_inside(name: str) -> bool:
    """Whether a name out of an annotation can only mean something below the folder it is looked up in."""
    path = PurePosixPath(name)
    return (
        bool(name)
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in name
        and "\0" not in name
    )


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
        if _is_deep_gray(image):
            return _shrink_gray(image).convert("RGB")
        return image.convert("RGB")


def _is_deep_gray(image: Image.Image) -> bool:
    """Whether it is of 16-bit grays; PNG files of them had mode I in earlier versions of Pillow."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _shrink_gray(image: Image.Image) -> Image.Image:
    """The upper 8 of 16 bits, as Pillow reads 16-bit colors; its own conversion would make 255 of all above."""
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[Image.Image]:
    try:
        with _opened_file(source) as file, Image.open(file, formats=FORMATS) as image:
            _check_kind(image, name)
            yield image
    except FileNotFoundError:
        raise BadRecord(f"no image {name}", MISSING) from None
    except BadRecord:
        raise
    except _DAMAGE as error:
        reason = TOO_LARGE if isinstance(error, Image.DecompressionBombError) else UNREADABLE
        raise BadRecord(
            f"{name} is no readable image ({_first_line(error)}); fetch it again", reason
        ) from error


def _opened_file(source: Path | BinaryIO) -> BinaryIO:
    return open_regular(source) if isinstance(source, Path) else source


def _check_kind(image: Image.Image, name: str) -> None:
    """Raise a BadRecord for an image that would fill the memory, or whose numbers do not say which is white."""
    size = f"{image.width}x{image.height} pixels"
    if min(image.size) < 1:
        raise BadRecord(f"{name} has {size}; fetch it again", UNREADABLE)
    if image.width * image.height > MOST_PIXELS:
        text = f"{name} has {size}, more than {MOST_PIXELS:,}, and is no image of these data; fetch it again"
        raise BadRecord(text, TOO_LARGE)
    if max(image.size) > MOST_RATIO * min(image.size):
        text = f"{name} has {size}, one side more than {MOST_RATIO} times the other, and is no image of these data"
        raise BadRecord(f"{text}; fetch it again", TOO_LONG)
    if image.mode in ("I", "F") and not _is_deep_gray(image):
        kind = {"I": "signed or 32-bit numbers", "F": "floating-point numbers"}[image.mode]
        text = f"{name} is an image of {kind}, and nothing says which of them is white"
        raise BadRecord(f"{text}; save it with 8 or 16 bits a channel", NO_RANGE)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _list_files(folder: Path, depth: int = 3, prefix: str = "") -> Iterator[str]:
    """Relative paths of the files down to `depth` sub-folders, shallow ones first, in a fixed order."""
    entries = list_folder(folder)
    yield from (prefix + entry.name for entry in entries if entry.is_file)
    if depth:
        for entry in entries:
            if entry.is_folder:
                yield from _list_files(folder / entry.name, depth - 1, f"{prefix}{entry.name}/")
