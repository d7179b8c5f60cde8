"""CIFAR-100 from Parquet files, image folders, or the official archive without unpickling it.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from mcit.data.files import open_regular
from mcit.data.image_folders import (
    StoredImages,
    find_folder,
    list_folders,
    list_images,
    store_images,
)
from mcit.data.images import decode_image, open_image
from mcit.data.pickled_arrays import RefusedPickle, read_pickle
from mcit.data.problems import BadRecord, OnBad, refuse
from mcit.data.records import shorten, shorten_text
from mcit.errors import DataError

_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
# the official order of the fine labels is the alphabet's
CLASS_NAMES = tuple(_NAMES.split())
_SIDE = 32
_ARCHIVE = "cifar-100-python.tar.gz"
_EXTRACTED = "cifar-100-python"
_NEEDED = (
    "CIFAR-100 is one of train*.parquet and test*.parquet (columns img and fine_label), "
    "train/<class>/*.png and test/<class>/*.png, the archive cifar-100-python.tar.gz, or its "
    "folder cifar-100-python"
)
# bytes of a file, and of all that an archive unpacks to; the official one has 186 million
_LARGEST = 1 << 28
# `tarfile` reads headers of headers
_DAMAGE = (
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    ValueError,
    RecursionError,
    MemoryError,
)


@dataclass
class _Listing:
    """The images of a part whose label is right: labels, names, and functions that open them."""

    labels: list[int] = field(default_factory=list)
    images: list[tuple[str, Callable[[], Image.Image]]] = field(default_factory=list)

    def add(self, label: int, name: str, opener: Callable[[], Image.Image]) -> None:
        """Add an image."""
        self.labels.append(label)
        self.images.append((name, opener))


# makes the listing of `train` or `test` in a folder
_List = Callable[[Path, str, OnBad], _Listing]


def read_cifar100(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> StoredImages:
    """Return the images of the labels in `kept`; labels are the official fine labels 0..99."""
    folder, list_part = _find_form(root)
    part = _name_part(split)
    listing = list_part(folder, part, on_bad)
    present = set(listing.labels)
    missing = sorted(set(kept) - present)
    if missing:
        raise DataError(
            f"{folder} holds {len(present)} classes in '{part}' and lacks {len(missing)} that are "
            f"needed, first label {missing[0]} ({CLASS_NAMES[missing[0]]}); set "
            "tasks.cifar100.classes to learn fewer, or fetch the whole"
        )
    wanted = set(kept)
    rows = [row for row, label in enumerate(listing.labels) if label in wanted]
    images = [listing.images[row] for row in rows]
    return store_images(images, [listing.labels[row] for row in rows], _SIDE, on_bad)


def count_cifar100(root: Path | None, split: str) -> Counter[int]:
    """Return how many images each label has, unopened; rows whose label is wrong do not count."""
    folder, list_part = _find_form(root)
    return Counter(list_part(folder, _name_part(split), lambda error: None).labels)


def _name_part(split: str) -> str:
    return "train" if split == "train" else "test"


def _find_form(root: Path | None) -> tuple[Path, _List]:
    """Return the folder of the data, and what lists its images."""
    folder = find_folder(root, ["cifar100", "data", _EXTRACTED], _has_form, _NEEDED)
    list_part = _choose_form(folder)
    if list_part is None:
        raise DataError(f"the files in {folder} were removed while it was read")
    return folder, list_part


def _has_form(folder: Path) -> bool:
    return _choose_form(folder) is not None


def _choose_form(folder: Path) -> _List | None:
    if _find_parquet(folder, "train"):
        return _list_parquet
    if (folder / "train").is_dir():
        return _list_folders
    if (folder / _ARCHIVE).is_file():
        return _list_archive
    if (folder / "train").is_file() or (folder / _EXTRACTED).is_dir():
        return _list_extracted
    return None


def _find_parquet(folder: Path, part: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{part}*.parquet") if path.is_file())


def _list_parquet(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    files = _find_parquet(folder, part)
    if not files:
        raise DataError(f"{folder} has no {part}*.parquet next to its train files")
    listing = _Listing()
    for file in files:
        labels = _read_column(file, "fine_label").to_pylist()
        # read with the first image, and once
        column = functools.cache(partial(_read_column, file, "img", "image"))
        for row in _check_labels(labels, str(file), on_bad):
            name = f"{file}, row {row}"
            listing.add(labels[row], name, partial(_open_cell, column, row, name))
    return listing


def _open_cell(column: Callable[[], pyarrow.ChunkedArray], row: int, name: str) -> Image.Image:
    cell = column()[row].as_py()
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(data, bytes):
        raise BadRecord(f"{name}: its cell holds no image bytes", "no image bytes")
    return decode_image(data, name)


def _read_column(file: Path, *either: str) -> pyarrow.ChunkedArray:
    """Return the first of these columns that a Parquet file has."""
    try:
        names = pyarrow.parquet.read_schema(file).names
        for name in either:
            if name in names:
                return pyarrow.parquet.read_table(file, columns=[name]).column(0)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} is not a readable Parquet file ({error}); fetch it again"
        ) from None
    listed = shorten_text(", ".join(names))
    raise DataError(f"{file} needs the columns img (or image) and fine_label, found {listed}")


def _list_folders(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    labels = {name: _read_label(name, folder / part) for name in list_folders(folder / part)}
    listing = _Listing()
    for name, label in labels.items():
        for path in list_images(folder / part / name):
            listing.add(label, str(path), partial(open_image, path))
    return listing


def _read_label(name: str, folder: Path) -> int:
    """Return the label of a class folder, which is called as the class is or by its number."""
    if name in CLASS_NAMES:
        return CLASS_NAMES.index(name)
    if re.fullmatch(r"[0-9]{1,2}", name):
        return int(name)
    raise DataError(
        f"{folder / name} is not a class of CIFAR-100: use the class names (apple) or the fine "
        "labels (0)"
    )


def _list_archive(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    archive = folder / _ARCHIVE
    try:
        content = _read_member(archive, f"{_EXTRACTED}/{part}")
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"{archive} is not a readable archive ({error}); fetch it again") from None
    return _list_pickled(io.BytesIO(content), f"{archive}:{part}", on_bad)


def _read_member(archive: Path, name: str) -> bytes:
    """Return a member of the archive; no link is followed and no size is believed."""
    with (
        open_regular(archive) as file,
        gzip.GzipFile(fileobj=file) as unpacked,
        # a stream is only read, while the type stub asks for a file to write and seek in
        tarfile.open(  # type: ignore[call-overload]
            fileobj=_LimitedFile(unpacked), mode="r|", bufsize=1 << 20
        ) as members,
    ):
        for member in members:
            if member.size > _LARGEST:
                raise DataError(
                    f"{member.name} in {archive} is larger than any official file; fetch it again"
                )
            if member.name == name:
                if not member.isreg() or member.issparse():
                    raise DataError(f"{name} in {archive} is not a file; fetch it again")
                return members.extractfile(member).read()
    raise DataError(f"{archive} has no member {name}; fetch it again")


class _LimitedFile:
    """A file that ends in an error if it is longer than anything official."""

    def __init__(self, file: gzip.GzipFile):
        self.file = file
        self.left = _LARGEST

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {_LARGEST:,} bytes")
        return content


def _list_extracted(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    if (folder / _EXTRACTED).is_dir():
        folder = folder / _EXTRACTED
    path = folder / part
    if not path.is_file():
        raise DataError(f"{path} is missing")
    try:
        with open_regular(path) as opened:
            if os.fstat(opened.fileno()).st_size > _LARGEST:
                raise DataError(f"{path} is larger than any official file; fetch it again")
            return _list_pickled(opened, str(path), on_bad)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _list_pickled(opened: BinaryIO, name: str, on_bad: OnBad) -> _Listing:
    try:
        content = read_pickle(opened)
    except RefusedPickle as error:
        raise DataError(
            f"{name} is not a file of the official CIFAR-100 archive: {error}"
        ) from None
    if not isinstance(content, dict) or not {b"data", b"fine_labels"} <= content.keys():
        raise DataError(
            f"{name} lacks the entries 'data' and 'fine_labels' of the official archive"
        )
    labels = content[b"fine_labels"]
    rows = _check_labels(labels, name, on_bad)
    pixels = _check_pixels(content[b"data"], len(labels), name)
    listing = _Listing()
    for row in rows:
        listing.add(labels[row], f"{name}, row {row}", partial(Image.fromarray, pixels[row]))
    return listing


def _check_pixels(data: Any, count: int, name: str) -> np.ndarray:
    """Return the pixels as [images, height, width, 3]."""
    shape = (count, 3 * _SIDE * _SIDE)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != shape:
        found = type(data).__name__
        if isinstance(data, np.ndarray):
            found = f"{data.dtype} {data.shape}"
        raise DataError(f"{name}: 'data' must be a uint8 array of shape {shape}, found {found}")
    return data.reshape(count, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


def _check_labels(labels: Any, name: str, on_bad: OnBad) -> list[int]:
    """Return the rows whose label is one of the hundred."""
    if not isinstance(labels, list) or not labels:
        raise DataError(f"{name} holds no fine labels")
    rows = []
    for row, label in enumerate(labels):
        if type(label) is int and 0 <= label < 100:
            rows.append(row)
        else:
            text = f"{name}, row {row}: fine label {shorten(label)} is not one of 0..99"
            on_bad(BadRecord(text, "label out of range"))
    return rows
