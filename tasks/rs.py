"""Remote sensing in words: questions about pictures from above.

Lobry et al., RSVQA, 2020, https://arxiv.org/abs/2003.07333

A task of MLLM-DCL (Zhao et al., 2025, https://arxiv.org/abs/2506.05453).

Files    Domain_data/RS/{train,test}.json, images in the same folder
Prompt   {question} Answer the question using a single word or phrase.
Answer   a word or phrase
Score    contained; with compat dcl, as eval_ai2d.py looks for it
Chance   0: how answers are spread is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import DomainTask, list_domain_places, make_domain_recipe
from mcit.task import Recipe


@dataclass(frozen=True)
class Rs(DomainTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("contained", help="the text metric")
    recipe: Recipe = make_domain_recipe(epochs=1)

    name = "rs"
    places: ClassVar = list_domain_places("RS")
    chance = 0.0
