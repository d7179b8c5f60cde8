"""VizWiz in words: questions of blind people about photographs of theirs.

Gurari et al., VizWiz grand challenge, CVPR 2018, https://arxiv.org/abs/1802.08218

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/VizWiz/{train,val}.json, images under cl_dataset/
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase, or Unanswerable
Score    exact, against one answer as in CoIN's files; with compat coin, in any case
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places


@dataclass(frozen=True)
class Vizwiz(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "vizwiz"
    places: ClassVar = list_coin_places("VizWiz")
    test_files: ClassVar = ("val.json", "test.json")
    chance = 0.0
