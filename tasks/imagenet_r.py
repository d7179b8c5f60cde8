"""ImageNet-R in words: the name of what a drawing, sculpture or other rendition shows.

Hendrycks et al., The many faces of robustness, ICCV 2021, https://arxiv.org/abs/2006.16241

A task of UCIT (Guo et al., ACL 2025, https://arxiv.org/abs/2503.12941).

Files    UCIT/ImageNet-R/{train,test}.json, images under UCIT/datasets/
Prompt   What is the object in the image? Answer the question using a single word or phrase.
Answer   the name of the class
Score    exact; with compat ucit, in any case
Chance   0.5, one of 200 classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import UcitTask, list_ucit_places


@dataclass(frozen=True)
class ImagenetR(UcitTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "imagenet-r"
    places: ClassVar = list_ucit_places("ImageNet-R")
    chance = 0.5
