"""ImageNet in words: the name of what an image shows.

Deng et al., ImageNet, CVPR 2009, https://doi.org/10.1109/CVPR.2009.5206848

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/ImageNet/{train,test}.json, images under cl_dataset/
Prompt   What is the object in the image? Answer the question using a single word or phrase.
Answer   the name of the class
Score    contained; with compat coin, one in the other as in eval_ImagetNet.py, where an empty
         prediction is right
Chance   0.1, one of a thousand classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places


@dataclass(frozen=True)
class ImagenetText(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("contained", help="the text metric")

    name = "imagenet-text"
    places: ClassVar = list_coin_places("ImageNet")
    chance = 0.1
