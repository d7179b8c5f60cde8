"""NLVR2: is a statement true of a pair of images?

Suhr, Zhou, Zhang, Zhang, Bai and Artzi, A Corpus for Reasoning About Natural Language Grounded in
Photographs, ACL 2019, https://arxiv.org/abs/1811.00491. Protocol of CLiMB (Srinivasan et al.,
NeurIPS 2022, https://arxiv.org/abs/2206.09059).

Splits   train 86,373 statements; eval is dev, 6,982; test is test1, 6,967
Score    accuracy; `consistency` is the share of statements that are judged right of all their pairs
Chance   50 (the larger class of dev has 50.86 %)

Differs from CLiMB: images may lie in sub-folders, as they are distributed; a label that is neither
True nor False is an error and not True; consistency, the official second metric, is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.images import file_name
from mcit.data.problems import BadRecords
from mcit.data.records import Record, shorten
from mcit.data.scores import PairAccuracy
from mcit.task import Batch, Head, Recipe

_LABELS = {"false": 0, "true": 1}


@dataclass(frozen=True)
class Nlvr2(AnnotatedTask):
    """Files: nlvr2/data/{train,dev,test1}.json and nlvr2/images/{train,dev,test1}/."""

    recipe: Recipe = Recipe(epochs=10, batch_size=32, learning_rate=1e-4, weight_decay=1e-2)

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
    shown_images = 2
    columns: ClassVar = {
        "id": "string",
        "left": "string",
        "right": "string",
        "sentence": "string",
        "group": "int64",
        "label": "int64",
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

    def metric_inputs(self, predicted: Tensor, batch: Batch) -> Mapping[str, Any]:
        return {**super().metric_inputs(predicted, batch), "groups": batch["groups"]}

    def metric(self) -> PairAccuracy:
        return PairAccuracy()

    def output_names(self) -> list[str]:
        return list(_LABELS)


def _read(record: Record, groups: dict[tuple[str, ...], int]) -> Row:
    identifier = record.get("identifier", kind=str)
    fields = identifier.split("-")
    if len(fields) != 4 or not all(re.fullmatch(r"\w+", field) for field in fields):
        found = shorten(identifier)
        raise record.error(f"'identifier' must read split-set-pair-sentence, found {found}")
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
