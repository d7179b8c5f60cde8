"""Tiny data in the official formats and layout, and a small real processor, for the tests of the
task adapters."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.models.vilt_inputs import ViltInputs

_WORDS = "[PAD] [UNK] [CLS] [SEP] what is one dog Why Alex Robin and the gray near they play sleeps it rains no reason ?"


def write_json(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_image(
    path: Path, color: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (40, 32)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def make_png(width: int, height: int, depth: int, color: int, data: bytes) -> bytes:
    """The bytes of a PNG file whose header and content need not agree."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def make_cell() -> bytes:
    """Return a black image of CIFAR's size."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    return file.getvalue()


def write_imagenet(root: Path) -> None:
    """Write 100 classes of one image for training and one for testing."""
    for part in ("train", "val"):
        for number in range(100):
            write_image(root / part / f"n{number:08}" / "a.png", (number, 0, 0), (9, 9))


def write_tiny_imagenet(root: Path) -> None:
    """Write 200 classes of one image for training and one for testing."""
    lines = []
    for number in range(200):
        name = f"n{number:08}"
        write_image(root / "train" / name / "images" / "a.png", (number, 0, 0), (64, 64))
        write_image(root / "val" / "images" / f"{number}.png", (number, 0, 0), (64, 64))
        lines.append(f"{number}.png\t{name}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))


def annotation(
    question: int, image: int, answers: list[str], majority: str | None = None
) -> dict[str, Any]:
    """A VQAv2 annotation of ten answers."""
    return {
        "question_id": question,
        "image_id": image,
        "question_type": "what",
        "answer_type": "other",
        "multiple_choice_answer": answers[0] if majority is None else majority,
        "answers": [
            {"answer": a, "answer_confidence": "yes", "answer_id": i + 1}
            for i, a in enumerate(answers)
        ],
    }


def write_vqa(root: Path, split: str, annotations: list[dict[str, Any]]) -> None:
    questions = [
        {
            "question_id": a["question_id"],
            "image_id": a["image_id"],
            "question": f"what is {a['question_id']}?",
        }
        for a in annotations
    ]
    folder = root / "vqav2"
    write_json(
        folder / f"v2_OpenEnded_mscoco_{split}_questions.json",
        {"info": {"n": 1}, "questions": questions},
    )
    write_json(
        folder / f"v2_mscoco_{split}_annotations.json",
        {"info": {}, "annotations": annotations, "license": {}},
    )


def pair(identifier: str, label: Any, sentence: str = "one dog") -> dict[str, Any]:
    """An NLVR2 record."""
    return {
        "identifier": identifier,
        "sentence": sentence,
        "label": label,
        "left_url": "",
        "right_url": "",
    }


def vcr_record(number: int, split: str = "train", **changes: Any) -> dict[str, Any]:
    """A VCR record about two persons and a dog."""
    return {
        "objects": ["person", "person", "dog"],
        "img_fn": f"movie/{number}.jpg",
        "metadata_fn": f"movie/{number}.json",
        "question": ["Why", "is", [0, 1], "near", [2], "?"],
        "answer_choices": [["they", "play"], [[1], "sleeps"], ["it", "rains"], ["no", "reason"]],
        "answer_label": 1,
        "rationale_choices": [["one"], ["two"], ["three"], [[0], "smiles"]],
        "rationale_label": 3,
        "annot_id": f"{split}-{number}",
        **changes,
    }


def write_vcr_image(
    root: Path, number: int, boxes: list[list[float]], size: tuple[int, int] = (100, 80)
) -> None:
    folder = root / "vcr" / "vcr1images" / "movie"
    write_image(folder / f"{number}.jpg", (0, 0, 0), size)
    names = ["person", "person", "dog"]
    width, height = size
    write_json(
        folder / f"{number}.json",
        {"boxes": boxes, "names": names, "width": width, "height": height},
    )


def small_processor(limit: int = 12) -> ViltInputs:
    """A word tokenizer and ViLT's own image processor, on images of 32 pixels."""
    vocabulary = {word: i for i, word in enumerate(_WORDS.split())}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    return ViltInputs(
        tokenizer, ViltImageProcessorPil(size={"shortest_edge": 32}, size_divisor=16), limit
    )
