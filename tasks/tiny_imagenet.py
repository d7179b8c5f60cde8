"""Tiny-ImageNet: 200 classes of 64x64 photographs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mcit.data.augment import center_crop, draw_boxes, draw_flips, flip, resize_boxes
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import StoredImages, list_tiny_imagenet, read_tiny_imagenet


@dataclass(frozen=True)
class TinyImageNet(ClassIncrementalTask):
    """The official folder `tiny-imagenet-200` under `root`; its validation images are the test images."""

    dataset = "tiny_imagenet"
    class_count = 200
    sizes: ClassVar = {"train": 100000, "eval": 10000}
    home = "tiny-imagenet-200"
    page = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    archives: ClassVar = {"tiny-imagenet-200.zip": "tiny-imagenet-200"}
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    @property
    def stem(self) -> str:
        return "imagenet" if self.part.equal else "podnet"

    def read_images(self, split: str, kept: Sequence[int]) -> StoredImages:
        return read_tiny_imagenet(self.root, split, kept, self.on_bad(split))

    def count_labels(self, split: str) -> Counter[int]:
        listed = list_tiny_imagenet(
            self.root, split, range(self.class_count), on_bad=lambda error: None
        )
        return Counter(label for _, label in listed)

    def augment(self, pixels: Tensor) -> Tensor:
        side = torch.full((len(pixels),), pixels.shape[-1])
        pixels = resize_boxes(pixels, draw_boxes(side, side), size=64)
        return flip(pixels, draw_flips(len(pixels)))

    def frame(self, pixels: Tensor) -> Tensor:
        return center_crop(pixels, 56)  # the release's own: smaller than what it trains on
