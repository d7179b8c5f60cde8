"""Autonomous driving in words: questions about what the cameras of a car see.

Sima et al., DriveLM, ECCV 2024, https://arxiv.org/abs/2312.14150

A task of MLLM-DCL (Zhao et al., 2025, https://arxiv.org/abs/2506.05453).

Files    Domain_data/AD/{train,test}.json, images in the same folder
Prompt   {question} Objects are encoded using <c,CAM,[cx,cy]> ...
Answer   a phrase or sentence
Score    contained, and the form of the accepted answer; with compat dcl, as eval_ai2d.py looks
         for it
Chance   0: how answers are spread is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import DomainTask, list_domain_places, make_domain_recipe
from mcit.task import Recipe


@dataclass(frozen=True)
class Ad(DomainTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("contained", help="the text metric")
    recipe: Recipe = make_domain_recipe(epochs=1)

    name = "ad"
    places: ClassVar = list_domain_places("AD")
    chance = 0.0
    form = "reference"
