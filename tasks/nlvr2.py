"""NLVR2: is a statement true of a pair of images?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
from torch import Tensor

from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.bad_records import BadRecords, Policy
from mcit.data.images import file_name
from mcit.data.records import Record, shorten
from mcit.data.scores import PairAccuracy
from mcit.task import Batch, Head, Recipe

RECIPE = Recipe(epochs=10, batch_size=32, learning_rate=1e-4, weight_decay=1e-2)
_LABELS = {"false": 0, "true": 1}


@dataclass(frozen=True)
class Nlvr2(AnnotatedTask):
    """Scored by accuracy; `consistency` is the share of statements that are judged right of all their pairs."""

    root: Path | None = None
    recipe: Recipe = RECIPE
    on_bad_record: Policy = "fail"

    name = "nlvr2"
    embedded = True
    chance = 50.0
    head = Head("nlvr2", outputs=2, kind="class", layout="mlp", views=2)
    source = (
        "unpack NLVR2's train, dev and test1 files in nlvr2/data/ and their images in nlvr2/images/"
    )
    page = "https://lil.nlp.cornell.edu/nlvr/"
    archives: ClassVar = {
        "train_img.zip": "nlvr2/images/train",
        "dev_img.zip": "nlvr2/images/dev",
        "test1_img.zip": "nlvr2/images/test1",
    }
    splits: ClassVar = {"train": "train", "eval": "dev", "test": "test1"}
    sizes: ClassVar = {"train": 86373, "dev": 6982, "test1": 6967}
    image_columns = ("left", "right")
    image_key = staticmethod(file_name)
    features: ClassVar = {
        "id": datasets.Value("string"),
        "left": datasets.Value("string"),
        "right": datasets.Value("string"),
        "sentence": datasets.Value("string"),
        "group": datasets.Value("int64"),
        "label": datasets.Value("int64"),
    }

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("nlvr2", "data", f"{split}.json"),)

    def image_place(self, split: str) -> tuple[str, ...]:
        return "nlvr2", "images", split

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row]:
        groups: dict[tuple[str, ...], int] = {}
        return lambda record: _read(record, groups)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        return {
            "images": list(shown),
            "text": row["sentence"],
            "group": row["group"],
            "label": row["label"],
        }

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        return {
            **processor.read_texts([example["text"] for example in examples]),
            **processor.read_images([image for example in examples for image in example["images"]]),
            "labels": stack_labels(examples),
            "groups": stack_labels(examples, "group"),
        }

    def columns(self, logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return {**super().columns(logits, batch), "groups": batch["groups"]}

    def metric(self) -> PairAccuracy:
        return PairAccuracy()


def _read(record: Record, groups: dict[tuple[str, ...], int]) -> Row:
    identifier = record.get("identifier", kind=str)
    fields = identifier.split("-")
    if len(fields) != 4 or not all(re.fullmatch(r"\w+", field) for field in fields):
        raise record.error(
            f"'identifier' must read split-set-pair-sentence, found {shorten(identifier)}"
        )
    label = record.get("label", kind=(str, bool))
    if str(label).lower() not in _LABELS:
        raise record.error(f"'label' must be True or False, found {shorten(label)}")
    # the official evaluation knows a sentence by its identifier without the number of the pair
    sentence = (*fields[:2], fields[3])
    pair = "-".join(fields[:3])
    return {
        "id": identifier,
        "left": f"{pair}-img0.png",
        "right": f"{pair}-img1.png",
        "sentence": record.get("sentence", kind=str),
        "group": groups.setdefault(sentence, len(groups)),
        "label": _LABELS[str(label).lower()],
    }
