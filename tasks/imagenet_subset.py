"""ImageNet-Subset: 100 classes of ImageNet at 224x224, learned in parts.

Deng et al., ImageNet: A Large-Scale Hierarchical Image Database, CVPR 2009,
https://www.image-net.org; the subset goes back to Rebuffi et al., iCaRL, CVPR 2017,
https://arxiv.org/abs/1611.07725. Protocol: mcit/data/class_incremental.py.

Images    732 to 1,300 of each class for training, the 50 official validation images for testing
Splits    of the literature: 50+5x10, 50+10x5, 40+20x3, and 5x20, 10x10, 20x5
Training  random box resized to 224x224, flip; scored on the middle of images resized to 256
Network   ResNet-18 with ImageNet's stem for equal splits and PODNet's for a big start

Two lists of 100 classes circulate under this name; both are in mcit/data/imagenet_subset.json, and
a folder that holds exactly 100 classes is taken as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from PIL import Image
from torch import Tensor

from mcit.config.options import option
from mcit.data.augment import draw_flips, flip
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import (
    ImageFiles,
    cut_centers,
    open_random_boxes,
    read_imagenet_subset,
)
from mcit.data.images import open_image
from mcit.data.problems import OnBad


@dataclass(frozen=True)
class ImageNetSubset(ClassIncrementalTask):
    """Files: train/ and val/ with a folder per class id."""

    class_list: Literal["s1993", "permutation"] | None = option(
        None, help="a published list of 100 classes; needed with the whole of ImageNet"
    )

    dataset = "imagenet_subset"
    class_count = 100
    # of training images there are as many as the list of classes has it
    sizes: ClassVar = {"eval": 5000}
    home = "imagenet_subset"
    page = "https://image-net.org/download.php"
    equal_stem = "imagenet"
    big_start_stem = "podnet"
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def read_images(self, split: str, kept: Sequence[int], on_bad: OnBad) -> ImageFiles:
        return read_imagenet_subset(self.root, split, kept, self.class_list, on_bad)

    def count_labels(self, split: str) -> Counter[int]:
        listed = read_imagenet_subset(self.root, split, range(self.class_count), self.class_list)
        return Counter(listed.labels.tolist())

    def augment(self, images: Sequence[Path]) -> Tensor:
        boxes = open_random_boxes(images, size=224)
        return flip(boxes, draw_flips(len(boxes)))

    def eval_transform(self, images: Sequence[Path]) -> Tensor:
        return self.transform_images(map(open_image, images))

    def transform_images(self, images: Iterable[Image.Image]) -> Tensor:
        return cut_centers(images, resize=256, size=224)
