"""How ViLT's image processor resizes: the one arithmetic for images out of files and for the cache of resized ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

_LONGER = 1333 / 800  # the longest side ViLT's processor allows, in units of the shortest


@dataclass(frozen=True)
class Resizing:
    """The shorter side becomes `shorter`, the longer at most 1.67 times that, both cut to multiples of `divisor`.

    As it stands it is that of ViLT-B/32.
    """

    shorter: int = 384
    divisor: int = 32
    resample: int = int(Image.Resampling.BICUBIC)

    @property
    def name(self) -> str:
        """What a folder is called that holds images of this size."""
        return f"{self.shorter}-{self.divisor}-{Image.Resampling(self.resample).name.lower()}"

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """The width and height that an image of this size gets."""
        scale = self.shorter / min(width, height)
        # the side that becomes `shorter` is not multiplied, so that no rounding can touch it
        wide, tall = (
            (scale * width, self.shorter) if height < width else (self.shorter, scale * height)
        )
        limit = int(_LONGER * self.shorter)
        if max(wide, tall) > limit:
            scale = limit / max(wide, tall)
            wide, tall = scale * wide, scale * tall
        # A very long image would be rounded down to a side of nothing: it keeps one patch.
        wide, tall = (
            max(int(side + 0.5) // self.divisor, 1) * self.divisor for side in (wide, tall)
        )
        return wide, tall

    def read(self, image: Image.Image) -> np.ndarray:
        """The pixels of an RGB image once resized, uint8 [height, width, 3]."""
        return np.array(image.resize(self.fit(*image.size), resample=self.resample))


def parse_name(name: str) -> Resizing | None:
    """The resizing that has this name."""
    match = re.fullmatch(r"([1-9]\d*)-([1-9]\d*)-([a-z]+)", name)
    if match is None or match[3].upper() not in Image.Resampling.__members__:
        return None
    return Resizing(int(match[1]), int(match[2]), int(Image.Resampling[match[3].upper()]))
