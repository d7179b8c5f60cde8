"""Finance in words: questions about charts of prices.

Wang et al., FinVis-GPT, 2023, https://arxiv.org/abs/2308.01430

A task of MLLM-DCL (Zhao et al., 2025, https://arxiv.org/abs/2506.05453).

Files    Domain_data/Fin/{train,test}.json, images in the same folder
Prompt   Based on the candlestick chart, ... A. ... B. ..., or a question for yes or no
Answer   a letter, yes or no
Score    exact, and the form of the accepted answer; with compat dcl, without spaces and periods
Chance   0: how answers are spread is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import DomainTask, list_domain_places, make_domain_recipe
from mcit.task import Recipe


@dataclass(frozen=True)
class Fin(DomainTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")
    recipe: Recipe = make_domain_recipe(epochs=1)

    name = "fin"
    places: ClassVar = list_domain_places("Fin")
    chance = 0.0
    form = "reference"
