"""CIFAR-100 from Parquet files, from image folders, or from the official Python archive without executing it."""

from __future__ import annotations

import io
import pickle
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor

from mcit.data.image_folders import StoredImages, find_folder, list_folders, list_images, store_files, store_images
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
_READ_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError)


def read_cifar100(root: Path | None, split: str, kept: Sequence[int]) -> StoredImages:
    """The images of the labels in `kept`; labels are the official fine labels 0..99, whichever of them are there."""
    part = "train" if split == "train" else "test"
    folder = find_folder(root, ["cifar100", "data", "cifar-100-python"], lambda f: _find_reader(f) is not None, _NEEDED)
    read = _find_reader(folder)
    images = read(folder, part)
    missing = sorted(set(kept) - set(images.labels.tolist()))
    if missing:
        present = len(images.labels.unique())
        raise DataError(
            f"{folder} holds {present} classes in '{part}' and lacks {len(missing)} that are needed, first label "
            f"{missing[0]} ({CLASS_NAMES[missing[0]]}); set tasks.cifar100.classes to learn fewer, or fetch the whole"
        )
    rows = torch.isin(images.labels, torch.tensor(list(kept)))
    return images if rows.all() else StoredImages(images.pixels[rows], images.labels[rows])


def _find_reader(folder: Path) -> Any:
    if any(folder.glob("train*.parquet")):
        return _read_parquet
    if (folder / "train").is_dir():
        return _read_folders
    if (folder / "cifar-100-python.tar.gz").is_file():
        return _read_archive
    if (folder / "cifar-100-python").is_dir():
        return lambda folder, part: _read_extracted(folder / "cifar-100-python", part)
    return _read_extracted if (folder / "train").is_file() else None


def _read_parquet(folder: Path, part: str) -> StoredImages:
    files = sorted(folder.glob(f"{part}*.parquet"))
    if not files:
        raise DataError(f"{folder} has no {part}*.parquet beside its train files")
    images, labels = [], []
    for file in files:
        table = _open_parquet(file)
        column = next((name for name in ("img", "image") if name in table.column_names), None)
        if column is None or "fine_label" not in table.column_names:
            found = ", ".join(table.column_names)
            raise DataError(f"{file} needs the columns img (or image) and fine_label, found {found}")
        labels += _check_labels(table["fine_label"].to_pylist(), str(file))
        for row, cell in enumerate(table[column].to_pylist()):
            name = f"{file}, row {row}"
            if not isinstance(cell, dict) or not isinstance(cell.get("bytes"), bytes):
                raise DataError(f"{name}: column {column} holds no image bytes")
            images.append((name, cell["bytes"]))
    return store_images(((name, _decode(data, name)) for name, data in images), labels, side=32)


def _decode(data: bytes, name: str) -> Image.Image:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # a broken PNG may be any of these
        raise DataError(f"{name} is no readable image ({error}); fetch it again") from None


def _open_parquet(file: Path) -> Any:
    try:
        return pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a readable Parquet file ({error}); fetch it again") from None


def _read_folders(folder: Path, part: str) -> StoredImages:
    names = list_folders(folder / part)
    labels = {name: _folder_label(name, folder / part) for name in names}
    return store_files([(path, labels[name]) for name in names for path in list_images(folder / part / name)], side=32)


def _folder_label(name: str, folder: Path) -> int:
    """A class folder is called as the class is, or by the number of its fine label."""
    if name in CLASS_NAMES:
        return CLASS_NAMES.index(name)
    if re.fullmatch(r"\d{1,2}", name):
        return int(name)
    raise DataError(f"{folder / name} is no class of CIFAR-100: use the class names (apple) or the fine labels (0)")


def _read_archive(folder: Path, part: str) -> StoredImages:
    archive = folder / "cifar-100-python.tar.gz"
    try:
        with tarfile.open(archive, "r:gz") as opened:
            member = opened.extractfile(f"cifar-100-python/{part}")
            if member is None:
                raise DataError(f"cifar-100-python/{part} in {archive} is not a file")
            return _read_official(io.BytesIO(member.read()), f"{archive}:{part}")
    except KeyError:
        raise DataError(f"{archive} has no member cifar-100-python/{part}; fetch it again") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{archive} is not a readable archive ({error}); fetch it again") from None


def _read_extracted(folder: Path, part: str) -> StoredImages:
    if not (folder / part).is_file():
        raise DataError(f"{folder / part} is missing")
    with (folder / part).open("rb") as opened:
        return _read_official(opened, str(folder / part))


def _read_official(opened: BinaryIO, name: str) -> StoredImages:
    try:
        content = ArrayUnpickler(opened).load()
    except _READ_ERRORS as error:
        raise DataError(f"{name} is not a file of the official CIFAR-100 archive: {error}") from None
    if not isinstance(content, dict) or not {b"data", b"fine_labels"} <= content.keys():
        raise DataError(f"{name} lacks the entries 'data' and 'fine_labels' of the official archive")
    labels = _check_labels(content[b"fine_labels"], name)
    return StoredImages(_check_pixels(content[b"data"], len(labels), name), torch.tensor(labels, dtype=torch.long))


def _check_pixels(data: Any, count: int, name: str) -> Tensor:
    if not isinstance(data, numpy.ndarray) or data.dtype != numpy.uint8 or data.shape != (count, 3072):
        found = f"{data.dtype} {data.shape}" if isinstance(data, numpy.ndarray) else type(data).__name__
        raise DataError(f"{name}: 'data' must be a uint8 array of shape ({count}, 3072), found {found}")
    return torch.from_numpy(numpy.array(data, order="C")).view(count, 3, 32, 32)


def _check_labels(labels: Any, name: str) -> list[int]:
    if not isinstance(labels, list) or not labels:
        raise DataError(f"{name} holds no fine labels")
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < 100:
            raise DataError(f"{name}, row {row}: fine label {label!r} is not one of 0..99")
    return labels


class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and integer arrays, and refuses everything else.

    A pickle is a program that calls what it names. Here the only names that lead anywhere are the three an array is
    made of, and two of those lead to functions below that check what they are called with.
    """

    def __init__(self, opened: BinaryIO):
        super().__init__(opened, encoding="bytes")  # written by Python 2

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty_array
        if module == "numpy" and name == "dtype":
            return _integer_type
        if module == "numpy" and name == "ndarray":
            return "ndarray"  # a mere word: calling it fails
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are read")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it asks for an object outside the file, and only arrays are read")


def _empty_array(kind: Any, shape: Any, code: Any) -> numpy.ndarray:
    if (kind, shape, code) not in (("ndarray", (0,), b"b"), ("ndarray", (0,), "b")):
        raise pickle.UnpicklingError("it makes an array in a way that arrays are not saved in")
    return numpy.empty(0, dtype=numpy.int8)  # the array's contents follow in the file


def _integer_type(code: Any, *flags: Any) -> numpy.dtype:
    text = code.decode("ascii") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not re.fullmatch(r"[iu][1248]", text):
        raise pickle.UnpicklingError(f"it holds an array of {code!r}, and only whole numbers are read")
    return numpy.dtype(text, copy=True)
