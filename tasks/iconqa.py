"""IconQA in words: questions about abstract diagrams.

Lu et al., IconQA, NeurIPS 2021, https://arxiv.org/abs/2110.13214

A task of UCIT (Guo et al., ACL 2025, https://arxiv.org/abs/2503.12941).

Files    UCIT/IconQA/{train,test}.json, images under UCIT/datasets/
Prompt   How many squares are there? 0. 72 1. 71 2. 63 Answer with the option's letter ..., or a
         short answer
Answer   the number of the option, or a word
Score    exact, and the form of the accepted answer; with compat ucit, in any case
Chance   0: how many options a question has is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import UcitTask, list_ucit_places


@dataclass(frozen=True)
class IconQa(UcitTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "iconqa"
    places: ClassVar = list_ucit_places("IconQA")
    chance = 0.0
    form = "reference"
