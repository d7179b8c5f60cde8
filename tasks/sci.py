"""Science in words: diagrams, textbooks and maps.

Kembhavi et al., AI2D, ECCV 2016, https://arxiv.org/abs/1603.07396; TQA, MapQA and SciVerse

A task of MLLM-DCL (Zhao et al., 2025, https://arxiv.org/abs/2506.05453).

Files    Domain_data/Sci/{train,test}.json, images in the same folder
Prompt   {question} A.Eagle B. ... Answer with the option's letter ..., or of maps Be succinct.
Answer   a letter, or names
Score    exact, and the form of the accepted answer; with compat dcl, letters exactly, of lists the
         share that is named, else contained (the public script tells them by names of images)
Chance   0: how many options a question has is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import DomainTask, list_domain_places, make_domain_recipe
from mcit.task import Recipe


@dataclass(frozen=True)
class Sci(DomainTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")
    recipe: Recipe = make_domain_recipe(epochs=2)

    name = "sci"
    places: ClassVar = list_domain_places("Sci")
    chance = 0.0
    form = "reference"
    rule = "list"
