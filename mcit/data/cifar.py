"""CIFAR-100 from Parquet files, from image folders, or from the official Python archive without executing it."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor

from mcit.data.bad_records import OnBad, refuse
from mcit.data.files import open_regular
from mcit.data.image_folders import (
    StoredImages,
    find_folder,
    list_folders,
    list_images,
    store_files,
    store_images,
)
from mcit.data.images import decode_image
from mcit.data.pickled_arrays import RefusedPickle, read_pickle
from mcit.data.records import BadRecord, shorten, shorten_text
from mcit.task import DataError

_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASS_NAMES = tuple(_NAMES.split())  # the official order of the fine labels is the alphabet's

_NEEDED = (
    "CIFAR-100 is one of train*.parquet and test*.parquet (columns img and fine_label), train/<class>/*.png and "
    "test/<class>/*.png, the archive cifar-100-python.tar.gz, or its folder cifar-100-python"
)
_LARGEST = (
    1 << 28
)  # bytes of a file, and of all that an archive unpacks to; the official one has 186 million


@dataclass(frozen=True)
class _Listing:
    """The rows of a part whose label is right, and what opens some of them."""

    labels: Sequence[int]
    load: Callable[[Sequence[int], OnBad], StoredImages]  # of places in `labels`


def read_cifar100(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> StoredImages:
    """The images of the labels in `kept`; labels are the official fine labels 0..99, whichever of them are there."""
    folder, part = find_cifar100(root), _part(split)
    listing = _find_form(folder)(folder, part, on_bad)
    missing = sorted(set(kept) - set(listing.labels))
    if missing:
        raise DataError(
            f"{folder} holds {len(set(listing.labels))} classes in '{part}' and lacks {len(missing)} that are needed, "
            f"first label {missing[0]} ({CLASS_NAMES[missing[0]]}); set tasks.cifar100.classes to learn fewer, or "
            "fetch the whole"
        )
    wanted = set(kept)
    return listing.load(
        [row for row, label in enumerate(listing.labels) if label in wanted], on_bad
    )


def count_cifar100(root: Path | None, split: str) -> Counter[int]:
    """How many images each label has, without opening them; rows whose label is wrong do not count."""
    folder = find_cifar100(root)
    return Counter(_find_form(folder)(folder, _part(split), lambda error: None).labels)


def find_cifar100(root: Path | None) -> Path:
    """The folder that the data are in, whatever their form."""
    return find_folder(
        root, ["cifar100", "data", "cifar-100-python"], lambda f: _find_form(f) is not None, _NEEDED
    )


def _part(split: str) -> str:
    return "train" if split == "train" else "test"


def _find_form(folder: Path) -> Callable[[Path, str, OnBad], _Listing] | None:
    if _find_parquet(folder, "train"):
        return _list_parquet
    if (folder / "train").is_dir():
        return _list_folders
    if (folder / "cifar-100-python.tar.gz").is_file():
        return _list_archive
    if (folder / "cifar-100-python").is_dir():
        return lambda folder, part, on_bad: _list_extracted(
            folder / "cifar-100-python", part, on_bad
        )
    return _list_extracted if (folder / "train").is_file() else None


def _find_parquet(folder: Path, part: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{part}*.parquet") if path.is_file())


def _list_parquet(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    files = _find_parquet(folder, part)
    if not files:
        raise DataError(f"{folder} has no {part}*.parquet beside its train files")
    labels, places = [], []
    for file in files:
        found = _read_columns(file, ["fine_label"])["fine_label"].to_pylist()
        rows = _check_labels(found, str(file), on_bad)
        labels += [found[row] for row in rows]
        places += [(file, row) for row in rows]
    return _Listing(labels, partial(_load_parquet, labels, places))


def _load_parquet(
    labels: Sequence[int], places: Sequence[tuple[Path, int]], rows: Sequence[int], on_bad: OnBad
) -> StoredImages:
    columns = {}
    for file in dict.fromkeys(places[row][0] for row in rows):
        table = _read_columns(file, ["img", "image"])
        columns[file] = table.column(0)

    def open_cell(file: Path, row: int, name: str) -> Image.Image:
        cell = columns[file][row].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(data, bytes):
            raise BadRecord(
                f"{name}: column {table.column_names[0]} holds no image bytes", "no image bytes"
            )
        return decode_image(data, name)

    named = [(f"{file}, row {row}", file, row) for file, row in (places[row] for row in rows)]
    images = ((name, partial(open_cell, file, row, name)) for name, file, row in named)
    return store_images(images, [labels[row] for row in rows], side=32, on_bad=on_bad)


def _read_columns(file: Path, either: Sequence[str]) -> pyarrow.Table:
    """The first of these columns that a Parquet file has."""
    try:
        names = pyarrow.parquet.read_schema(file).names
        found = [name for name in either if name in names][:1]
        if not found:
            listed = shorten_text(", ".join(names))
            raise DataError(
                f"{file} needs the columns img (or image) and fine_label, found {listed}"
            )
        return pyarrow.parquet.read_table(file, columns=found)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} is not a readable Parquet file ({error}); fetch it again"
        ) from None


def _list_folders(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    names = list_folders(folder / part)
    labels = {name: _folder_label(name, folder / part) for name in names}
    files = [(path, labels[name]) for name in names for path in list_images(folder / part / name)]
    load = lambda rows, on_bad: store_files([files[row] for row in rows], side=32, on_bad=on_bad)  # noqa: E731
    return _Listing([label for _, label in files], load)


def _folder_label(name: str, folder: Path) -> int:
    """A class folder is called as the class is, or by the number of its fine label."""
    if name in CLASS_NAMES:
        return CLASS_NAMES.index(name)
    if re.fullmatch(r"[0-9]{1,2}", name):
        return int(name)
    raise DataError(
        f"{folder / name} is no class of CIFAR-100: use the class names (apple) or the fine labels (0)"
    )


def _list_archive(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    archive, name = folder / "cifar-100-python.tar.gz", f"cifar-100-python/{part}"
    try:
        content = _read_member(archive, name)
    # `tarfile` looks into headers of headers
    except (
        tarfile.TarError,
        EOFError,
        OSError,
        zlib.error,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{archive} is not a readable archive ({error}); fetch it again") from None
    return _list_official(io.BytesIO(content), f"{archive}:{part}", on_bad)


def _read_member(archive: Path, name: str) -> bytes:
    """The bytes of a member, read from the archive's start on; no link is followed and no size is believed."""
    with (
        open_regular(archive) as file,
        gzip.GzipFile(fileobj=file) as unpacked,
        tarfile.open(fileobj=_Limited(unpacked), mode="r|", bufsize=1 << 20) as members,
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


class _Limited:
    """A file that ends in an error where it is longer than anything official."""

    def __init__(self, file: BinaryIO):
        self.file, self.left = file, _LARGEST

    def read(self, size: int) -> bytes:
        """The next bytes."""
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {_LARGEST:,} bytes")
        return content


def _list_extracted(folder: Path, part: str, on_bad: OnBad) -> _Listing:
    path = folder / part
    if not path.is_file():
        raise DataError(f"{path} is missing")
    try:
        with open_regular(path) as opened:
            if os.fstat(opened.fileno()).st_size > _LARGEST:
                raise DataError(f"{path} is larger than any official file; fetch it again")
            return _list_official(opened, str(path), on_bad)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _list_official(opened: BinaryIO, name: str, on_bad: OnBad) -> _Listing:
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
    found = content[b"fine_labels"]
    places = _check_labels(found, name, on_bad)
    pixels, labels = (
        _check_pixels(content[b"data"], len(found), name),
        [found[place] for place in places],
    )

    def load(rows: Sequence[int], on_bad: OnBad) -> StoredImages:
        return StoredImages(
            pixels[[places[row] for row in rows]], torch.tensor([labels[row] for row in rows])
        )

    return _Listing(labels, load)


def _check_pixels(data: Any, count: int, name: str) -> Tensor:
    if (
        not isinstance(data, numpy.ndarray)
        or data.dtype != numpy.uint8
        or data.shape != (count, 3072)
    ):
        found = (
            f"{data.dtype} {data.shape}" if isinstance(data, numpy.ndarray) else type(data).__name__
        )
        raise DataError(
            f"{name}: 'data' must be a uint8 array of shape ({count}, 3072), found {found}"
        )
    return torch.from_numpy(numpy.array(data, order="C")).view(count, 3, 32, 32)


def _check_labels(labels: Any, name: str, on_bad: OnBad) -> list[int]:
    """The rows whose label is one of the hundred."""
    if not isinstance(labels, list) or not labels:
        raise DataError(f"{name} holds no fine labels")
    right = []
    for row, label in enumerate(labels):
        if type(label) is int and 0 <= label < 100:
            right.append(row)
        else:
            text = f"{name}, row {row}: fine label {shorten(label)} is not one of 0..99"
            on_bad(BadRecord(text, "label out of range"))
    return right
