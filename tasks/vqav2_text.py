"""VQAv2 as CoIN has it: an open question about an image, answered by a word or phrase.

Goyal et al., Making the V in VQA matter, CVPR 2017, https://arxiv.org/abs/1612.00837

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/VQAv2/{train,val}.json, images under cl_dataset/
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase
Score    exact, against one answer as in CoIN's files; with compat coin, in any case.
         tasks/vqa_text.py scores the official files with ten answers
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places


@dataclass(frozen=True)
class Vqav2Text(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "vqav2-text"
    places: ClassVar = list_coin_places("VQAv2")
    test_files: ClassVar = ("val.json", "test.json")
    chance = 0.0
