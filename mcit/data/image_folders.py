"""Readers of image folders: labelled images in memory or in files, Tiny-ImageNet's layout, ImageNet's layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from mcit.data.augment import center_corner, draw_boxes
from mcit.data.images import open_image, stays_inside
from mcit.task import DataError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Small images, decoded once."""

    pixels: Tensor  # uint8 [images, 3, height, width]
    labels: Tensor  # long [images]

    def fetch(self, rows: Tensor, training: bool) -> Tensor:
        """The images of these rows, [rows, 3, height, width]."""
        return self.pixels.index_select(0, rows)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Large images, decoded when they are needed and cut to `size` x `size` (eval: after a resize to `resize`)."""

    paths: Sequence[Path]
    labels: Tensor  # long [images]
    size: int
    resize: int

    def fetch(self, rows: Tensor, training: bool) -> Tensor:
        """The images of these rows, a random box of each for training, the centre otherwise."""
        cut = cut_random_box if training else self._cut_center
        images = [cut(open_image(self.paths[row]), self.size) for row in rows.tolist()]
        return torch.stack([image_to_tensor(image) for image in images])  # [rows, 3, size, size]

    def _cut_center(self, image: Image.Image, size: int) -> Image.Image:
        return cut_center(resize_shorter_side(image, self.resize), size)


Images = StoredImages | ImageFiles


def image_to_tensor(image: Image.Image) -> Tensor:
    """A uint8 tensor [3, height, width]."""
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


def store_images(images: Iterable[tuple[str, Image.Image]], labels: Sequence[int], side: int) -> StoredImages:
    """Named RGB images of `side` x `side` pixels as one tensor; one of another size is a DataError."""
    pixels = torch.empty(len(labels), 3, side, side, dtype=torch.uint8)
    for row, (name, image) in enumerate(images):
        if image.size != (side, side):
            width, height = image.size
            raise DataError(f"{name} has {width}x{height} pixels where {side}x{side} are needed")
        pixels[row] = image_to_tensor(image)
    return StoredImages(pixels, torch.tensor(labels, dtype=torch.long))


def store_files(files: Sequence[tuple[Path, int]], side: int) -> StoredImages:
    """The images of (path, label) pairs in memory."""
    images = ((str(path), open_image(path)) for path, _ in files)
    return store_images(images, [label for _, label in files], side)


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; a folder that is missing or has none is a DataError."""
    if not folder.is_dir():
        raise DataError(f"image folder {folder} is missing")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if not found:
        raise DataError(f"image folder {folder} holds no image ({', '.join(sorted(_SUFFIXES))})")
    return found


def list_folders(folder: Path) -> list[str]:
    """The names of a folder's folders, sorted: the position of a name is the label, as everywhere in the literature."""
    if not folder.is_dir():
        raise DataError(f"folder {folder} is missing; it should hold one folder of images per class")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def find_folder(root: Path | None, names: Sequence[str], fits: Callable[[Path], bool], needed: str) -> Path:
    """The first of `root` and its subfolders `names` that `fits`; a DataError says what is `needed`."""
    if root is None:
        raise DataError(f"no data root given: {needed}")
    candidates = [root, *(root / name for name in names)]
    for folder in candidates:
        if folder.is_dir() and fits(folder):
            return folder
    looked = ", ".join(str(folder) for folder in candidates)
    raise DataError(f"{root} does not hold the data: {needed} (looked in {looked})")


def read_tiny_imagenet(root: Path | None, split: str, kept: Sequence[int]) -> StoredImages:
    """Tiny-ImageNet in its official layout; labels are the 200 class ids in alphabetical order, `kept` some of them."""
    folder = find_folder(
        root,
        ["tiny-imagenet-200", "tiny_imagenet"],
        lambda folder: (folder / "val").is_dir() and (folder / "train").is_dir(),
        "Tiny-ImageNet is the folder 'tiny-imagenet-200' of the official archive, with train/ and val/",
    )
    names = list_folders(folder / "train")
    if len(names) != 200:
        raise DataError(f"{folder / 'train'} holds {len(names)} class folders where Tiny-ImageNet has 200")
    wanted = {names[label]: label for label in kept}
    if split == "train":
        listed = [(path, label) for n, label in wanted.items() for path in list_images(folder / "train" / n / "images")]
    else:
        listed = _list_annotated(folder / "val", names, wanted)
    return store_files(listed, side=64)


def _list_annotated(folder: Path, names: Sequence[str], wanted: dict[str, int]) -> list[tuple[Path, int]]:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        raise DataError(f"{annotations} is missing; it names the class of every image in {folder / 'images'}")
    listed, known = [], set(names)
    for number, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        file, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0].strip()
        if wnid not in known:
            raise DataError(f"{annotations}, line {number}: class {wnid!r} has no folder in {folder.parent / 'train'}")
        if "/" in file or not stays_inside(file):
            raise DataError(f"{annotations}, line {number}: {file!r} is not the name of a file in {folder / 'images'}")
        if wnid in wanted:
            listed.append((folder / "images" / file, wanted[wnid]))
    return listed


def read_imagenet_subset(
    root: Path | None, split: str, kept: Sequence[int], class_list: str | None, size: int = 224, resize: int = 256
) -> ImageFiles:
    """100 classes of ImageNet as files; labels are the 100 class ids in alphabetical order, `kept` some of them."""
    folder = find_folder(
        root,
        ["imagenet_subset", "imagenet-subset", "imagenet"],
        lambda folder: (folder / "val").is_dir() and (folder / "train").is_dir(),
        "ImageNet-Subset is a folder with train/<class id>/ and val/<class id>/ such as train/n01440764/",
    )
    names = _subset_names(folder / "train", class_list)
    part = folder / ("train" if split == "train" else "val")
    listed = [(path, label) for label in kept for path in list_images(part / names[label])]
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
        raise DataError(f"{train} lacks {len(missing)} of the 100 classes of list {class_list!r}, {missing[0]} first")
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


def cut_random_box(image: Image.Image, size: int) -> Image.Image:
    """A random box of the image, drawn from torch's generator, resized to `size` x `size`."""
    height, width = torch.tensor([image.height]), torch.tensor([image.width])
    top, left, tall, wide = draw_boxes(height, width)[0].tolist()
    # cropped first: `resize(box=...)` would let pixels beyond the box's edge bleed in
    box = image.crop((left, top, left + wide, top + tall))
    return box.resize((size, size), Image.Resampling.BILINEAR)
