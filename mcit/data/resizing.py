"""The resizing of ViLT's image processor: one arithmetic for image files and the image cache.

Kim, Son and Kim, ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision,
ICML 2021, https://arxiv.org/abs/2102.03334. It stands among the data because the cache, which knows
no network, keeps images by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

# the longest side ViLT's processor allows, in units of the shortest
_LONGER = 1333 / 800
_NAME = re.compile(r"([1-9]\d*)-([1-9]\d*)-([a-z]+)")


@dataclass(frozen=True)
class Resizing:
    """The shorter side becomes `shorter`, the longer at most 1.67 times that.

    Both are cut to multiples of `divisor`. The defaults are those of ViLT-B/32.
    """

    shorter: int = 384
    divisor: int = 32
    resample: int = int(Image.Resampling.BICUBIC)

    @classmethod
    def from_name(cls, name: str) -> Resizing | None:
        """Return the resizing that has this name, or None."""
        match = _NAME.fullmatch(name)
        if match is None or match[3].upper() not in Image.Resampling.__members__:
            return None
        return cls(int(match[1]), int(match[2]), int(Image.Resampling[match[3].upper()]))

    @property
    def name(self) -> str:
        """Return the name of a folder that holds images of this size."""
        return f"{self.shorter}-{self.divisor}-{Image.Resampling(self.resample).name.lower()}"

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image of this size gets."""
        scale = self.shorter / min(width, height)
        # the side that becomes `shorter` is not multiplied, so that no rounding can touch it
        wide: float = self.shorter
        tall: float = self.shorter
        if height < width:
            wide = scale * width
        else:
            tall = scale * height
        limit = int(_LONGER * self.shorter)
        if max(wide, tall) > limit:
            scale = limit / max(wide, tall)
            wide *= scale
            tall *= scale
        return self._cut(wide), self._cut(tall)

    def read(self, image: Image.Image) -> np.ndarray:
        """Return the pixels of an RGB image once resized, uint8 [height, width, 3]."""
        return np.array(image.resize(self.fit(*image.size), resample=self.resample))

    def _cut(self, side: float) -> int:
        # a very long image would be rounded down to a side of nothing: it keeps one patch
        return max(int(side + 0.5) // self.divisor, 1) * self.divisor
