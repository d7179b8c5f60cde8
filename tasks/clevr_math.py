"""CLEVR-Math in words: arithmetic with the objects of a rendered scene.

Lindström and Abraham, CLEVR-Math, 2022, https://arxiv.org/abs/2208.05358

A task of UCIT (Guo et al., ACL 2025, https://arxiv.org/abs/2503.12941).

Files    UCIT/CLEVR-Math/{train,test}.json, images under UCIT/datasets/
Prompt   Subtract all spheres. How many objects are left? Answer the question using a single word or
         phrase.
Answer   a number
Score    exact; with compat ucit, in any case
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.config.options import option
from mcit.data.instruction_benchmarks import UcitTask, list_ucit_places


@dataclass(frozen=True)
class ClevrMath(UcitTask):
    """Files under any of the names that copies of the benchmark have."""

    scored_by: str = option("exact", help="the text metric")

    name = "clevr-math"
    places: ClassVar = list_ucit_places("CLEVR-Math", "CLEVR")
    chance = 0.0
