"""Tiny-ImageNet: 200 classes of 64x64 photographs, learned in parts.

Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015,
http://cs231n.stanford.edu/tiny-imagenet-200.zip. Protocol: mcit/data/class_incremental.py.

Images    500 of each class for training, the 50 official validation images for testing
Splits    of the literature: 100+5x20, 100+10x10, 100+20x5, and 5x40, 10x20, 20x10
Training  random box resized to 64x64, flip; scored on the middle 56x56 pixels, as the release does
Network   ResNet-18 with ImageNet's stem for equal splits and PODNet's for a big start
"""

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
from mcit.data.problems import OnBad


@dataclass(frozen=True)
class TinyImageNet(ClassIncrementalTask):
    """Files: the official folder tiny-imagenet-200."""

    dataset = "tiny_imagenet"
    class_count = 200
    sizes: ClassVar = {"train": 100000, "eval": 10000}
    home = "tiny-imagenet-200"
    page = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    archives: ClassVar = {"tiny-imagenet-200.zip": "tiny-imagenet-200"}
    equal_stem = "imagenet"
    big_start_stem = "podnet"
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def read_images(self, split: str, kept: Sequence[int], on_bad: OnBad) -> StoredImages:
        return read_tiny_imagenet(self.root, split, kept, on_bad)

    def count_labels(self, split: str) -> Counter[int]:
        every = range(self.class_count)
        listed = list_tiny_imagenet(self.root, split, every, on_bad=lambda error: None)
        return Counter(label for _, label in listed)

    def augment(self, images: Tensor) -> Tensor:
        side = torch.full((len(images),), images.shape[-1])
        images = resize_boxes(images, draw_boxes(side, side), size=64)
        return flip(images, draw_flips(len(images)))

    def eval_transform(self, images: Tensor) -> Tensor:
        return center_crop(images, 56)
