"""VCR: which of four answers to a question about people and things in an image is right, or which reason for it?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import datasets
from PIL import Image

from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.bad_records import BadRecords, Policy
from mcit.data.boxes import STYLE, draw_boxes, speak
from mcit.data.images import ImageFolder, Picture, stays_inside, whole_name
from mcit.data.records import BadRecord, Record, is_text, read_json, shorten
from mcit.task import Batch, DataError, Head, Recipe

RECIPE = Recipe(epochs=10, batch_size=16, learning_rate=1e-4, weight_decay=1e-2)
CHOICES = 4
_NO_BOXES = "boxes that do not fit"


@dataclass(frozen=True)
class MarkedPicture(Picture):
    """An image with the boxes of some objects drawn on it; in the cache it is kept as drawn."""

    metadata: Path
    objects: tuple[str, ...]
    mentioned: tuple[int, ...]

    @classmethod
    def of(cls, row: Row, images: ImageFolder) -> MarkedPicture:
        plain, objects, mentioned = (
            images.picture(row["image"]),
            tuple(row["objects"]),
            tuple(row["mentioned"]),
        )
        # questions about the same objects of an image share a picture
        marks = json.dumps([STYLE, len(objects), [(index, objects[index]) for index in mentioned]])
        digest = hashlib.blake2b(marks.encode(), digest_size=8).hexdigest()
        return cls(
            plain.path, f"{plain.name}#{digest}", images.find(row["metadata"]), objects, mentioned
        )

    @property
    def sources(self) -> tuple[Path, ...]:
        return self.path, self.metadata

    def open(self) -> Image.Image:
        image = super().open()
        boxes, size = self._read_boxes()
        return draw_boxes(image, boxes, self.objects, self.mentioned, size)

    def verify(self) -> None:
        super().verify()
        self._read_boxes()

    def _read_boxes(self) -> tuple[list, tuple[float, float]]:
        path = self.metadata
        try:
            metadata = read_json(path)
        except DataError as error:
            raise BadRecord(str(error), "metadata unreadable") from None
        boxes = metadata.get("boxes") if isinstance(metadata, dict) else None
        if not isinstance(boxes, list) or len(boxes) != len(self.objects):
            found = len(boxes) if isinstance(boxes, list) else "none"
            text = f"{path} must have 'boxes', one for each of {len(self.objects)} objects, found {found}"
            raise BadRecord(text, _NO_BOXES)
        for index in self.mentioned:
            box = boxes[index]
            if not isinstance(box, list) or len(box) < 4 or not all(map(_is_number, box[:4])):
                raise BadRecord(
                    f"{path}: box {index} must be [x1, y1, x2, y2, ...], found {shorten(box)}",
                    _NO_BOXES,
                )
        size = metadata.get("width"), metadata.get("height")
        if not all(_is_number(side) and side >= 1 for side in size):
            text = f"{path} must have the image's 'width' and 'height', found {shorten(size[0])} and {shorten(size[1])}"
            raise BadRecord(text, _NO_BOXES)
        return boxes, size


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
    on_bad_record: Policy = "fail"

    parser = 2
    name = "vcr"
    embedded = True
    chance = 25.0
    head = Head("vcr", outputs=CHOICES, kind="choice", layout="linear", views=CHOICES)
    page = "https://visualcommonsense.com/download/"
    archives: ClassVar = {"vcr1annots.zip": "vcr/annotation", "vcr1images.zip": "vcr/vcr1images"}
    splits: ClassVar = {"train": "train", "eval": "val"}
    sizes: ClassVar = {"train": 212923, "val": 26534}
    image_key = staticmethod(whole_name)
    features: ClassVar = {
        "id": datasets.Value("string"),
        "image": datasets.Value("string"),
        "metadata": datasets.Value("string"),
        "objects": datasets.Sequence(datasets.Value("string")),
        "mentioned": datasets.Sequence(datasets.Value("int64")),
        "question": datasets.Value("string"),
        "given": datasets.Value("string"),  # the right answer where its rationale is asked for
        "choices": datasets.Sequence(datasets.Value("string"), length=CHOICES),
        "label": datasets.Value("int64"),
    }

    @property
    def source(self) -> str:
        if self.drawn:
            return "draw the images in vcr/drawn_images/bbox/, or set tasks.vcr.drawn=false"
        return "unpack VCR's annotations in vcr/annotation/ and its images with their metadata in vcr/vcr1images/"

    @property
    def image_columns(self) -> tuple[str, ...]:
        return ("image",) if self.drawn else ("image", "metadata")

    @property
    def picture_columns(self) -> tuple[str, ...]:
        return ("image",) if self.drawn else ("image", "metadata", "objects", "mentioned")

    def options(self) -> Mapping[str, Any]:
        return {"rationale": self.rationale, "drawn": self.drawn}

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("vcr", "annotation", f"{split}.jsonl"),)

    def image_place(self, split: str) -> tuple[str, ...]:
        if not self.drawn:
            return "vcr", "vcr1images"
        names = ("vcr", "drawn_images", "bbox", split)
        # the program that draws them and the one that made the benchmark call the folders differently
        either = ("qar", "rationale") if self.rationale else ("qa", "answer")
        return *names, next(
            (name for name in either if self.path(*names, name).is_dir()), either[0]
        )

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row]:
        return self._read

    def pictures(self, row: Row, images: ImageFolder) -> tuple[Picture, ...]:
        return super().pictures(row, images) if self.drawn else (MarkedPicture.of(row, images),)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        return {
            "image": shown[0],
            **{name: row[name] for name in ("question", "given", "choices", "label")},
        }

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        # in parts, so that a text that is too long loses words of the question and the choices stay different
        parts = [
            (each["question"], each["given"], choice)
            for each in examples
            for choice in each["choices"]
        ]
        return {
            **processor.read_texts(parts),
            **processor.read_images([example["image"] for example in examples]),
            "labels": stack_labels(examples),
        }

    def _read(self, record: Record) -> Row:
        objects = record.get("objects", kind=list)
        if not all(isinstance(name, str) and is_text(name) for name in objects):
            raise record.error(f"'objects' must be a list of class names, found {shorten(objects)}")
        question, given = _read_tokens(record, record.get("question", kind=list), objects), []
        choices, label = _read_choices(record, "answer", objects)
        if self.rationale:
            given = choices[label]
            choices, label = _read_choices(record, "rationale", objects)
        identifier = record.get("annot_id", kind=str)
        if not stays_inside(identifier) or "/" in identifier:
            raise record.error(
                f"'annot_id' must be the name of a file, found {shorten(identifier)}"
            )
        return {
            "id": identifier,
            "image": f"{identifier}.jpg" if self.drawn else _read_path(record, "img_fn"),
            "metadata": "" if self.drawn else _read_path(record, "metadata_fn"),
            "objects": objects,
            "mentioned": sorted(
                {index for tokens in (question, given, *choices) for index in _tagged(tokens)}
            ),
            "question": speak(question, objects),
            "given": speak(given, objects),
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
        is_word = isinstance(token, str) and is_text(token)
        tag = token if isinstance(token, list) else [None]
        if not is_word and not all(
            type(index) is int and 0 <= index < len(objects) for index in tag
        ):
            text = f"a token must be a word or a list of indices below {len(objects)}, found {shorten(token)}"
            raise record.error(text, "a tag of no object")
    return tokens


def _tagged(tokens: Iterable[str | list[int]]) -> Iterable[int]:
    return (index for token in tokens if isinstance(token, list) for index in token)


def _read_path(record: Record, name: str) -> str:
    path = record.get(name, kind=str)
    if not stays_inside(path):
        raise record.error(
            f"{name!r} must be a path inside the image folder, found {shorten(path)}"
        )
    return str(PurePosixPath(path))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9
    )  # not NaN either
