"""Drawing scenes: 48 by 48 pixels, one 12-pixel cell per grid place, smooth edges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mcit.embedded.scenes import GRID, Item, Scene

# pixels
SIDE = 48
CELL = SIDE // GRID
# odd, so that a cell has a center
DIAMETERS = {"small": 7, "large": 11}
PAINT = {
    "red": (225, 45, 45),
    "green": (50, 175, 70),
    "blue": (55, 95, 240),
    "yellow": (245, 215, 50),
    "purple": (165, 70, 195),
    "white": (245, 245, 245),
}
_ANGLES = np.linspace(0, 2 * np.pi, 8, endpoint=False)
# x and y in thirds of the side, from the upper left corner clockwise
_CROSS = (
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
# corners in the unit square, y downwards, as the polygons of VCR's metadata
OUTLINES = {
    "circle": tuple((0.5 + 0.5 * np.cos(angle), 0.5 + 0.5 * np.sin(angle)) for angle in _ANGLES),
    "square": ((0.05, 0.05), (0.95, 0.05), (0.95, 0.95), (0.05, 0.95)),
    "triangle": ((0.5, 0.0), (1.0, 1.0), (0.0, 1.0)),
    "cross": tuple((x / 3, y / 3) for x, y in _CROSS),
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
    """Return which points of the unit square, y downwards, belong to the shape."""
    if shape == "circle":
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25
    if shape == "square":
        return (abs(x - 0.5) <= 0.45) & (abs(y - 0.5) <= 0.45)
    if shape == "triangle":
        return abs(x - 0.5) <= y / 2
    if shape == "cross":
        return (abs(x - 0.5) <= 1 / 6) | (abs(y - 0.5) <= 1 / 6)
    if shape == "person":
        # with a gap for the neck
        head = (x - 0.5) ** 2 + (y - 0.22) ** 2 <= 0.22**2
        shoulders = ((x - 0.5) / 0.5) ** 2 + ((y - 1.0) / 0.46) ** 2 <= 1
        return head | shoulders
    raise ValueError(f"unknown shape {shape!r}; shapes: {', '.join(OUTLINES)}")


@cache
def stamp(shape: str, size: str, oversampling: int = 8) -> np.ndarray:
    """Return how much of each pixel the shape covers, from 0 to 1, [diameter, diameter, 1]."""
    diameter = DIAMETERS[size]
    points = (np.arange(diameter * oversampling) + 0.5) / (diameter * oversampling)
    fine = covers(shape, points[None, :], points[:, None]).astype(np.float32)
    coverage = fine.reshape(diameter, oversampling, diameter, oversampling).mean(axis=(1, 3))
    return coverage[:, :, None]


def corner_of(item: Item) -> tuple[int, int]:
    """Return the pixel (x, y) of the object's upper left corner, inside of the image's edge."""
    diameter = DIAMETERS[item.size]
    margin = (CELL - diameter + 1) // 2
    row, column = item.cell
    x = column * CELL + margin + item.nudge[0]
    y = row * CELL + margin + item.nudge[1]
    most = SIDE - 1 - diameter
    return min(max(x, 1), most), min(max(y, 1), most)


def box_of(item: Item) -> tuple[int, int, int, int]:
    """Return the box x1, y1, x2, y2 in pixels: a line drawn along it touches the object nowhere."""
    x, y = corner_of(item)
    diameter = DIAMETERS[item.size]
    return x - 1, y - 1, x + diameter, y + diameter


def outline_of(item: Item) -> list[list[float]]:
    """Return the object's outline as a polygon in pixels."""
    x, y = corner_of(item)
    diameter = DIAMETERS[item.size]
    return [
        [round(x + across * diameter, 1), round(y + down * diameter, 1)]
        for across, down in OUTLINES[item.shape]
    ]


def draw(scene: Scene) -> np.ndarray:
    """Return the picture of a scene, bytes [48, 48, 3]."""
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
    """Return the picture as a PNG file, or as a JPEG file with colors at full resolution."""
    buffer = BytesIO()
    # quicker than fromarray
    image = Image.frombytes("RGB", (SIDE, SIDE), picture.tobytes())
    if suffix == ".png":
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=92, subsampling=0)
    return buffer.getvalue()


def save(scene: Scene, path: Path) -> None:
    """Write the picture of a scene, in the format that the suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(draw(scene), path.suffix))


def save_lines(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write records as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
