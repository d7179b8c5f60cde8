"""Shapes: 20 classes of 32x32 drawings, generated; no files are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mcit.data.augment import draw_corners, draw_factors, draw_flips, flip, pad_crop, scale_brightness
from mcit.data.class_incremental import FIRST_RECIPE, LATER_RECIPE, ClassIncrementalTask
from mcit.data.image_folders import StoredImages
from mcit.data.shapes import CLASS_NAMES, draw_shapes


@dataclass(frozen=True)
class Shapes(ClassIncrementalTask):
    """Drawn anew in every process, always the same; the recipe is the release's made small, as the data set is."""

    first_epochs: int = 10
    later_epochs: int = 6

    dataset = "shapes"
    class_count = len(CLASS_NAMES)
    first_recipe = replace(FIRST_RECIPE, batch_size=32, learning_rate=0.05)
    later_recipe = replace(LATER_RECIPE, batch_size=32, learning_rate=0.05)
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
