"""SNLI-VE: does an image entail a hypothesis, contradict it, or neither?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets

from mcit.data.annotated import AnnotatedTask, Row, stack_labels
from mcit.data.images import ImageFolder, open_image, stem
from mcit.data.records import Record, shorten
from mcit.task import Batch, Head, Recipe

RECIPE = Recipe(epochs=5, batch_size=64, learning_rate=5e-5, weight_decay=1e-2)
LABELS = {"entailment": 0, "contradiction": 1, "neutral": 2}


@dataclass(frozen=True)
class SnliVe(AnnotatedTask):
    """The hypothesis alone is read, never the caption it was written from; `eval` is the dev split."""

    root: Path | None = None
    recipe: Recipe = RECIPE

    name = "snli-ve"
    chance = 33.33
    head = Head("snli-ve", outputs=3, kind="class", layout="mlp")
    source = "put snli_ve_{train,dev,test}.jsonl in snli-ve/ and Flickr30k's images in flickr30k/flickr30k_images/"
    splits: ClassVar = {"train": "train", "eval": "dev", "test": "test"}
    features: ClassVar = {
        "id": datasets.Value("string"),
        "image": datasets.Value("string"),
        "hypothesis": datasets.Value("string"),
        "label": datasets.Value("int64"),
    }

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("snli-ve", f"snli_ve_{split}.jsonl"),)

    def folder(self, split: str) -> ImageFolder:
        return ImageFolder.listed(self.path("flickr30k", "flickr30k_images"), stem, self.source)

    def reader(self, split: str) -> Callable[[Record], Row | None]:
        return _read

    def open(self, row: Row, images: ImageFolder) -> Row:
        return {"image": open_image(images.find(row["image"])), "text": row["hypothesis"], "label": row["label"]}

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
        raise record.error(f"'gold_label' must be one of {', '.join(LABELS)}, found {shorten(label)}")
    image = str(record.get("Flickr30K_ID", "Flikr30kID", kind=(str, int))).removesuffix(".jpg")
    if not re.fullmatch(r"[\w-]+", image):
        raise record.error(f"the Flickr30k id must be the name of an image in the folder, found {shorten(image)}")
    return {
        "id": record.get("pairID", kind=str) if "pairID" in record.fields else str(record.number),
        "image": image,
        "hypothesis": record.get("sentence2", kind=str),
        "label": LABELS[label],
    }
