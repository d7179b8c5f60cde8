"""Augmentation policies: what is done to each image of a batch is drawn, and done to all at once.

auto     AutoAugment's policy for CIFAR-10, one of 25 pairs of operations with their probabilities:
         Cubuk et al., AutoAugment: learning augmentation policies from data, CVPR 2019,
         https://arxiv.org/abs/1805.09501. Shears are bicubic, what comes from outside is gray.
trivial  TrivialAugmentWide, one of 14 operations with a strength, both uniform:
         Mueller and Hutter, TrivialAugment: tuning-free yet state-of-the-art data augmentation,
         ICCV 2021, https://arxiv.org/abs/2103.10158. What comes from outside is black.
Cutout   a black square at a random place: DeVries and Taylor, Improved regularization of
         convolutional neural networks with cutout, 2017, https://arxiv.org/abs/1708.04552

An image takes all of its draws from one row of uniform numbers, so that they do not depend on the
number of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mcit.data import image_operations as ops
from mcit.parallel.global_batch import draw_rows

GRAY = 128
BLACK = 0


@dataclass(frozen=True)
class Strength:
    """How strong an operation is, at a level of a scale that runs from 0 to 1."""

    operation: ops.Operation
    least: float = 0.0
    most: float = 0.0
    # whether the sign is drawn too
    signed: bool = False
    # added after the sign: factors are around 1
    around: float = 0.0
    # in units of the image's side
    relative: bool = False

    def apply(self, images: Tensor, levels: Tensor, signs: Tensor, fill: int) -> Tensor:
        """Return images changed as strongly as levels [batch], 0 to 1, and signs say."""
        values = self.least + (self.most - self.least) * levels
        if self.relative:
            values = values * images.shape[-1]
        if self.signed:
            values = values * signs
        return self.operation(images, self.around + values, fill)


# AutoAugment has levels 0 to 9
AUTO = {
    "shear_x": Strength(ops.shear_x_smoothly, most=0.3, signed=True),
    "shear_y": Strength(ops.shear_y_smoothly, most=0.3, signed=True),
    "translate_x": Strength(ops.translate_x, most=150 / 331, signed=True, relative=True),
    "translate_y": Strength(ops.translate_y, most=150 / 331, signed=True, relative=True),
    "rotate": Strength(ops.rotate, most=30, signed=True),
    "color": Strength(ops.change_color, most=0.9, signed=True, around=1),
    "contrast": Strength(ops.change_contrast, most=0.9, signed=True, around=1),
    "sharpness": Strength(ops.change_sharpness, most=0.9, signed=True, around=1),
    "brightness": Strength(ops.change_brightness, most=0.9, signed=True, around=1),
    "posterize": Strength(ops.posterize, least=8, most=4),
    "solarize": Strength(ops.solarize, least=256, most=0),
    "autocontrast": Strength(ops.stretch_contrast),
    "equalize": Strength(ops.equalize),
    "invert": Strength(ops.invert),
}
AUTO_LEVELS = 9
# two operations after each other: name, probability, level
Pair = tuple[tuple[str, float, int], tuple[str, float, int]]
CIFAR_POLICY: tuple[Pair, ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)

# TrivialAugmentWide has levels 0 to 30
TRIVIAL = {
    "identity": Strength(ops.keep),
    "shear_x": Strength(ops.shear_x, most=0.99, signed=True),
    "shear_y": Strength(ops.shear_y, most=0.99, signed=True),
    "translate_x": Strength(ops.translate_x, most=32, signed=True),
    "translate_y": Strength(ops.translate_y, most=32, signed=True),
    "rotate": Strength(ops.rotate, most=135, signed=True),
    "brightness": Strength(ops.change_brightness, most=0.99, signed=True, around=1),
    "color": Strength(ops.change_color, most=0.99, signed=True, around=1),
    "contrast": Strength(ops.change_contrast, most=0.99, signed=True, around=1),
    "sharpness": Strength(ops.change_sharpness, most=0.99, signed=True, around=1),
    "posterize": Strength(ops.posterize, least=8, most=2),
    "solarize": Strength(ops.solarize, least=255, most=0),
    "autocontrast": Strength(ops.stretch_contrast),
    "equalize": Strength(ops.equalize),
}
TRIVIAL_LEVELS = 30


def augment_auto(images: Tensor) -> Tensor:
    """Return uint8 images changed by AutoAugment's policy for CIFAR-10."""
    names = list(AUTO)
    numbers = draw_rows(lambda count: torch.rand(count, 5), len(images))
    pairs = _choose(numbers[:, 0], len(CIFAR_POLICY))
    for place in range(2):
        chosen = [CIFAR_POLICY[pair][place] for pair in pairs.tolist()]
        kinds = torch.tensor([names.index(name) for name, _, _ in chosen])
        chances = torch.tensor([chance for _, chance, _ in chosen])
        levels = torch.tensor([level for _, _, level in chosen]).double() / AUTO_LEVELS
        signs = _sign(numbers[:, 2 + 2 * place])
        kinds[numbers[:, 1 + 2 * place] >= chances] = -1
        images = _apply_each(list(AUTO.values()), images, kinds, levels, signs, GRAY)
    return images


def augment_trivially(images: Tensor) -> Tensor:
    """Return uint8 images changed by TrivialAugmentWide."""
    numbers = draw_rows(lambda count: torch.rand(count, 3), len(images))
    kinds = _choose(numbers[:, 0], len(TRIVIAL))
    levels = _choose(numbers[:, 1], TRIVIAL_LEVELS + 1).double() / TRIVIAL_LEVELS
    signs = _sign(numbers[:, 2])
    return _apply_each(list(TRIVIAL.values()), images, kinds, levels, signs, BLACK)


def cut_out_squares(images: Tensor, side: int) -> Tensor:
    """Return images with a black square of that side around a random pixel of each."""
    height, width = images.shape[-2:]
    numbers = draw_rows(lambda count: torch.rand(count, 2), len(images))
    rows = _choose(numbers[:, 0], height)
    columns = _choose(numbers[:, 1], width)
    return ops.cut_out(images, rows, columns, side)


# by the name that the option `augmentation` has for them; `plain` is none
POLICIES: dict[str, Callable[[Tensor], Tensor]] = {
    "auto": augment_auto,
    "trivial": augment_trivially,
}


def _apply_each(
    strengths: list[Strength],
    images: Tensor,
    kinds: Tensor,
    levels: Tensor,
    signs: Tensor,
    fill: int,
) -> Tensor:
    """Return images, each changed by the operation of its kind; -1 leaves it as it is."""
    changed = images.clone()
    for kind in kinds.unique().tolist():
        if kind < 0:
            continue
        rows = (kinds == kind).nonzero().squeeze(1)
        changed[rows] = strengths[kind].apply(images[rows], levels[rows], signs[rows], fill)
    return changed


def _choose(uniform: Tensor, count: int) -> Tensor:
    """Return whole numbers below `count` by numbers in [0, 1)."""
    return (uniform.double() * count).long()


def _sign(uniform: Tensor) -> Tensor:
    return torch.where(uniform < 0.5, -1.0, 1.0).double()
