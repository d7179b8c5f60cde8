"""Referring expressions in words: the box of what a phrase describes.

Kazemzadeh et al., ReferItGame, EMNLP 2014, https://aclanthology.org/D14-1086
Mao et al., Generation and comprehension of unambiguous object descriptions, CVPR 2016,
https://arxiv.org/abs/1511.02283

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/Grounding/{train,test}.json, images under cl_dataset/
Prompt   Please provide the bounding box coordinate of the region this sentence describes: ...
Answer   [x1, y1, x2, y2], from 0 to 1 on the image padded to a square
Score    IoU above 0.5; with compat coin, as eval_grounding.py reads boxes, without the last digit
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places


@dataclass(frozen=True)
class Grounding(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("box", help="the text metric")

    name = "grounding"
    places: ClassVar = list_coin_places("Grounding")
    chance = 0.0
