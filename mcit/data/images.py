"""Folders of images: listed once, looked up by key, opened in RGB."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from mcit.task import DataError


@dataclass(frozen=True)
class ImageFolder:
    """A folder and the files in it by key. What is not listed cannot be opened, so no name leads out of it."""

    path: Path
    index: Mapping[Any, str]  # key -> path relative to the folder

    @classmethod
    def listed(cls, path: Path, key: Callable[[str], Any], remedy: str) -> ImageFolder:
        """List the folder once. `key` gives a relative path's key, None for a file that does not matter."""
        if not path.is_dir():
            raise DataError(f"no image folder {path}; {remedy}")
        index: dict[Any, str] = {}
        for name in _list_files(path):
            found = key(name)
            if found is not None:
                index.setdefault(found, name)
        return cls(path, index)

    def find(self, key: Any) -> Path:
        """The file of that key, or a DataError."""
        name = self.index.get(key)
        if name is None:
            raise DataError(f"{key!r} is not in {self.path}")
        return self.path / name


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
    try:
        with Image.open(path) as image:
            if image.mode == "P" and "transparency" in image.info:
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"no image {path}") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # Pillow reports a damaged file by any of these, depending on the format and the damage.
        raise DataError(f"{path} is no readable image ({error}); fetch it again") from error


def _list_files(folder: Path, depth: int = 2, prefix: str = "") -> Iterator[str]:
    """Relative paths of the files down to `depth` sub-folders, shallow ones first, in a fixed order."""
    with os.scandir(folder) as listing:
        # the listing itself knows files from folders; nothing is asked file by file
        entries = sorted((entry.name, entry.is_dir()) for entry in listing)
    yield from (prefix + name for name, is_folder in entries if not is_folder)
    if depth:
        for name, is_folder in entries:
            if is_folder:
                yield from _list_files(folder / name, depth - 1, f"{prefix}{name}/")
