"""VCR's objects: how they are spoken of and how they are marked in the image."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw

_NAMES = (
    "Alex Robin Charlie Taylor Jordan Morgan Cameron Dana Drew Quinn Lee Kim Pat Terry Jamie Jean "
    "Leslie Ashley Blake Reese Rowan Sage Skyler Emery Finley Hayden Kendall Lane Marion Noel Parker Sam"
)
NAMES = tuple(_NAMES.split())
GREY = (145, 145, 145)
STYLE = 1  # counts the changes of what `draw_boxes` makes of the same image and boxes
_OUTLINE = 7  # pixels, where the image's shorter side has at least _FULL_SIZE
_FULL_SIZE = 720
_OPACITY = round(0.15 * 255)


def name_object(index: int, objects: Sequence[str]) -> str:
    """How a sentence calls an object: a person by a name that tells no gender, a thing by the grey of its box."""
    return NAMES[index % len(NAMES)] if objects[index] == "person" else f"the gray {objects[index]}"


def speak(tokens: Iterable[str | list[int]], objects: Sequence[str]) -> str:
    """Tokens as a sentence; each object of a tag is named."""
    words = (
        t if isinstance(t, str) else " and ".join(name_object(index, objects) for index in t)
        for t in tokens
    )
    return " ".join(words)


def colour_of(index: int, kind: str) -> tuple[int, int, int]:
    """The colour of an object's box: a person's depends on its index, everything else is grey."""
    if kind != "person":
        return GREY
    red, green, blue = colorsys.hsv_to_rgb(
        (index * 0.618034) % 1, 0.85, 0.95
    )  # the golden ratio keeps hues apart
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_boxes(
    image: Image.Image,
    boxes: Sequence[Sequence[float]],
    objects: Sequence[str],
    indices: Iterable[int],
    size: tuple[float, float],
) -> Image.Image:
    """A copy of the RGB image with the boxes of `indices` filled at 15 % and outlined.

    `boxes` are (x1, y1, x2, y2, ...) in an image of `size` (width, height); the image at hand may be smaller.
    """
    image = image.copy()
    pen = ImageDraw.Draw(image, "RGBA")
    outline = max(1, round(_OUTLINE * min(1.0, min(image.size) / _FULL_SIZE)))
    across, down = image.width / size[0], image.height / size[1]
    for index in indices:
        left, right = sorted(
            _clip(x * across, image.width) for x in (boxes[index][0], boxes[index][2])
        )
        top, bottom = sorted(
            _clip(y * down, image.height) for y in (boxes[index][1], boxes[index][3])
        )
        colour = colour_of(index, objects[index])
        pen.rectangle(
            (left, top, right, bottom), fill=(*colour, _OPACITY), outline=colour, width=outline
        )
    return image


def _clip(value: float, limit: int) -> int:
    return min(max(round(value), 0), limit - 1)
