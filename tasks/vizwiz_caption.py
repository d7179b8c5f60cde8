"""VizWiz-Captions in words: what a photograph by a blind person shows.

Gurari et al., Captioning images taken by people who are blind, ECCV 2020,
https://arxiv.org/abs/2002.08565

A task of UCIT (Guo et al., ACL 2025, https://arxiv.org/abs/2503.12941).

Files    UCIT/VizWiz-caption/{train,test}.json, val_coco_type_3000.json, images under UCIT/datasets/
Prompt   What is happening in the image? Generate a brief caption for the image.
Answer   a sentence
Score    ROUGE-L; with compat ucit, the mean of BLEU-1 to 4, ROUGE-L and CIDEr-D (the public script
         has METEOR in it, which needs Java)
Chance   0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mcit.data.instruction_benchmarks import CaptionTask, list_ucit_places


@dataclass(frozen=True)
class VizwizCaption(CaptionTask):
    """Captions, scored against all accepted ones."""

    name = "vizwiz-caption"
    places: ClassVar = list_ucit_places("VizWiz-caption", "VizWiz")
