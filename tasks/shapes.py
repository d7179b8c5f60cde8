"""Shapes: 20 classes of 32x32 drawings, generated and learned in parts; no files are needed.

Images    200 of each class for training, 50 for testing (mcit/embedded/shapes.py)
Splits    5x4, 10x2, 12+4x2
Training  as CIFAR-100, with a frame of 2 pixels
Network   ResNet-18 of width 16 with PODNet's stem

Network and recipe are those of the EWC-DR release made small, as the data are. The first task has
about a hundredth of the release's steps, and eight times its weight decay: with less, weights that
BatchNorm rescales anyway would keep the size they began with, and a penalty of the release's
strength would hold the large weights of a small network so much that nothing new is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.data.augment import crop_flip_brighten
from mcit.data.class_incremental import FIRST_RECIPE, LATER_RECIPE, ClassIncrementalTask
from mcit.data.image_folders import StoredImages
from mcit.data.problems import OnBad
from mcit.embedded.shapes import CLASS_NAMES, draw_shapes


@dataclass(frozen=True)
class Shapes(ClassIncrementalTask):
    """Drawn again in every process, always the same."""

    first_epochs: int = option(20, help="epochs of the first task")
    later_epochs: int = option(10, help="epochs of every later task")

    dataset = "shapes"
    class_count = len(CLASS_NAMES)
    class_names = CLASS_NAMES
    # half the resolution is enough for forms this large, and four times faster
    equal_stem = "podnet"
    big_start_stem = "podnet"
    width = 16
    first_recipe = replace(
        FIRST_RECIPE, epochs=20, batch_size=64, weight_decay=4e-3, milestones=(12, 17)
    )
    later_recipe = replace(
        LATER_RECIPE, epochs=10, batch_size=64, weight_decay=5e-4, milestones=(6, 9)
    )
    mean = (0.44, 0.43, 0.44)
    std = (0.24, 0.23, 0.24)

    def read_images(self, split: str, kept: Sequence[int], on_bad: OnBad) -> StoredImages:
        pixels, labels = draw_shapes(split)
        rows = torch.isin(labels, torch.tensor(kept))
        return StoredImages(pixels[rows], labels[rows])

    def augment(self, images: Tensor) -> Tensor:
        return crop_flip_brighten(images, padding=2)
