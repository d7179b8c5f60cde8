"""CIFAR-100: 100 classes of 32x32 photographs, learned in parts.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. Protocol: mcit/data/class_incremental.py.

Images    500 of each class for training, 100 for testing
Splits    of the literature: 50+5x10, 50+10x5, 40+20x3, and 5x20, 10x10, 20x5
Training  crop of the image in a frame of 4 black pixels, flip, brightness times 1 +- 63/255
Network   ResNet-18 with a 3x3 stem without pooling
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mcit.data.augment import crop_flip_brighten
from mcit.data.cifar import CLASS_NAMES, count_cifar100, read_cifar100
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import StoredImages
from mcit.data.problems import OnBad


@dataclass(frozen=True)
class Cifar100(ClassIncrementalTask):
    """Files: Parquet, image folders, or the official Python archive, packed or unpacked."""

    dataset = "cifar100"
    class_count = len(CLASS_NAMES)
    class_names = CLASS_NAMES
    sizes: ClassVar = {"train": 50000, "eval": 10000}
    home = "cifar100"
    page = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100, Python version)"
    mean = (0.5071, 0.4867, 0.4408)
    std = (0.2675, 0.2565, 0.2761)

    def read_images(self, split: str, kept: Sequence[int], on_bad: OnBad) -> StoredImages:
        return read_cifar100(self.root, split, kept, on_bad)

    def count_labels(self, split: str) -> Counter[int]:
        return count_cifar100(self.root, split)

    def augment(self, images: Tensor) -> Tensor:
        return crop_flip_brighten(images, padding=4)
