"""VQAv2 in words: an open question about an image, answered by a word or phrase.

The data and splits of tasks/vqa.py (Goyal et al., CVPR 2017, https://arxiv.org/abs/1612.00837).

Prompt   {question} Answer the question using a single word or phrase.
Answer   what most annotators said; there is no vocabulary of answers
Score    soft VQA accuracy
Chance   0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.config.options import option
from mcit.data.annotated import Row
from mcit.data.answers import ANNOTATORS
from mcit.data.instruction import RewordedTask


@dataclass(frozen=True)
class VqaText(RewordedTask):
    """The files of vqa."""

    scored_by: str = option("vqa", help="the text metric")
    instruction: str = option(
        "Answer the question using a single word or phrase.", help="text after the question"
    )

    name = "vqa-text"
    rewords = "vqa"
    embedded = True
    chance = 0.0

    def original_options(self) -> Mapping[str, Any]:
        # every answer counts, however rare
        return {"minimum": 1}

    def word(self, example: Mapping[str, Any]) -> Row:
        prompt = f"{example['text']}\n{self.instruction}"
        answers = list_votes(example["answers"])
        return {"images": [example["image"]], "prompt": prompt, "answers": answers}


def list_votes(scores: Mapping[str, float]) -> list[str]:
    """Return ten answers that have these soft scores, the most frequent first."""
    ranked = sorted(scores, key=lambda answer: -scores[answer])
    votes: list[str] = []
    for answer in ranked:
        # 0.3, 0.6 and 0.9 are one, two and three votes, 1 is four or more
        votes += [answer] * min(4, round(scores[answer] / 0.3))
    return [ranked[0]] * (ANNOTATORS - len(votes)) + votes
