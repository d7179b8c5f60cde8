"""SNLI-VE in words: entailment, contradiction or neutral, as one of three words.

The data and splits of tasks/snli_ve.py (Xie et al., 2019, https://arxiv.org/abs/1901.06706).

Prompt   {hypothesis} Answer with entailment, neutral or contradiction.
Chance   33.33, of whoever answers with one of the three words
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.config.options import option
from mcit.data.annotated import Row
from mcit.data.instruction import RewordedTask

# by the labels of tasks/snli_ve.py
LABELS = ("entailment", "contradiction", "neutral")


@dataclass(frozen=True)
class SnliVeText(RewordedTask):
    """The files of snli-ve."""

    instruction: str = option(
        "Answer with entailment, neutral or contradiction.", help="text after the hypothesis"
    )

    name = "snli-ve-text"
    rewords = "snli-ve"
    embedded = True
    chance = 33.33

    def metric_options(self) -> Mapping[str, Any]:
        return {"choices": LABELS}

    def word(self, example: Mapping[str, Any]) -> Row:
        answer = LABELS[example["label"]]
        prompt = f"{example['text']}\n{self.instruction}"
        return {"images": [example["image"]], "prompt": prompt, "answers": [answer]}
