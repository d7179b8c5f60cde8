"""Labeled images in memory or in files, and the folders of Tiny-ImageNet and ImageNet-Subset."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mcit.data.augment import (
    center_corner,
    cut_box,
    draw_box_numbers,
    fit_boxes,
    image_to_tensor,
)
from mcit.data.files import Stamp, list_folder, read_bytes, stamp_files
from mcit.data.images import Picture, open_image, stays_inside
from mcit.data.problems import BadRecord, MissingData, OnBad, refuse
from mcit.data.verification import find_bad_pictures
from mcit.errors import DataError
from mcit.parallel.global_batch import draw_rows

# of Tiny-ImageNet's list of test images, which has half a million
_MOST_BYTES = 1 << 26
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Small images, decoded once."""

    # uint8 [images, 3, height, width]
    pixels: Tensor
    # long [images]
    labels: Tensor

    # every pixel is read, so that it does not matter when files were written
    times = ""

    def load_rows(self, rows: Tensor) -> Tensor:
        """Return the pixels of these rows, [rows, 3, height, width]."""
        return self.pixels.index_select(0, rows)

    @cached_property
    def digest(self) -> str:
        """Return a digest of every pixel and label."""
        whole = hashlib.sha256(str(tuple(self.pixels.shape)).encode())
        for tensor in (self.labels, self.pixels):
            whole.update(tensor.contiguous().numpy().data)
        return whole.hexdigest()


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Large images, which the task's transforms open when they are needed."""

    paths: Sequence[Path]
    # long [images]
    labels: Tensor

    def load_rows(self, rows: Tensor) -> list[Path]:
        """Return the files of these rows."""
        return [self.paths[row] for row in rows.tolist()]

    @cached_property
    def digest(self) -> str:
        """Return a digest of labels, folders, names and sizes; reading all files takes too long."""
        whole = hashlib.sha256(self.labels.contiguous().numpy().data)
        whole.update(self._stamp.content.encode())
        return whole.hexdigest()

    @property
    def times(self) -> str:
        """Return a digest of modification times: a file may be replaced by one of its size."""
        return self._stamp.times

    @cached_property
    def _stamp(self) -> Stamp:
        return stamp_files([(f"{path.parent.name}/{path.name}", path) for path in self.paths])


# with the data set's own labels; `load_rows` returns what the task's transforms take
Images = StoredImages | ImageFiles


def open_random_boxes(paths: Sequence[Path], size: int) -> Tensor:
    """Return a random box of each image, resized; uint8 [images, 3, size, size]."""

    def draw_singly(count: int) -> Tensor:
        # the numbers of an image do not depend on how many follow
        return torch.cat([draw_box_numbers(1) for _ in range(count)])

    # [images, 4, attempts]
    numbers = draw_rows(draw_singly, len(paths))
    boxes = []
    for path, drawn in zip(paths, numbers, strict=True):
        image = open_image(path)
        height = torch.tensor([image.height])
        width = torch.tensor([image.width])
        box = fit_boxes(height, width, drawn[None])[0]
        boxes.append(cut_box(image, box.tolist(), size))
    return torch.stack(boxes)


def cut_centers(images: Iterable[Image.Image], resize: int, size: int) -> Tensor:
    """Return the middle of images whose shorter side becomes `resize`; [images, 3, size, size]."""
    centers = [cut_center(resize_shorter_side(image, resize), size) for image in images]
    return torch.stack([image_to_tensor(center) for center in centers])


def resize_shorter_side(image: Image.Image, size: int) -> Image.Image:
    """Return the image with its shorter side `size` long; the longer side is rounded down."""
    short = min(image.size)
    wanted = (int(size * image.width / short), int(size * image.height / short))
    if wanted == image.size:
        return image
    return image.resize(wanted, Image.Resampling.BILINEAR)


def cut_center(image: Image.Image, size: int) -> Image.Image:
    """Return the middle `size` x `size` pixels of an image that is at least as large."""
    left = center_corner(image.width, size)
    top = center_corner(image.height, size)
    return image.crop((left, top, left + size, top + size))


def store_images(
    images: Iterable[tuple[str, Callable[[], Image.Image]]],
    labels: Sequence[int],
    side: int,
    on_bad: OnBad = refuse,
) -> StoredImages:
    """Return RGB images of `side` x `side` pixels as one tensor.

    images: a name and a function that opens it for each label. Images of another size, or that
    cannot be opened, go to `on_bad`.
    """
    pixels = torch.empty(len(labels), 3, side, side, dtype=torch.uint8)
    good: list[int] = []
    for (name, open_it), label in zip(images, labels, strict=True):
        try:
            image = open_it()
            if image.size != (side, side):
                found = f"{name} has {image.width}x{image.height} pixels"
                raise BadRecord(
                    f"{found} where {side}x{side} are needed", f"image not {side}x{side}"
                )
        except BadRecord as error:
            on_bad(error)
        else:
            pixels[len(good)] = image_to_tensor(image)
            good.append(label)
    return StoredImages(pixels[: len(good)], torch.tensor(good, dtype=torch.long))


def list_images(folder: Path) -> list[Path]:
    """Return the image files of a folder, sorted by name; raise a DataError if it has none."""
    if not folder.is_dir():
        raise DataError(f"image folder {folder} is missing")
    names = [entry.name for entry in list_folder(folder) if entry.is_file]
    images = [name for name in names if os.path.splitext(name)[1].lower() in _SUFFIXES]
    if not images:
        raise DataError(f"image folder {folder} holds no image ({', '.join(_SUFFIXES)})")
    return [folder / name for name in images]


def list_folders(folder: Path) -> list[str]:
    """Return the names of a folder's folders, sorted: the position of a name is the label."""
    if not folder.is_dir():
        raise DataError(
            f"folder {folder} is missing; it should hold one folder of images per class"
        )
    names = [entry.name for entry in list_folder(folder) if entry.is_folder]
    return [name for name in names if not name.startswith(".")]


def find_folder(
    root: Path | None, names: Sequence[str], fits: Callable[[Path], bool], needed: str
) -> Path:
    """Return `root` or the first of its sub-folders that `fits`, or raise a MissingData."""
    if root is None:
        raise DataError(f"no data root given: {needed}; pass --data-root DIR, which holds it")
    candidates = [root, *(root / name for name in names)]
    for folder in candidates:
        if folder.is_dir() and fits(folder):
            return folder
    searched = ", ".join(str(folder) for folder in candidates)
    raise MissingData(f"{root} does not hold the data: {needed} (looked in {searched})", needed)


def _has_parts(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "val").is_dir()


def read_tiny_imagenet(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> StoredImages:
    """Return Tiny-ImageNet's images of the labels in `kept`."""
    files = list_tiny_imagenet(root, split, kept, on_bad)
    images = [(str(path), partial(open_image, path)) for path, _ in files]
    return store_images(images, [label for _, label in files], side=64, on_bad=on_bad)


def list_tiny_imagenet(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> list[tuple[Path, int]]:
    """Return its files and labels, which are the 200 class ids in alphabetical order."""
    folder = find_folder(
        root,
        ["tiny-imagenet-200", "tiny_imagenet"],
        _has_parts,
        needed="Tiny-ImageNet is the folder 'tiny-imagenet-200' of the official archive, "
        "with train/ and val/",
    )
    train = folder / "train"
    names = list_folders(train)
    if len(names) != 200:
        raise DataError(f"{train} holds {len(names)} class folders where Tiny-ImageNet has 200")
    if split != "train":
        listed = _list_annotated(folder, names, on_bad)
        return [(path, label) for path, label in listed if label in kept]
    files = []
    for label in kept:
        files += [(path, label) for path in list_images(train / names[label] / "images")]
    return files


def _list_annotated(folder: Path, names: Sequence[str], on_bad: OnBad) -> list[tuple[Path, int]]:
    """Return the test images and their labels, as a list next to them says."""
    images = folder / "val" / "images"
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file():
        raise DataError(f"{annotations} is missing; it names the class of every image in {images}")
    try:
        lines = read_bytes(annotations, _MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{annotations} is not readable text ({error}); fetch it again") from None
    listed = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        file, _, rest = line.partition("\t")
        name = rest.split("\t")[0].strip()
        where = f"{annotations}, line {number}"
        if name not in names:
            text = f"{where}: class {name!r} has no folder in {folder / 'train'}"
            on_bad(BadRecord(text, "unknown class"))
        elif "/" in file or not stays_inside(file):
            text = f"{where}: {file!r} is not the name of a file in {images}"
            on_bad(BadRecord(text, "not a file name"))
        elif line_of.setdefault(file, number) != number:
            text = f"{where}: {file!r} is already in line {line_of[file]}"
            on_bad(BadRecord(text, "duplicate file"))
        else:
            listed.append((images / file, names.index(name)))
    return listed


def read_imagenet_subset(
    root: Path | None,
    split: str,
    kept: Sequence[int],
    class_list: str | None,
    on_bad: OnBad = refuse,
) -> ImageFiles:
    """Return 100 classes of ImageNet as files; labels are the class ids in alphabetical order.

    Files are opened when they are needed; if bad ones are to be left out, all are opened once
    beforehand.
    """
    folder = find_folder(
        root,
        ["imagenet_subset", "imagenet-subset", "imagenet"],
        _has_parts,
        needed="ImageNet-Subset is a folder with train/<class id>/ and val/<class id>/ "
        "such as train/n01440764/",
    )
    names = _choose_classes(folder / "train", class_list)
    part = folder / ("train" if split == "train" else "val")
    files = [(path, label) for label in kept for path in list_images(part / names[label])]
    if on_bad is not refuse:
        pictures = [Picture(path, str(path)) for path, _ in files]
        bad = find_bad_pictures(pictures, f"open all images of {part}")
        for error in bad.values():
            on_bad(error)
        files = [(path, label) for path, label in files if str(path) not in bad]
    labels = torch.tensor([label for _, label in files], dtype=torch.long)
    return ImageFiles([path for path, _ in files], labels)


def class_lists() -> dict[str, list[str]]:
    """Return the lists of 100 class ids that the literature calls ImageNet-Subset, by name."""
    lists = json.loads(Path(__file__).with_name("imagenet_subset.json").read_text(encoding="utf-8"))
    return {name: ids for name, ids in lists.items() if name != "note"}


def _choose_classes(train: Path, class_list: str | None) -> list[str]:
    folders = list_folders(train)
    lists = class_lists()
    if class_list is None:
        if len(folders) == 100:
            return folders
        raise DataError(
            f"{train} holds {len(folders)} class folders where ImageNet-Subset has 100; with the "
            "whole of ImageNet, name the list of classes: tasks.imagenet_subset.class_list "
            f"(lists: {', '.join(lists)})"
        )
    missing = sorted(set(lists[class_list]) - set(folders))
    if missing:
        raise DataError(
            f"{train} lacks {len(missing)} of the 100 classes of list {class_list!r}, "
            f"{missing[0]} first"
        )
    return sorted(lists[class_list])
