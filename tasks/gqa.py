"""GQA in words: compositional questions about real images.

Hudson and Manning, GQA, CVPR 2019, https://arxiv.org/abs/1902.09506

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/GQA/{train,test}.json, images under cl_dataset/; if the test has no
         answers, cl_dataset/GQA/testdev_balanced_questions.json
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase
Score    exact; with compat coin, the prediction in lower case without final periods
Chance   0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places
from mcit.errors import DataError


@dataclass(frozen=True)
class Gqa(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "gqa"
    places: ClassVar = list_coin_places("GQA")
    answer_files: ClassVar = ("cl_dataset/GQA/testdev_balanced_questions.json",)
    chance = 0.0
    rule = "period"

    def load_answers(self, data: Any, path: Path) -> Mapping[str, list[str]]:
        """Return the answer of each question."""
        try:
            return {str(key): [str(question["answer"])] for key, question in data.items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"{path} does not hold the questions of GQA: {error!r}") from None
