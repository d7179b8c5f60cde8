"""ImageNet-Subset: 100 classes of ImageNet at 224x224."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mcit.data.augment import draw_flips, flip
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import ImageFiles, read_imagenet_subset


@dataclass(frozen=True)
class ImageNetSubset(ClassIncrementalTask):
    """Folders train/ and val/ by class id under `root`: the 100 that are there, or those of a published list."""

    class_list: Literal["s1993", "permutation"] | None = None

    dataset = "imagenet_subset"
    class_count = 100
    sizes: ClassVar = {
        "eval": 5000
    }  # of training images there are 732 to 1300 in a class, as the list has it
    home = "imagenet_subset"
    page = "https://image-net.org/download.php"
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    @property
    def stem(self) -> str:
        return "imagenet" if self.part.equal else "podnet"

    def read_images(self, split: str, kept: Sequence[int]) -> ImageFiles:
        return read_imagenet_subset(
            self.root, split, kept, self.class_list, on_bad=self.on_bad(split)
        )

    def count_labels(self, split: str) -> Counter[int]:
        listed = read_imagenet_subset(self.root, split, range(self.class_count), self.class_list)
        return Counter(listed.labels.tolist())

    def augment(self, pixels: Tensor) -> Tensor:
        return flip(
            pixels, draw_flips(len(pixels))
        )  # the random box was cut when the file was decoded
