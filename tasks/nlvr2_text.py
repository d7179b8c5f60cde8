"""NLVR2 in words: is a statement true or false of two images?

The data and splits of tasks/nlvr2.py (Suhr et al., ACL 2019, https://arxiv.org/abs/1811.00491).

Prompt   {statement} Answer with true or false.
Chance   50, of whoever answers with one of the two words
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.config.options import option
from mcit.data.annotated import Row
from mcit.data.instruction import RewordedTask

# by the labels of tasks/nlvr2.py
LABELS = ("false", "true")


@dataclass(frozen=True)
class Nlvr2Text(RewordedTask):
    """The files of nlvr2."""

    instruction: str = option("Answer with true or false.", help="text after the statement")

    name = "nlvr2-text"
    rewords = "nlvr2"
    embedded = True
    chance = 50.0

    def metric_options(self) -> Mapping[str, Any]:
        return {"choices": LABELS}

    def word(self, example: Mapping[str, Any]) -> Row:
        answer = LABELS[example["label"]]
        prompt = f"{example['text']}\n{self.instruction}"
        return {"images": list(example["images"]), "prompt": prompt, "answers": [answer]}
