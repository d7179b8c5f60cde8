"""CIFAR-100: 100 classes of 32x32 photographs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mcit.data.augment import (
    draw_corners,
    draw_factors,
    draw_flips,
    flip,
    pad_crop,
    scale_brightness,
)
from mcit.data.cifar import count_cifar100, read_cifar100
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import StoredImages


@dataclass(frozen=True)
class Cifar100(ClassIncrementalTask):
    """Parquet files, image folders or the official Python archive under `root`."""

    dataset = "cifar100"
    class_count = 100
    sizes: ClassVar = {"train": 50000, "eval": 10000}
    home = "cifar100"
    page = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100, Python version)"
    mean = (0.5071, 0.4867, 0.4408)
    std = (0.2675, 0.2565, 0.2761)

    def read_images(self, split: str, kept: Sequence[int]) -> StoredImages:
        return read_cifar100(self.root, split, kept, self.on_bad(split))

    def count_labels(self, split: str) -> Counter[int]:
        return count_cifar100(self.root, split)

    def augment(self, pixels: Tensor) -> Tensor:
        count = len(pixels)
        pixels = pad_crop(pixels, *draw_corners(count, padding=4), padding=4)
        pixels = flip(pixels, draw_flips(count))
        return scale_brightness(pixels, draw_factors(count, spread=63 / 255))
