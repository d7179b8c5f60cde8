"""VCR's objects: how sentences name them and how they are marked in the image.

As MERLOT does (Zellers et al., MERLOT: Multimodal Neural Script Knowledge Models, NeurIPS 2021,
https://arxiv.org/abs/2106.02636): a person has a name without gender and a color by the object's
number, anything else is gray; boxes have a line of 7 pixels and are filled by 15 %. The names and
hues are our own.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw

_NAMES = (
    "Alex Robin Charlie Taylor Jordan Morgan Cameron Dana Drew Quinn Lee Kim Pat Terry Jamie Jean "
    "Leslie Ashley Blake Reese Rowan Sage Skyler Emery Finley Hayden Kendall Lane Marion Noel "
    "Parker Sam"
)
NAMES = tuple(_NAMES.split())
GRAY = (145, 145, 145)
# counts the changes of what `draw_boxes` makes of the same image and boxes
STYLE = 1
# pixels, if the image's shorter side has at least _FULL_SIZE
_OUTLINE = 7
_FULL_SIZE = 720
_OPACITY = round(0.15 * 255)


def name_object(index: int, objects: Sequence[str]) -> str:
    """Return how a sentence calls an object."""
    if objects[index] == "person":
        return NAMES[index % len(NAMES)]
    return f"the gray {objects[index]}"


def speak(tokens: Iterable[str | list[int]], objects: Sequence[str]) -> str:
    """Return tokens as a sentence; each object of a tag is named."""
    words = []
    for token in tokens:
        if isinstance(token, str):
            words.append(token)
        else:
            words.append(" and ".join(name_object(index, objects) for index in token))
    return " ".join(words)


def color_of(index: int, kind: str) -> tuple[int, int, int]:
    """Return the color of an object's box."""
    if kind != "person":
        return GRAY
    # the golden ratio keeps hues apart
    red, green, blue = colorsys.hsv_to_rgb((index * 0.618034) % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_boxes(
    image: Image.Image,
    boxes: Sequence[Sequence[float]],
    objects: Sequence[str],
    indices: Iterable[int],
    size: tuple[float, float],
) -> Image.Image:
    """Return a copy of the RGB image with the boxes of `indices` filled and outlined.

    `boxes` are (x1, y1, x2, y2, ...) in an image of `size` (width, height); this one may be
    smaller.
    """
    image = image.copy()
    pen = ImageDraw.Draw(image, "RGBA")
    outline = max(1, round(_OUTLINE * min(1.0, min(image.size) / _FULL_SIZE)))
    across = image.width / size[0]
    down = image.height / size[1]
    for index in indices:
        x1, y1, x2, y2 = boxes[index][:4]
        left, right = sorted(_clip(x * across, image.width) for x in (x1, x2))
        top, bottom = sorted(_clip(y * down, image.height) for y in (y1, y2))
        color = color_of(index, objects[index])
        fill = (*color, _OPACITY)
        pen.rectangle((left, top, right, bottom), fill=fill, outline=color, width=outline)
    return image


def _clip(value: float, limit: int) -> int:
    return min(max(round(value), 0), limit - 1)
