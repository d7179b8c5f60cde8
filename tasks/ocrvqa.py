"""OCR-VQA in words: questions about the covers of books.

Mishra et al., OCR-VQA, ICDAR 2019, https://doi.org/10.1109/ICDAR.2019.00156

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/OCRVQA/{train,test}.json, images under cl_dataset/
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase
Score    exact; with compat coin, in any case, and wrong if it says Unanswerable
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places


@dataclass(frozen=True)
class Ocrvqa(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "ocrvqa"
    places: ClassVar = list_coin_places("OCRVQA", "OCR-VQA")
    chance = 0.0
    rule = "answerable"
