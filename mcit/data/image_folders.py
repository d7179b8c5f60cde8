"""Readers of image folders: labelled images in memory or in files, Tiny-ImageNet's layout, ImageNet's layout."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from mcit.data.augment import center_corner, draw_box_numbers, fit_boxes
from mcit.data.bad_records import OnBad, refuse
from mcit.data.files import Stamp, list_folder, read_bytes, stamp_files
from mcit.data.images import Picture, open_image, stays_inside
from mcit.data.records import BadRecord
from mcit.data.verification import find_bad_pictures
from mcit.parallel.global_batch import draw_rows
from mcit.task import DataError

NOT_HERE = "does not hold the data"
_MOST_BYTES = 1 << 26  # of Tiny-ImageNet's list of test images, which has half a million
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Small images, decoded once."""

    pixels: Tensor  # uint8 [images, 3, height, width]
    labels: Tensor  # long [images]

    def fetch(self, rows: Tensor, training: bool) -> Tensor:
        """The images of these rows, [rows, 3, height, width]."""
        return self.pixels.index_select(0, rows)

    @cached_property
    def digest(self) -> str:
        """Of every pixel and label."""
        found = hashlib.sha256(str(tuple(self.pixels.shape)).encode())
        for tensor in (self.labels, self.pixels):
            found.update(tensor.contiguous().numpy())
        return found.hexdigest()

    @property
    def times(self) -> str:
        """Nothing: every pixel was looked at, and when its file was written does not matter."""
        return ""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Large images, decoded when they are needed and cut to `size` x `size` (eval: after a resize to `resize`)."""

    paths: Sequence[Path]
    labels: Tensor  # long [images]
    size: int
    resize: int

    def fetch(self, rows: Tensor, training: bool) -> Tensor:
        """The images of these rows, a random box of each for training, the centre otherwise."""
        images = (open_image(self.paths[row]) for row in rows.tolist())
        if training:
            draws = draw_rows(_draw_singly, len(rows))  # [rows, 4, attempts]
            cut = [
                cut_random_box(image, self.size, numbers)
                for image, numbers in zip(images, draws, strict=True)
            ]
        else:
            cut = [self._cut_center(image, self.size) for image in images]
        return torch.stack([image_to_tensor(image) for image in cut])  # [rows, 3, size, size]

    @cached_property
    def digest(self) -> str:
        """Of the files' folders, names and sizes, and of the labels: reading all of them would take too long."""
        found = hashlib.sha256(self.labels.contiguous().numpy())
        found.update(self._stamp.content.encode())
        return found.hexdigest()

    @property
    def times(self) -> str:
        """Of the files' times of change, which tell of a file that was replaced by another of its size."""
        return self._stamp.times

    @cached_property
    def _stamp(self) -> Stamp:
        return stamp_files([(f"{path.parent.name}/{path.name}", path) for path in self.paths])

    def _cut_center(self, image: Image.Image, size: int) -> Image.Image:
        return cut_center(resize_shorter_side(image, self.resize), size)


Images = StoredImages | ImageFiles


def image_to_tensor(image: Image.Image) -> Tensor:
    """A uint8 tensor [3, height, width]."""
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


def store_images(
    images: Iterable[tuple[str, Callable[[], Image.Image]]],
    labels: Sequence[int],
    side: int,
    on_bad: OnBad = refuse,
) -> StoredImages:
    """Named RGB images of `side` x `side` pixels as one tensor; one of another size, or that opens not, is bad."""
    pixels, good = torch.empty(len(labels), 3, side, side, dtype=torch.uint8), []
    for row, (name, open_it) in enumerate(images):
        try:
            image = open_it()
            if image.size != (side, side):
                width, height = image.size
                text = f"{name} has {width}x{height} pixels where {side}x{side} are needed"
                raise BadRecord(text, f"image not {side}x{side}")
        except BadRecord as error:
            on_bad(error)
        else:
            pixels[len(good)] = image_to_tensor(image)
            good.append(labels[row])
    return StoredImages(pixels[: len(good)], torch.tensor(good, dtype=torch.long))


def store_files(
    files: Sequence[tuple[Path, int]], side: int, on_bad: OnBad = refuse
) -> StoredImages:
    """The images of (path, label) pairs in memory."""
    images = ((str(path), partial(open_image, path)) for path, _ in files)
    return store_images(images, [label for _, label in files], side, on_bad)


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; a folder that is missing or has none is a DataError."""
    if not folder.is_dir():
        raise DataError(f"image folder {folder} is missing")
    found = [
        folder / entry.name
        for entry in list_folder(folder)
        if entry.is_file and _is_image(entry.name)
    ]
    if not found:
        raise DataError(f"image folder {folder} holds no image ({', '.join(sorted(_SUFFIXES))})")
    return found


def list_folders(folder: Path) -> list[str]:
    """The names of a folder's folders, sorted: the position of a name is the label, as everywhere in the literature."""
    if not folder.is_dir():
        raise DataError(
            f"folder {folder} is missing; it should hold one folder of images per class"
        )
    return [
        entry.name
        for entry in list_folder(folder)
        if entry.is_folder and not entry.name.startswith(".")
    ]


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def find_folder(
    root: Path | None, names: Sequence[str], fits: Callable[[Path], bool], needed: str
) -> Path:
    """The first of `root` and its subfolders `names` that `fits`; a DataError says what is `needed`."""
    if root is None:
        raise DataError(f"no data root given: {needed}")
    candidates = [root, *(root / name for name in names)]
    for folder in candidates:
        if folder.is_dir() and fits(folder):
            return folder
    looked = ", ".join(str(folder) for folder in candidates)
    raise DataError(f"{root} {NOT_HERE}: {needed} (looked in {looked})")


def read_tiny_imagenet(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> StoredImages:
    """Tiny-ImageNet in its official layout; labels are the 200 class ids in alphabetical order, `kept` some of them."""
    return store_files(list_tiny_imagenet(root, split, kept, on_bad), side=64, on_bad=on_bad)


def list_tiny_imagenet(
    root: Path | None, split: str, kept: Sequence[int], on_bad: OnBad = refuse
) -> list[tuple[Path, int]]:
    """Its files and their labels, unopened."""
    folder = find_folder(
        root,
        ["tiny-imagenet-200", "tiny_imagenet"],
        lambda folder: (folder / "val").is_dir() and (folder / "train").is_dir(),
        "Tiny-ImageNet is the folder 'tiny-imagenet-200' of the official archive, with train/ and val/",
    )
    names = list_folders(folder / "train")
    if len(names) != 200:
        raise DataError(
            f"{folder / 'train'} holds {len(names)} class folders where Tiny-ImageNet has 200"
        )
    wanted = {names[label]: label for label in kept}
    if split == "train":
        return [
            (path, label)
            for n, label in wanted.items()
            for path in list_images(folder / "train" / n / "images")
        ]
    return _list_annotated(folder / "val", names, wanted, on_bad)


def _list_annotated(
    folder: Path, names: Sequence[str], wanted: dict[str, int], on_bad: OnBad
) -> list[tuple[Path, int]]:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        raise DataError(
            f"{annotations} is missing; it names the class of every image in {folder / 'images'}"
        )
    try:
        lines = read_bytes(annotations, _MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{annotations} is no readable text ({error}); fetch it again") from None
    listed, line_of = [], {}
    for number, line in enumerate(lines, start=1):
        file, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0].strip()
        problem = None
        if wnid not in names:
            problem = f"class {wnid!r} has no folder in {folder.parent / 'train'}", "unknown class"
        elif "/" in file or not stays_inside(file):
            problem = f"{file!r} is not the name of a file in {folder / 'images'}", "no file name"
        elif line_of.setdefault(file, number) != number:
            problem = f"{file!r} is already in line {line_of[file]}", "duplicate file"
        if problem is not None and line.strip():
            on_bad(BadRecord(f"{annotations}, line {number}: {problem[0]}", problem[1]))
        elif wnid in wanted:
            listed.append((folder / "images" / file, wanted[wnid]))
    return listed


def read_imagenet_subset(
    root: Path | None,
    split: str,
    kept: Sequence[int],
    class_list: str | None,
    size: int = 224,
    resize: int = 256,
    on_bad: OnBad = refuse,
) -> ImageFiles:
    """100 classes of ImageNet as files; labels are the 100 class ids in alphabetical order, `kept` some of them.

    Files are opened when they are needed; where bad ones are to be left out, all are opened once beforehand.
    """
    folder = find_folder(
        root,
        ["imagenet_subset", "imagenet-subset", "imagenet"],
        lambda folder: (folder / "val").is_dir() and (folder / "train").is_dir(),
        "ImageNet-Subset is a folder with train/<class id>/ and val/<class id>/ such as train/n01440764/",
    )
    names = _subset_names(folder / "train", class_list)
    part = folder / ("train" if split == "train" else "val")
    listed = [(path, label) for label in kept for path in list_images(part / names[label])]
    if on_bad is not refuse:
        bad = find_bad_pictures(
            [Picture(path, str(path)) for path, _ in listed], f"open all images of {part}"
        )
        for error in bad.values():
            on_bad(error)
        listed = [(path, label) for path, label in listed if str(path) not in bad]
    labels = torch.tensor([label for _, label in listed], dtype=torch.long)
    return ImageFiles([path for path, _ in listed], labels, size, resize)


def class_lists() -> dict[str, list[str]]:
    """The lists of 100 class ids that the literature calls ImageNet-Subset, by name."""
    lists = json.loads(Path(__file__).with_name("imagenet_subset.json").read_text(encoding="utf-8"))
    return {name: ids for name, ids in lists.items() if name != "note"}


def _subset_names(train: Path, class_list: str | None) -> list[str]:
    folders, lists = list_folders(train), class_lists()
    if class_list is None:
        if len(folders) == 100:
            return folders
        choices = ", ".join(lists)
        raise DataError(
            f"{train} holds {len(folders)} class folders where ImageNet-Subset has 100; with the whole of ImageNet, "
            f"name the list of classes: tasks.imagenet_subset.class_list (lists: {choices})"
        )
    missing = sorted(set(lists[class_list]) - set(folders))
    if missing:
        raise DataError(
            f"{train} lacks {len(missing)} of the 100 classes of list {class_list!r}, {missing[0]} first"
        )
    return sorted(lists[class_list])


def resize_shorter_side(image: Image.Image, size: int) -> Image.Image:
    """The image with its shorter side `size` long, bilinear; the longer side is rounded down."""
    width, height = image.size
    short = min(width, height)
    wanted = (int(size * width / short), int(size * height / short))
    return image.resize(wanted, Image.Resampling.BILINEAR) if wanted != image.size else image


def cut_center(image: Image.Image, size: int) -> Image.Image:
    """The middle `size` x `size` pixels of an image that is at least as large."""
    left, top = (center_corner(length, size) for length in image.size)
    return image.crop((left, top, left + size, top + size))


def _draw_singly(count: int) -> Tensor:
    """Numbers for one box after the other: what an image gets does not depend on how many follow."""
    return torch.cat([draw_box_numbers(1) for _ in range(count)])


def cut_random_box(image: Image.Image, size: int, numbers: Tensor | None = None) -> Image.Image:
    """A random box of the image, of these numbers or drawn from torch's generator, resized to `size` x `size`."""
    numbers = draw_box_numbers(1)[0] if numbers is None else numbers
    height, width = torch.tensor([image.height]), torch.tensor([image.width])
    top, left, tall, wide = fit_boxes(height, width, numbers[None])[0].tolist()
    # cropped first: `resize(box=...)` would let pixels beyond the box's edge bleed in
    box = image.crop((left, top, left + wide, top + tall))
    return box.resize((size, size), Image.Resampling.BILINEAR)
