"""ScienceQA in words: questions of school science, some with an image, answered by a letter.

Lu et al., Learn to explain, NeurIPS 2022, https://arxiv.org/abs/2209.09513

A task of CoIN (Chen et al., NeurIPS 2024, https://arxiv.org/abs/2403.08350).

Files    Instructions_Original/ScienceQA/{train,test}.json, cl_dataset/ScienceQA/problems.json for
         the answers if the test has none, images under cl_dataset/
Prompt   {question} A. {choice} B. ... Answer with the option's letter from the given choices
         directly.
Answer   the letter
Score    letters; with compat coin, as eval_science_qa.py reads them
Chance   39.83, of a guess among the two to five choices (Lu et al., table 3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import CoinTask, list_coin_places
from mcit.errors import DataError

LETTERS = "ABCDE"


@dataclass(frozen=True)
class Scienceqa(CoinTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("letter", help="the text metric")

    name = "scienceqa"
    places: ClassVar = list_coin_places("ScienceQA")
    answer_files: ClassVar = ("cl_dataset/ScienceQA/problems.json", "ScienceQA/problems.json")
    chance = 39.83

    def load_answers(self, data: Any, path: Path) -> Mapping[str, list[str]]:
        """Return the letter and the text of the right choice, by problem."""
        try:
            return {
                str(key): [LETTERS[problem["answer"]], str(problem["choices"][problem["answer"]])]
                for key, problem in data.items()
            }
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise DataError(f"{path} does not hold the problems of ScienceQA: {error!r}") from None
