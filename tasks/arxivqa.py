"""ArxivQA in words: questions about figures of papers, answered by a letter.

Li et al., Multimodal arXiv, ACL 2024, https://arxiv.org/abs/2403.00231

A task of UCIT (Guo et al., ACL 2025, https://arxiv.org/abs/2503.12941).

Files    UCIT/ArxivQA/{train,test}.json, images under UCIT/datasets/
Prompt   {question} A) ... B) ... Rationale: ... Answer with the option's letter from the given
         choices directly. The rationale may give the answer away: look at the zero-shot scores
Answer   the letter
Score    letters; with compat ucit, equality in any case
Chance   25, one of four letters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import UcitTask, list_ucit_places


@dataclass(frozen=True)
class Arxivqa(UcitTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("letter", help="the text metric")

    name = "arxivqa"
    places: ClassVar = list_ucit_places("ArxivQA")
    chance = 25.0
