"""Small drawings in 20 classes: a form, a fill and a family of colors each."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

SIDE = 32
PER_CLASS = {"train": 200, "eval": 50}
# of the drawings; no option, so that results compare
_SEED = 20
# turns of the color wheel, red at 0
_HUES = {"warm": (-0.06, 0.16), "cool": (0.45, 0.70)}
_FILLS = ("plain", "striped")
_FORMS = ("disc", "square", "triangle", "ring", "cross")
CLASS_NAMES = tuple(" ".join(words) for words in product(_HUES, _FILLS, _FORMS))


def draw_shapes(split: str) -> tuple[Tensor, Tensor]:
    """Return the images of a split, uint8 [images, 3, 32, 32], and labels in CLASS_NAMES."""
    count = PER_CLASS[split]
    images = [_draw_class(label, split, count) for label in range(len(CLASS_NAMES))]
    labels = torch.arange(len(CLASS_NAMES)).repeat_interleave(count)
    return torch.from_numpy(np.concatenate(images)), labels


def _draw_class(label: int, split: str, count: int) -> np.ndarray:
    family, fill, form = CLASS_NAMES[label].split()
    random = np.random.default_rng([_SEED, label, list(PER_CLASS).index(split)])
    u, v, radius = _place(random, count)
    distance = _measure(form, u, v) * radius
    # [images, 1, side, side], soft at the edge
    cover = np.clip(0.5 - distance * SIDE / 2, 0, 1)[:, None]
    paint = _draw_colors(random, count, _HUES[family], saturation=(0.35, 1.0), value=(0.45, 1.0))
    if fill == "striped":
        paint = paint * _draw_stripes(random, count, u, v)[:, None]
    ground = _draw_colors(random, count, (0.0, 1.0), saturation=(0.0, 0.6), value=(0.15, 0.9))
    ground = ground * _draw_shade(random, count)
    # [images, 3, side, side]
    picture = cover * paint + (1 - cover) * ground
    picture = picture + random.normal(0, 0.05, picture.shape)
    return np.clip(np.rint(255 * picture), 0, 255).astype(np.uint8)


def _measure(form: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return how far points lie outside the form, negative inside; a form has about radius 1."""
    if form == "disc":
        return np.hypot(u, v) - 0.88
    if form == "square":
        return np.maximum(np.abs(u), np.abs(v)) - 0.78
    if form == "triangle":
        return np.maximum(np.abs(u) * 0.866 + v * 0.5, -v) - 0.52
    if form == "ring":
        return np.abs(np.hypot(u, v) - 0.7) - 0.22
    across = np.maximum(np.abs(u) - 0.95, np.abs(v) - 0.3)
    down = np.maximum(np.abs(u) - 0.3, np.abs(v) - 0.95)
    return np.minimum(across, down)


def _place(random: Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pixels' coordinates in a frame that is moved and turned, and the form's radius."""
    y, x = _grid()
    center_x, center_y = random.uniform(-0.25, 0.25, (2, count, 1, 1))
    radius = random.uniform(0.5, 0.8, (count, 1, 1))
    angle = random.uniform(0, 2 * np.pi, (count, 1, 1))
    x = (x - center_x) / radius
    y = (y - center_y) / radius
    u = x * np.cos(angle) + y * np.sin(angle)
    v = y * np.cos(angle) - x * np.sin(angle)
    return u, v, radius


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of pixels from -1 to 1, as a column and as a row."""
    steps = (np.arange(SIDE) + 0.5) * 2 / SIDE - 1
    return steps[:, None], steps[None, :]


def _draw_stripes(random: Generator, count: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return 1 on one half of the stripes, less on the other."""
    numbers = random.uniform([[0.0], [5.0], [0.3]], [[6.28], [9.0], [0.6]], (3, count))
    phase, frequency, dark = numbers[..., None, None]
    return np.where(np.sin(frequency * (u + 0.3 * v) + phase) > 0, 1.0, dark)


def _draw_shade(random: Generator, count: int) -> np.ndarray:
    """Return a gradient across the ground, [images, 1, side, side]."""
    y, x = _grid()
    slope_x, slope_y = random.uniform(-0.4, 0.4, (2, count, 1, 1))
    return (1 + slope_x * x + slope_y * y)[:, None]


def _draw_colors(
    random: Generator,
    count: int,
    hue: tuple[float, float],
    saturation: tuple[float, float],
    value: tuple[float, float],
) -> np.ndarray:
    """Return a random color for each image, [images, 3, 1, 1]."""
    bounds = np.array([hue, saturation, value])
    h, s, v = random.uniform(bounds[:, :1], bounds[:, 1:], (3, count))[:, :, None]
    # red, green and blue peak a third of a turn apart
    turns = (np.array([5, 3, 1]) + 6 * h) % 6
    return (v - v * s * np.clip(np.minimum(turns, 4 - turns), 0, 1))[:, :, None, None]
