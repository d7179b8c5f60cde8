"""TextVQA in words: questions about text in images.

Singh et al., Towards VQA models that can read, CVPR 2019, https://arxiv.org/abs/1904.08920

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/TextVQA/{train,test}.json, the ten answers of each question in
         cl_dataset/TextVQA/TextVQA_0.5.1_val.json, images under cl_dataset/
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase
Score    soft VQA accuracy with ten answers; with compat coin, as m4c_evaluator.py computes it
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
class Textvqa(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("vqa", help="the text metric")

    name = "textvqa"
    places: ClassVar = list_coin_places("TextVQA")
    answer_files: ClassVar = (
        "cl_dataset/TextVQA/TextVQA_0.5.1_val.json",
        "TextVQA/TextVQA_0.5.1_val.json",
    )
    chance = 0.0

    def load_answers(self, data: Any, path: Path) -> Mapping[str, list[str]]:
        """Return the answers of the annotators, by question."""
        try:
            return {
                str(entry["question_id"]): [str(answer) for answer in entry["answers"]]
                for entry in data["data"]
            }
        except (KeyError, TypeError) as error:
            raise DataError(f"{path} does not hold the questions of TextVQA: {error!r}") from None

    def data_notes(self, processor: Any) -> list[str]:
        return [*super().data_notes(processor), *self.doctor_notes()]

    def doctor_notes(self) -> list[str]:
        if self.find_answer_file() is not None:
            return []
        return [
            f"{self.name}: {self.answer_files[0]} is missing; answers are compared with the "
            f"test's own answer, not with those of ten annotators"
        ]
