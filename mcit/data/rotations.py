"""Rotation labels: an image turned by 90, 180 or 270 degrees is a class of its own.

Lee et al., Self-supervised label augmentation via input transformations, ICML 2020,
https://arxiv.org/abs/1910.05872

softmax over C class logits and 3C logits of an auxiliary head; class c turned k times by 90 degrees
is the output c for k = 0 and C + 3c + k - 1 otherwise. Heads of 4C outputs, as PASS and AdaGauss
have them, are the same with their rows in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mcit.errors import ConfigError
from mcit.task import Batch, Head

TURNS = 4
PIXELS = "pixel_values"
# how often each image of a rotated batch was turned, [rows]
TURNED = "turned"


def rotation_head(classes: int) -> Head:
    """Return the auxiliary head: an output for each class and each turn but the first."""
    return Head("rotations", outputs=(TURNS - 1) * classes, kind="class", layout="linear")


def rotate_batch(batch: Batch) -> Batch:
    """Return every image in four orientations, one after the other; labels are of the classes."""
    images = batch[PIXELS]
    height, width = images.shape[-2:]
    if height != width:
        raise ConfigError(
            [f"images must be square for rotation labels, found {width}x{height} pixels"]
        )
    turned = [images.rot90(turns, dims=(2, 3)) for turns in range(TURNS)]
    rotated = {key: _repeat(value) for key, value in batch.items()}
    rotated[PIXELS] = torch.stack(turned, dim=1).flatten(0, 1)
    rotated[TURNED] = torch.arange(TURNS, device=images.device).repeat(len(images))
    return rotated


def label_rotations(labels: Tensor, turned: Tensor, classes: int) -> Tensor:
    """Return the output [rows] that stands for each class and turn."""
    auxiliary = classes + (TURNS - 1) * labels + turned - 1
    return torch.where(turned == 0, labels, auxiliary)


def _repeat(value: object) -> object:
    if isinstance(value, Tensor):
        return value.repeat_interleave(TURNS, dim=0)
    return value
