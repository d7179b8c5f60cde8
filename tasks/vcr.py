"""VCR: which of four answers to a question about people and things in an image is right, or which reason for it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import datasets
from PIL import Image

from mcit.data.annotated import AnnotatedTask, Row, stack_labels
from mcit.data.boxes import draw_boxes, speak
from mcit.data.images import ImageFolder, open_image, stays_inside, whole_name
from mcit.data.records import Record, read_json, shorten
from mcit.task import Batch, DataError, Head, Recipe

RECIPE = Recipe(epochs=10, batch_size=16, learning_rate=1e-4, weight_decay=1e-2)
CHOICES = 4


@dataclass(frozen=True)
class Vcr(AnnotatedTask):
    """Question to answer; with `rationale`, question and right answer to rationale.

    The boxes of the objects that are spoken of are drawn as an image is opened; `drawn` takes images in
    vcr/drawn_images/bbox/ that have them already.
    """

    root: Path | None = None
    recipe: Recipe = RECIPE
    rationale: bool = False
    drawn: bool = False

    name = "vcr"
    chance = 25.0
    head = Head("vcr", outputs=CHOICES, kind="choice", layout="linear", views=CHOICES)
    source = "unpack VCR's annotations in vcr/annotation/ and its images with their metadata in vcr/vcr1images/"
    splits: ClassVar = {"train": "train", "eval": "val"}
    features: ClassVar = {
        "id": datasets.Value("string"),
        "image": datasets.Value("string"),
        "metadata": datasets.Value("string"),
        "objects": datasets.Sequence(datasets.Value("string")),
        "mentioned": datasets.Sequence(datasets.Value("int64")),
        "question": datasets.Value("string"),
        "choices": datasets.Sequence(datasets.Value("string"), length=CHOICES),
        "label": datasets.Value("int64"),
    }

    @property
    def image_columns(self) -> tuple[str, ...]:
        return ("image",) if self.drawn else ("image", "metadata")

    def options(self) -> Mapping[str, Any]:
        return {"rationale": self.rationale, "drawn": self.drawn}

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("vcr", "annotation", f"{split}.jsonl"),)

    def folder(self, split: str) -> ImageFolder:
        if not self.drawn:
            return ImageFolder.listed(self.path("vcr", "vcr1images"), whole_name, self.source)
        folder = self.path("vcr", "drawn_images", "bbox", split)
        # the program that draws them and the one that made the benchmark call the folders differently
        names = ("qar", "rationale") if self.rationale else ("qa", "answer")
        path = next((folder / name for name in names if (folder / name).is_dir()), folder / names[0])
        return ImageFolder.listed(path, whole_name, "draw the images there, or set tasks.vcr.drawn=false")

    def reader(self, split: str) -> Callable[[Record], Row]:
        return self._read

    def open(self, row: Row, images: ImageFolder) -> Row:
        image = open_image(images.find(row["image"]))
        if not self.drawn:
            image = _mark(image, row, images.find(row["metadata"]))
        return {"image": image, "question": row["question"], "choices": row["choices"], "label": row["label"]}

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        # as pairs, so that a text that is too long loses words of the question and the choices stay different
        pairs = [(example["question"], choice) for example in examples for choice in example["choices"]]
        return {
            **processor.read_texts(pairs),
            **processor.read_images([example["image"] for example in examples]),
            "labels": stack_labels(examples),
        }

    def _read(self, record: Record) -> Row:
        objects = record.get("objects", kind=list)
        if not all(isinstance(name, str) for name in objects):
            raise record.error(f"'objects' must be a list of class names, found {shorten(objects)}")
        question = _read_tokens(record, record.get("question", kind=list), objects)
        choices, label = _read_choices(record, "answer", objects)
        if self.rationale:
            question = question + choices[label]
            choices, label = _read_choices(record, "rationale", objects)
        identifier = record.get("annot_id", kind=str)
        if not stays_inside(identifier) or "/" in identifier:
            raise record.error(f"'annot_id' must be the name of a file, found {shorten(identifier)}")
        return {
            "id": identifier,
            "image": f"{identifier}.jpg" if self.drawn else _read_path(record, "img_fn"),
            "metadata": "" if self.drawn else _read_path(record, "metadata_fn"),
            "objects": objects,
            "mentioned": sorted({index for tokens in (question, *choices) for index in _tagged(tokens)}),
            "question": speak(question, objects),
            "choices": [speak(tokens, objects) for tokens in choices],
            "label": label,
        }


def _read_choices(record: Record, kind: str, objects: list[str]) -> tuple[list[list], int]:
    choices, label = record.get(f"{kind}_choices", kind=list), record.get(f"{kind}_label", kind=int)
    if len(choices) != CHOICES:
        raise record.error(f"'{kind}_choices' must hold {CHOICES} choices, found {len(choices)}")
    if not 0 <= label < CHOICES:
        raise record.error(f"'{kind}_label' must be from 0 to {CHOICES - 1}, found {label}")
    return [_read_tokens(record, tokens, objects) for tokens in choices], label


def _read_tokens(record: Record, tokens: Any, objects: list[str]) -> list[str | list[int]]:
    """Words, and lists of objects; a bare index is a list of one."""
    if not isinstance(tokens, list):
        raise record.error(f"a sentence must be a list of tokens, found {shorten(tokens)}")
    tokens = [[token] if type(token) is int else token for token in tokens]
    for token in tokens:
        tag = token if isinstance(token, list) else []
        if not isinstance(token, (str, list)) or not all(type(i) is int and 0 <= i < len(objects) for i in tag):
            raise record.error(f"a token must be a word or a list of indices below {len(objects)}, found {token!r}")
    return tokens


def _tagged(tokens: Iterable[str | list[int]]) -> Iterable[int]:
    return (index for token in tokens if isinstance(token, list) for index in token)


def _read_path(record: Record, name: str) -> str:
    path = record.get(name, kind=str)
    if not stays_inside(path):
        raise record.error(f"{name!r} must be a path inside the image folder, found {shorten(path)}")
    return str(PurePosixPath(path))


def _mark(image: Image.Image, row: Row, path: Path) -> Image.Image:
    metadata = read_json(path)
    boxes = metadata.get("boxes") if isinstance(metadata, dict) else None
    if not isinstance(boxes, list) or len(boxes) != len(row["objects"]):
        found = len(boxes) if isinstance(boxes, list) else "none"
        raise DataError(f"{path} must have 'boxes', one for each of {len(row['objects'])} objects, found {found}")
    for index in row["mentioned"]:
        box = boxes[index]
        if not isinstance(box, list) or len(box) < 4 or not all(isinstance(side, (int, float)) for side in box[:4]):
            raise DataError(f"{path}: box {index} must be [x1, y1, x2, y2, ...], found {shorten(box)}")
    size = metadata.get("width"), metadata.get("height")
    if not all(isinstance(side, (int, float)) and side > 0 for side in size):
        raise DataError(f"{path} must have the image's 'width' and 'height', found {size[0]!r} and {size[1]!r}")
    return draw_boxes(image, boxes, row["objects"], row["mentioned"], size)
