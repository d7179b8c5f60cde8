"""VCR in words: the letter of the right one of four answers.

The data and splits of tasks/vcr.py (Zellers et al., CVPR 2019, https://arxiv.org/abs/1811.10830).

Prompt   {question} A. {choice} B. {choice} C. {choice} D. {choice} Answer with the option's letter.
Chance   25, of whoever answers with one of the four letters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.config.options import option
from mcit.data.annotated import Row
from mcit.data.instruction import RewordedTask

LETTERS = "ABCD"


@dataclass(frozen=True)
class VcrText(RewordedTask):
    """The files of vcr."""

    scored_by: str = option("letter", help="the text metric")
    instruction: str = option(
        "Answer with the option's letter from the given choices directly.",
        help="text after the choices",
    )
    rationale: bool = option(
        False, help="ask for the rationale of the right answer instead of the answer"
    )
    drawn: bool = option(
        False, help="read images in vcr/drawn_images/bbox/ that have their boxes already"
    )

    name = "vcr-text"
    rewords = "vcr"
    embedded = True
    chance = 25.0

    def original_options(self) -> Mapping[str, Any]:
        return {"rationale": self.rationale, "drawn": self.drawn}

    def word(self, example: Mapping[str, Any]) -> Row:
        lines = [f"{example['question']} {example['given']}".strip()]
        for letter, choice in zip(LETTERS, example["choices"], strict=True):
            lines.append(f"{letter}. {choice}")
        lines.append(self.instruction)
        answer = LETTERS[example["label"]]
        return {"images": [example["image"]], "prompt": "\n".join(lines), "answers": [answer]}
