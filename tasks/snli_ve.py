"""SNLI-VE: does an image entail a hypothesis, contradict it, or neither?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets

from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.bad_records import BadRecords, Policy
from mcit.data.images import stem
from mcit.data.records import Record, shorten
from mcit.task import Batch, Head, Recipe

RECIPE = Recipe(epochs=5, batch_size=64, learning_rate=5e-5, weight_decay=1e-2)
LABELS = {"entailment": 0, "contradiction": 1, "neutral": 2}


@dataclass(frozen=True)
class SnliVe(AnnotatedTask):
    """The hypothesis alone is read, never the caption it was written from; `eval` is the dev split."""

    root: Path | None = None
    recipe: Recipe = RECIPE
    on_bad_record: Policy = "fail"

    name = "snli-ve"
    embedded = True
    chance = 33.33
    head = Head("snli-ve", outputs=3, kind="class", layout="mlp")
    source = "put snli_ve_{train,dev,test}.jsonl in snli-ve/ and Flickr30k's images in flickr30k/flickr30k_images/"
    page = "https://github.com/necla-ml/SNLI-VE (images: https://shannon.cs.illinois.edu/DenotationGraph/)"
    archives: ClassVar = {
        "flickr30k-images.tar.gz": "flickr30k/flickr30k_images",
        "flickr30k-images.tar": "flickr30k/flickr30k_images",
        "flickr30k-images.zip": "flickr30k/flickr30k_images",
        "snli_ve.zip": "snli-ve",
    }
    splits: ClassVar = {"train": "train", "eval": "dev", "test": "test"}
    sizes: ClassVar = {"train": 529527, "dev": 17858, "test": 17901}
    image_key = staticmethod(stem)
    features: ClassVar = {
        "id": datasets.Value("string"),
        "image": datasets.Value("string"),
        "hypothesis": datasets.Value("string"),
        "label": datasets.Value("int64"),
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


def _read(record: Record) -> Row | None:
    label = record.get("gold_label", kind=str)
    if label == "-":
        return None  # its annotators did not agree
    if label not in LABELS:
        raise record.error(
            f"'gold_label' must be one of {', '.join(LABELS)}, found {shorten(label)}"
        )
    image = str(record.get("Flickr30K_ID", "Flikr30kID", kind=(str, int))).removesuffix(".jpg")
    if not re.fullmatch(r"[\w-]+", image):
        raise record.error(
            f"the Flickr30k id must be the name of an image in the folder, found {shorten(image)}"
        )
    return {
        "id": record.get("pairID", kind=str) if "pairID" in record.fields else str(record.number),
        "image": image,
        "hypothesis": record.get("sentence2", kind=str),
        "label": LABELS[label],
    }
