"""VCR: which of four answers to a question about people and things in an image is right?

Zellers, Bisk, Farhadi and Choi, From Recognition to Cognition: Visual Commonsense Reasoning, CVPR
2019, https://arxiv.org/abs/1811.10830. Protocol of CLiMB (Srinivasan et al., NeurIPS 2022,
https://arxiv.org/abs/2206.09059).

Splits   train 212,923 questions; eval is val, 26,534; the test split has no labels
Score    accuracy of question to answer; with `rationale`, of question and right answer to rationale
Chance   25

Objects are named in the text and marked by boxes in the image (mcit/data/boxes.py). Differs from
CLiMB: boxes are drawn when an image is opened, from VCR's own images and metadata, where CLiMB
reads images that another program drew (`drawn` reads those); all objects of a tag are named, where
CLiMB keeps the last; question and choice are tokenized in parts, so that a long question cannot
make the choices equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from PIL import Image

from mcit.config.options import option
from mcit.data.annotated import AnnotatedTask, Row, Shown, stack_labels
from mcit.data.boxes import STYLE, draw_boxes, speak
from mcit.data.images import ImageFolder, Picture, stays_inside, whole_name
from mcit.data.problems import BadRecord, BadRecords
from mcit.data.records import Record, is_text, read_json, shorten
from mcit.errors import ConfigError, DataError
from mcit.task import Batch, Head, Recipe

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
        """Return the picture of a row."""
        plain = images.picture(row["image"])
        objects = tuple(row["objects"])
        mentioned = tuple(row["mentioned"])
        # questions about the same objects of an image share a picture
        marks = json.dumps([STYLE, len(objects), [(index, objects[index]) for index in mentioned]])
        digest = hashlib.blake2b(marks.encode(), digest_size=8).hexdigest()
        return cls(
            path=plain.path,
            name=f"{plain.name}#{digest}",
            metadata=images.find(row["metadata"]),
            objects=objects,
            mentioned=mentioned,
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
        """Return the boxes of all objects, and the size of the image that they are for."""
        path = self.metadata
        try:
            metadata = read_json(path)
        except DataError as error:
            raise BadRecord(str(error), "metadata unreadable") from None
        boxes = metadata.get("boxes") if isinstance(metadata, dict) else None
        if not isinstance(boxes, list) or len(boxes) != len(self.objects):
            found = len(boxes) if isinstance(boxes, list) else "none"
            raise BadRecord(
                f"{path} must have 'boxes', one for each of {len(self.objects)} objects, "
                f"found {found}",
                _NO_BOXES,
            )
        for index in self.mentioned:
            box = boxes[index]
            if not isinstance(box, list) or len(box) < 4 or not all(map(_is_number, box[:4])):
                text = f"{path}: box {index} must be [x1, y1, x2, y2, ...], found {shorten(box)}"
                raise BadRecord(text, _NO_BOXES)
        size = (metadata.get("width"), metadata.get("height"))
        if not all(_is_number(side) and side >= 1 for side in size):
            text = f"{path} must have the image's 'width' and 'height', found {shorten(size)}"
            raise BadRecord(text, _NO_BOXES)
        return boxes, size


@dataclass(frozen=True)
class Vcr(AnnotatedTask):
    """Files: vcr/annotation/{train,val}.jsonl and vcr/vcr1images/."""

    recipe: Recipe = Recipe(epochs=10, batch_size=16, learning_rate=1e-4, weight_decay=1e-2)
    rationale: bool = option(
        False, help="ask for the rationale of the right answer instead of the answer"
    )
    drawn: bool = option(
        False, help="read the images in vcr/drawn_images/bbox/, on which boxes are already drawn"
    )

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
    columns: ClassVar = {
        "id": "string",
        "image": "string",
        "metadata": "string",
        "objects": ["string"],
        "mentioned": ["int64"],
        "question": "string",
        # the right answer, if its rationale is asked for
        "given": "string",
        "choices": ["string"],
        "label": "int64",
    }

    @property
    def source(self) -> str:
        if self.drawn:
            return "draw the images in vcr/drawn_images/bbox/, or set tasks.vcr.drawn=false"
        return (
            "unpack VCR's annotations in vcr/annotation/ and its images with their metadata in "
            "vcr/vcr1images/"
        )

    @property
    def image_columns(self) -> tuple[str, ...]:
        if self.drawn:
            return ("image",)
        return ("image", "metadata")

    @property
    def picture_columns(self) -> tuple[str, ...]:
        if self.drawn:
            return ("image",)
        return ("image", "metadata", "objects", "mentioned")

    def table_options(self) -> Mapping[str, Any]:
        return {"rationale": self.rationale, "drawn": self.drawn}

    def files(self, split: str) -> tuple[Path, ...]:
        return (self.path("vcr", "annotation", f"{split}.jsonl"),)

    def image_place(self, split: str) -> tuple[str, ...]:
        if not self.drawn:
            return "vcr", "vcr1images"
        folder = ("vcr", "drawn_images", "bbox", split)
        # CLiMB and MERLOT, whose program draws them, call the folders differently
        climb, merlot = ("qar", "rationale") if self.rationale else ("qa", "answer")
        if self.path(*folder, merlot).is_dir() and not self.path(*folder, climb).is_dir():
            return (*folder, merlot)
        return (*folder, climb)

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row]:
        return self._read

    def pictures(self, row: Row, images: ImageFolder) -> tuple[Picture, ...]:
        if self.drawn:
            return super().pictures(row, images)
        return (MarkedPicture.of(row, images),)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        kept = {name: row[name] for name in ("question", "given", "choices", "label")}
        return {"image": shown[0], **kept}

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        # in parts: a text that is too long loses words of the question, and the choices stay
        # different
        parts = []
        for example in examples:
            for choice in example["choices"]:
                parts.append((example["question"], example["given"], choice))
        return {
            **processor.read_texts(parts),
            **processor.read_images([example["image"] for example in examples]),
            "labels": stack_labels(examples),
        }

    def read_texts(self, texts: Sequence[Any], processor: Any) -> Batch:
        """Return examples of a question and four choices as tensors."""
        parts = []
        for question, *choices in texts:
            if len(choices) != CHOICES:
                found = len(choices)
                raise ConfigError(
                    [f"an example of 'vcr' has a question and {CHOICES} choices, found {found}"]
                )
            parts += [(question, "", choice) for choice in choices]
        return processor.read_texts(parts)

    def output_names(self) -> list[str]:
        return list("ABCD")

    def _read(self, record: Record) -> Row:
        objects = record.get("objects", kind=list)
        if not all(isinstance(name, str) and is_text(name) for name in objects):
            raise record.error(f"'objects' must be a list of class names, found {shorten(objects)}")
        question = _read_tokens(record, record.get("question", kind=list), objects)
        given: list[str | list[int]] = []
        choices, label = _read_choices(record, "answer", objects)
        if self.rationale:
            given = choices[label]
            choices, label = _read_choices(record, "rationale", objects)
        identifier = record.get("annot_id", kind=str)
        if not stays_inside(identifier) or "/" in identifier:
            found = shorten(identifier)
            raise record.error(f"'annot_id' must be the name of a file, found {found}")
        mentioned: set[int] = set()
        for tokens in (question, given, *choices):
            mentioned.update(*(token for token in tokens if isinstance(token, list)))
        return {
            "id": identifier,
            "image": f"{identifier}.jpg" if self.drawn else _read_path(record, "img_fn"),
            "metadata": "" if self.drawn else _read_path(record, "metadata_fn"),
            "objects": objects,
            "mentioned": sorted(mentioned),
            "question": speak(question, objects),
            "given": speak(given, objects),
            "choices": [speak(tokens, objects) for tokens in choices],
            "label": label,
        }


def _read_choices(record: Record, kind: str, objects: list[str]) -> tuple[list[list], int]:
    choices = record.get(f"{kind}_choices", kind=list)
    label = record.get(f"{kind}_label", kind=int)
    if len(choices) != CHOICES:
        raise record.error(f"'{kind}_choices' must hold {CHOICES} choices, found {len(choices)}")
    if not 0 <= label < CHOICES:
        raise record.error(f"'{kind}_label' must be from 0 to {CHOICES - 1}, found {label}")
    return [_read_tokens(record, tokens, objects) for tokens in choices], label


def _read_tokens(record: Record, tokens: Any, objects: list[str]) -> list[str | list[int]]:
    """Return words, and lists of objects; a bare index is a list of one."""
    if not isinstance(tokens, list):
        raise record.error(f"a sentence must be a list of tokens, found {shorten(tokens)}")
    tokens = [[token] if type(token) is int else token for token in tokens]
    for token in tokens:
        if isinstance(token, list):
            is_known = all(type(index) is int and 0 <= index < len(objects) for index in token)
        else:
            is_known = isinstance(token, str) and is_text(token)
        if not is_known:
            raise record.error(
                f"a token must be a word or a list of indices below {len(objects)}, "
                f"found {shorten(token)}",
                "a tag of no object",
            )
    return tokens


def _read_path(record: Record, name: str) -> str:
    path = record.get(name, kind=str)
    if not stays_inside(path):
        found = shorten(path)
        raise record.error(f"{name!r} must be a path inside the image folder, found {found}")
    return str(PurePosixPath(path))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # not NaN either
    return is_number and abs(value) < 1e9
