"""Small drawings in 20 classes: a form, a fill and a family of colours each; generated, and always the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy
import torch
from numpy import ndarray
from torch import Tensor

SIDE = 32
PER_CLASS = {"train": 200, "eval": 50}
_SEED = 20  # of the drawings; no option, so that results compare
_HUES = {"warm": (-0.06, 0.16), "cool": (0.45, 0.70)}  # turns of the colour wheel, red at 0
_FILLS = ("plain", "striped")


def _ring(u: ndarray, v: ndarray) -> ndarray:
    return numpy.abs(numpy.hypot(u, v) - 0.7) - 0.22


def _cross(u: ndarray, v: ndarray) -> ndarray:
    u, v = numpy.abs(u), numpy.abs(v)
    return numpy.minimum(numpy.maximum(u - 0.95, v - 0.3), numpy.maximum(u - 0.3, v - 0.95))


# How far a point (u, v) lies outside the form, negative inside; a form has about radius 1.
_FORMS: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "disc": lambda u, v: numpy.hypot(u, v) - 0.88,
    "square": lambda u, v: numpy.maximum(numpy.abs(u), numpy.abs(v)) - 0.78,
    "triangle": lambda u, v: numpy.maximum(numpy.abs(u) * 0.866 + v * 0.5, -v) - 0.52,
    "ring": _ring,
    "cross": _cross,
}

CLASS_NAMES = tuple(" ".join(words) for words in product(_HUES, _FILLS, _FORMS))


def draw_shapes(split: str) -> tuple[Tensor, Tensor]:
    """All images of a split, uint8 [images, 3, 32, 32], and their labels: positions in CLASS_NAMES."""
    count = PER_CLASS[split]
    images = [_draw_class(label, split, count) for label in range(len(CLASS_NAMES))]
    labels = torch.arange(len(CLASS_NAMES)).repeat_interleave(count)
    return torch.from_numpy(numpy.concatenate(images)), labels


def _draw_class(label: int, split: str, count: int) -> ndarray:
    family, fill, form = CLASS_NAMES[label].split()
    random = numpy.random.default_rng([_SEED, label, list(PER_CLASS).index(split)])
    u, v, radius = _place(random, count)
    distance = _FORMS[form](u, v) * radius
    cover = numpy.clip(0.5 - distance * SIDE / 2, 0, 1)[
        :, None
    ]  # [images, 1, side, side], soft at the edge
    paint = _colors(random, count, _HUES[family], saturation=(0.35, 1.0), value=(0.45, 1.0))
    if fill == "striped":
        paint = paint * _stripes(random, count, u, v)[:, None]
    ground = _colors(random, count, (0.0, 1.0), saturation=(0.0, 0.6), value=(0.15, 0.9)) * _shade(
        random, count
    )
    picture = cover * paint + (1 - cover) * ground  # [images, 3, side, side]
    picture = picture + random.normal(0, 0.05, picture.shape)
    return numpy.clip(numpy.rint(255 * picture), 0, 255).astype(numpy.uint8)


def _place(random: numpy.random.Generator, count: int) -> tuple[ndarray, ndarray, ndarray]:
    """Every pixel's coordinates in the form's own frame, which is moved, turned and scaled at random."""
    y, x = _grid()
    center_x, center_y = random.uniform(-0.25, 0.25, (2, count, 1, 1))
    radius = random.uniform(0.5, 0.8, (count, 1, 1))
    angle = random.uniform(0, 2 * numpy.pi, (count, 1, 1))
    x, y = (x - center_x) / radius, (y - center_y) / radius
    return (
        x * numpy.cos(angle) + y * numpy.sin(angle),
        y * numpy.cos(angle) - x * numpy.sin(angle),
        radius,
    )


def _grid() -> tuple[ndarray, ndarray]:
    steps = (numpy.arange(SIDE) + 0.5) * 2 / SIDE - 1  # -1..1
    return steps[:, None], steps[None, :]


def _stripes(random: numpy.random.Generator, count: int, u: ndarray, v: ndarray) -> ndarray:
    """1 on one half of the stripes, darker on the other."""
    phase, frequency, dark = random.uniform([[0], [5], [0.3]], [[6.28], [9], [0.6]], (3, count))[
        ..., None, None
    ]
    return numpy.where(numpy.sin(frequency * (u + 0.3 * v) + phase) > 0, 1.0, dark)


def _shade(random: numpy.random.Generator, count: int) -> ndarray:
    """A gradient across the ground, [images, 1, side, side]."""
    y, x = _grid()
    slope_x, slope_y = random.uniform(-0.4, 0.4, (2, count, 1, 1))
    return (1 + slope_x * x + slope_y * y)[:, None]


def _colors(
    random: numpy.random.Generator,
    count: int,
    hue: tuple[float, float],
    saturation: tuple[float, float],
    value: tuple[float, float],
) -> ndarray:
    """A random colour for each image, [images, 3, 1, 1]."""
    bounds = numpy.array([hue, saturation, value])
    h, s, v = random.uniform(bounds[:, :1], bounds[:, 1:], (3, count))[:, :, None]
    turns = (numpy.array([5, 3, 1]) + 6 * h) % 6  # red, green and blue peak a third of a turn apart
    return (v - v * s * numpy.clip(numpy.minimum(turns, 4 - turns), 0, 1))[:, :, None, None]
