"""Drawing scenes: 48 by 48 pixels, one 12-pixel cell per grid place, smooth edges."""

from __future__ import annotations

from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image

from mcit.embedded.scenes import GRID, Item, Scene

SIDE = 48  # pixels
CELL = SIDE // GRID
DIAMETERS = {"small": 7, "large": 11}  # pixels; odd, so that a cell has a centre
PAINT = {
    "red": (225, 45, 45),
    "green": (50, 175, 70),
    "blue": (55, 95, 240),
    "yellow": (245, 215, 50),
    "purple": (165, 70, 195),
    "white": (245, 245, 245),
}
OUTLINES = {  # corners in the unit square, y downwards, as the polygons of VCR's metadata
    "circle": tuple(
        (0.5 + 0.5 * np.cos(a), 0.5 + 0.5 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 8, False)
    ),
    "square": ((0.05, 0.05), (0.95, 0.05), (0.95, 0.95), (0.05, 0.95)),
    "triangle": ((0.5, 0.0), (1.0, 1.0), (0.0, 1.0)),
    "cross": tuple(
        (x / 3, y / 3)
        for x, y in (
            (1, 0),
            (2, 0),
            (2, 1),
            (3, 1),
            (3, 2),
            (2, 2),
            (2, 3),
            (1, 3),
            (1, 2),
            (0, 2),
            (0, 1),
            (1, 1),
        )
    ),
    "person": (
        (0.3, 0.0),
        (0.7, 0.0),
        (0.7, 0.45),
        (1.0, 0.6),
        (1.0, 1.0),
        (0.0, 1.0),
        (0.0, 0.6),
        (0.3, 0.45),
    ),
}


def covers(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which points of the unit square, y downwards, belong to the shape."""
    if shape == "circle":
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25
    if shape == "square":
        return (abs(x - 0.5) <= 0.45) & (abs(y - 0.5) <= 0.45)
    if shape == "triangle":
        return abs(x - 0.5) <= y / 2
    if shape == "cross":
        return (abs(x - 0.5) <= 1 / 6) | (abs(y - 0.5) <= 1 / 6)
    if shape == "person":  # a head, a gap for the neck, shoulders
        head = (x - 0.5) ** 2 + (y - 0.22) ** 2 <= 0.22**2
        shoulders = ((x - 0.5) / 0.5) ** 2 + ((y - 1.0) / 0.46) ** 2 <= 1
        return head | shoulders
    raise ValueError(f"unknown shape {shape!r}; shapes: {', '.join(OUTLINES)}")


@cache
def stamp(shape: str, size: str, oversampling: int = 8) -> np.ndarray:
    """How much of each pixel the shape covers, from 0 to 1."""
    diameter = DIAMETERS[size]
    points = (np.arange(diameter * oversampling) + 0.5) / (diameter * oversampling)
    fine = covers(shape, points[None, :], points[:, None]).astype(np.float32)
    coverage = fine.reshape(diameter, oversampling, diameter, oversampling).mean(axis=(1, 3))
    return coverage[:, :, None]  # [diameter, diameter, 1]


def corner_of(item: Item) -> tuple[int, int]:
    """The pixel (x, y) of the object's upper left corner; at least one pixel inside the image."""
    diameter = DIAMETERS[item.size]
    row, column = item.cell
    x = column * CELL + (CELL - diameter + 1) // 2 + item.nudge[0]
    y = row * CELL + (CELL - diameter + 1) // 2 + item.nudge[1]
    return min(max(x, 1), SIDE - 1 - diameter), min(max(y, 1), SIDE - 1 - diameter)


def box_of(item: Item) -> tuple[int, int, int, int]:
    """The box x1, y1, x2, y2 around the object in pixels: a line drawn along it touches the object nowhere."""
    x, y = corner_of(item)
    return x - 1, y - 1, x + DIAMETERS[item.size], y + DIAMETERS[item.size]


def outline_of(item: Item) -> list[list[float]]:
    """The object's outline as a polygon in pixels."""
    x, y = corner_of(item)
    return [
        [round(x + a * DIAMETERS[item.size], 1), round(y + b * DIAMETERS[item.size], 1)]
        for a, b in OUTLINES[item.shape]
    ]


def draw(scene: Scene) -> np.ndarray:
    """The picture of a scene, bytes [48, 48, 3]."""
    canvas = np.full((SIDE, SIDE, 3), scene.background, dtype=np.float32)
    for item in scene.items:
        x, y = corner_of(item)
        diameter = DIAMETERS[item.size]
        coverage = stamp(item.shape, item.size)
        paint = np.asarray(PAINT[item.color], dtype=np.float32) * item.shade
        region = canvas[y : y + diameter, x : x + diameter]
        region += coverage * (paint - region)
    return (canvas + 0.5).astype(np.uint8)


def encode(picture: np.ndarray, suffix: str) -> bytes:
    """The picture as a PNG file, or as a JPEG file that keeps its colours at full resolution."""
    buffer = BytesIO()
    image = Image.frombytes("RGB", (SIDE, SIDE), picture.tobytes())  # quicker than fromarray
    if suffix == ".png":
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=92, subsampling=0)
    return buffer.getvalue()
