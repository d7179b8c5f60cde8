"""SNLI-VE: does an image entail a hypothesis, contradict it, or neither?

Xie, Lai, Doran and Kadav, Visual Entailment: A Novel Task for Fine-Grained Image Understanding,
2019, https://arxiv.org/abs/1901.06706, on Flickr30k's images. Protocol of CLiMB (Srinivasan et al.,
NeurIPS 2022, https://arxiv.org/abs/2206.09059).

Splits   train 529,527 pairs; eval is dev, 17,858; test 17,901
Score    accuracy
Chance   33.33

The hypothesis alone is read, never the caption that it was written from. In a sample of its
maintainers about 9 % of the labels were wrong, most of them neutral; e-SNLI-VE (Do et al., 2020,
https://arxiv.org/abs/2004.03744) labels dev and test again. Differs from CLiMB: records whose
annotators did not agree (`-`) are left out here, not by whoever made the files, and ids of images
may be spelled in either of the two ways that circulate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.images import stem
from mcit.data.problems import BadRecords
from mcit.data.records import Record, shorten
from mcit.task import Batch, Head, Recipe

LABELS = {"entailment": 0, "contradiction": 1, "neutral": 2}


@dataclass(frozen=True)
class SnliVe(AnnotatedTask):
    """Files: snli-ve/snli_ve_{train,dev,test}.jsonl and flickr30k/flickr30k_images/."""

    recipe: Recipe = Recipe(epochs=5, batch_size=64, learning_rate=5e-5, weight_decay=1e-2)

    name = "snli-ve"
    embedded = True
    chance = 33.33
    head = Head("snli-ve", outputs=3, kind="class", layout="mlp")
    source = (
        "put snli_ve_{train,dev,test}.jsonl in snli-ve/ and Flickr30k's images in "
        "flickr30k/flickr30k_images/"
    )
    page = (
        "https://github.com/necla-ml/SNLI-VE "
        "(images: https://shannon.cs.illinois.edu/DenotationGraph/)"
    )
    archives: ClassVar = {
        "flickr30k-images.tar.gz": "flickr30k/flickr30k_images",
        "flickr30k-images.tar": "flickr30k/flickr30k_images",
        "flickr30k-images.zip": "flickr30k/flickr30k_images",
        "snli_ve.zip": "snli-ve",
    }
    splits: ClassVar = {"train": "train", "eval": "dev", "test": "test"}
    sizes: ClassVar = {"train": 529527, "dev": 17858, "test": 17901}
    image_key = staticmethod(stem)
    columns: ClassVar = {
        "id": "string",
        "image": "string",
        "hypothesis": "string",
        "label": "int64",
    }

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("snli-ve", f"snli_ve_{split}.jsonl"),)

    def image_place(self, split: str) -> tuple[str, ...]:
        return "flickr30k", "flickr30k_images"

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        return _read

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        return {"image": shown[0], "text": row["hypothesis"], "label": row["label"]}

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        return {
            **processor.read_texts([example["text"] for example in examples]),
            **processor.read_images([example["image"] for example in examples]),
            "labels": stack_labels(examples),
        }

    def output_names(self) -> list[str]:
        return list(LABELS)


def _read(record: Record) -> Row | None:
    label = record.get("gold_label", kind=str)
    # its annotators did not agree
    if label == "-":
        return None
    if label not in LABELS:
        listed = ", ".join(LABELS)
        raise record.error(f"'gold_label' must be one of {listed}, found {shorten(label)}")
    image = str(record.get("Flickr30K_ID", "Flikr30kID", kind=(str, int))).removesuffix(".jpg")
    if not re.fullmatch(r"[\w-]+", image):
        raise record.error(
            f"the Flickr30k id must be the name of an image in the folder, found {shorten(image)}"
        )
    identifier = str(record.number)
    if "pairID" in record.fields:
        identifier = record.get("pairID", kind=str)
    return {
        "id": identifier,
        "image": image,
        "hypothesis": record.get("sentence2", kind=str),
        "label": LABELS[label],
    }
