"""Shapes: 20 classes of 32x32 drawings, generated; no files are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mcit.data.augment import (
    draw_corners,
    draw_factors,
    draw_flips,
    flip,
    pad_crop,
    scale_brightness,
)
from mcit.data.class_incremental import FIRST_RECIPE, LATER_RECIPE, ClassIncrementalTask
from mcit.data.image_folders import StoredImages
from mcit.data.shapes import CLASS_NAMES, draw_shapes


@dataclass(frozen=True)
class Shapes(ClassIncrementalTask):
    """Drawn anew in every process, always the same; network and recipe are the release's made small, as the data are.

    The first task has about a hundredth of the release's steps, and eight times its weight decay: with less, weights
    that BatchNorm rescales anyway would keep the size they began with, and a penalty of the release's strength would
    hold the large weights of a small network so much that nothing new is learned.
    """

    first_epochs: int = 20
    later_epochs: int = 10

    dataset = "shapes"
    class_count = len(CLASS_NAMES)
    width = 16  # of the network's first stage
    stem = "podnet"  # half the resolution is enough for forms this large, and four times faster
    first_recipe = replace(
        FIRST_RECIPE, epochs=20, batch_size=64, weight_decay=4e-3, milestones=(12, 17)
    )
    later_recipe = replace(
        LATER_RECIPE, epochs=10, batch_size=64, weight_decay=5e-4, milestones=(6, 9)
    )
    mean = (0.44, 0.43, 0.44)
    std = (0.24, 0.23, 0.24)

    def read_images(self, split: str, kept: Sequence[int]) -> StoredImages:
        pixels, labels = draw_shapes(split)
        rows = torch.isin(labels, torch.tensor(kept))
        return StoredImages(pixels[rows], labels[rows])

    def augment(self, pixels: Tensor) -> Tensor:
        count = len(pixels)
        pixels = pad_crop(pixels, *draw_corners(count, padding=2), padding=2)
        pixels = flip(pixels, draw_flips(count))
        return scale_brightness(pixels, draw_factors(count, spread=63 / 255))
