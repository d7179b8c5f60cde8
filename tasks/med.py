"""Pathology in words: questions about microscope images.

He et al., PathVQA, 2020, https://arxiv.org/abs/2003.10286

A task of MLLM-DCL (Zhao et al., 2025, https://arxiv.org/abs/2506.05453).

Files    Domain_data/Med/{train,test}.json, images in the same folder
Prompt   the question alone; when scored, followed by `test_instruction`, as in the public code
Answer   yes, no or a phrase
Score    contained; with compat dcl, anywhere, so that `no` is in `know`
Chance   0: how answers are spread is not known
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mcit.config.options import option
from mcit.data.annotated import Row
from mcit.data.instruction_benchmarks import DomainTask, list_domain_places, make_domain_recipe
from mcit.data.problems import BadRecords
from mcit.data.records import Record
from mcit.task import Recipe


@dataclass(frozen=True)
class Med(DomainTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("contained", help="the text metric")
    recipe: Recipe = make_domain_recipe(epochs=3)
    test_instruction: str = option(
        "Answer the question with a single word (or phrase).",
        help="text after each question of the test; empty: questions as they are",
    )

    name = "med"
    places: ClassVar = list_domain_places("Med")
    chance = 0.0
    rule = "anywhere"

    def table_options(self) -> Mapping[str, Any]:
        return {**super().table_options(), "test_instruction": self.test_instruction}

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        read = super().reader(split, bad)
        if split == "train" or not self.test_instruction:
            return read
        return lambda record: self._instruct(read(record))

    def _instruct(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        return {**row, "prompt": f"{row['prompt']} {self.test_instruction}"}
