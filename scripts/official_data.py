"""Data with the official layouts and counts of VQAv2, NLVR2, SNLI-VE and VCR, and a random ViLT.

Words, answers and labels are drawn; images are hard links to a few generated photographs, so that
files are as many and as large as the official ones and take little room. `scripts/official_size.py`
uses it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout
import numpy as np
import torch
from PIL import Image
from transformers import BertTokenizer, ViltConfig, ViltModel
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.bench.loading import make_photograph
from mcit.registry import find_task

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
# of the official archives: COCO 2014, NLVR2, Flickr30k, VCR
IMAGES = {
    "train2014": 82_783,
    "val2014": 40_504,
    "nlvr2 train": 103_170,
    "nlvr2 dev": 8_102,
    "flickr30k": 31_783,
    "vcr": 110_251,
}
# answers that are often enough the most frequent one of a question
ANSWERS = 3_129
# different photographs of each shape; the others are links to them
PHOTOGRAPHS = 24
UPRIGHT = 4
VCR_SIZE = (1920, 1080)
OBJECTS = ("person", "person", "dog")
BOXES = ([200.0, 100.0, 800.0, 1000.0, 0.9], [900.0, 100.0, 1500.0, 1000.0, 0.9])
TEXT = (
    "a the is are there what who why how many left right of in on with and man woman dog cat horse "
    "table chair street house tree ball red blue green white black small large old young sitting "
    "standing holding wearing looking near behind under two three one no yes"
)
WORDS = tuple(TEXT.split())
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# images of a folder
_PER_FOLDER = 1_000


@dataclass(frozen=True)
class Scale:
    """A share of the official counts; at least a few of everything."""

    share: float = 1.0

    def count(self, official: int) -> int:
        """Return how many there are of what officially are so many."""
        return max(8, round(official * self.share))

    def records(self, task: str) -> dict[str, int]:
        """Return the records of the two splits that a run reads, by the official names."""
        kind: Any = find_task(task)
        return {
            kind.splits[split]: self.count(kind.sizes[kind.splits[split]])
            for split in ("train", "eval")
        }

    @property
    def answers(self) -> int:
        """Return the size of VQAv2's answer vocabulary."""
        return max(2, round(ANSWERS * self.share))


def write_data(root: Path, scale: Scale) -> None:
    """Write annotations and images of all four tasks."""
    photographs = root / "photographs"
    wide = list(_draw_photographs(photographs / "640x480"))
    large = list(_draw_photographs(photographs / "1920x1080", VCR_SIZE))
    write_vqa(root, scale, wide)
    write_nlvr2(root, scale, wide)
    write_snli_ve(root, scale, wide)
    write_vcr(root, scale, large)


def write_vqa(root: Path, scale: Scale, photographs: list[Path]) -> None:
    """Write questions, ten answers of each, and COCO's images."""
    rng = Random("vqa")
    for split, count in scale.records("vqa").items():
        images = scale.count(IMAGES[split])
        numbers = _numbers(split, images)
        folder = root / "ms-coco" / "images" / split
        _link(folder, (f"COCO_{split}_{number:012d}.jpg" for number in numbers), photographs)
        questions = []
        annotations = []
        for number in range(count):
            image = numbers[number * images // count]
            asked = {"image_id": image, "question_id": image * 1_000 + number}
            # every answer is the majority of about as many questions
            answer = f"thing{number % scale.answers}"
            rival = f"thing{rng.randrange(scale.answers)}"
            given = [answer] * 7 + [rival] * 3
            questions.append({**asked, "question": _draw_sentence(rng) + "?"})
            annotations.append(
                {
                    **asked,
                    "question_type": "what is",
                    "answer_type": "other",
                    "multiple_choice_answer": answer,
                    "answers": [
                        {"answer": text, "answer_confidence": "yes", "answer_id": place}
                        for place, text in enumerate(given, start=1)
                    ],
                }
            )
        folder = root / "vqav2"
        name = f"v2_OpenEnded_mscoco_{split}_questions.json"
        _write_json(folder / name, {"info": {}, "questions": questions})
        name = f"v2_mscoco_{split}_annotations.json"
        _write_json(folder / name, {"info": {}, "annotations": annotations})


def write_nlvr2(root: Path, scale: Scale, photographs: list[Path]) -> None:
    """Write sentences about pairs of images."""
    rng = Random("nlvr2")
    for split, count in scale.records("nlvr2").items():
        pairs = scale.count(IMAGES[f"nlvr2 {split}"]) // 2
        stems = [f"{split}-{number}-0" for number in range(pairs)]
        for start in range(0, pairs, _PER_FOLDER):
            folder = root / "nlvr2" / "images" / split / str(start // _PER_FOLDER)
            some = stems[start : start + _PER_FOLDER]
            names = (f"{stem}-img{side}.png" for stem in some for side in (0, 1))
            _link(folder, names, photographs)
        records = (
            {
                "identifier": f"{stems[number % pairs]}-{number // pairs}",
                "sentence": _draw_sentence(rng),
                "label": rng.choice(("True", "False")),
                "left_url": "",
                "right_url": "",
            }
            for number in range(count)
        )
        _write_lines(root / "nlvr2" / "data" / f"{split}.json", records)


def write_snli_ve(root: Path, scale: Scale, photographs: list[Path]) -> None:
    """Write hypotheses about Flickr30k's images, with the parses that the official files have."""
    rng = Random("snli-ve")
    images = scale.count(IMAGES["flickr30k"])
    folder = root / "flickr30k" / "flickr30k_images"
    _link(folder, (f"{1_000_000 + number}.jpg" for number in range(images)), photographs)
    for split, count in scale.records("snli-ve").items():
        records = (
            {
                "Flickr30K_ID": str(1_000_000 + number * images // count),
                "annotator_labels": ["neutral"],
                "captionID": f"{split}{number}.jpg#0",
                "gold_label": rng.choice(("entailment", "contradiction", "neutral")),
                "pairID": f"{split}{number}.jpg#0r1n",
                "sentence1": (sentence := _draw_sentence(rng)),
                "sentence1_parse": f"(ROOT (S (NP {sentence}) (VP {sentence})))",
                "sentence2": sentence,
                "sentence2_parse": f"(ROOT (S (NP {sentence}) (VP {sentence})))",
            }
            for number in range(count)
        )
        _write_lines(root / "snli-ve" / f"snli_ve_{split}.jsonl", records)


def write_vcr(root: Path, scale: Scale, photographs: list[Path]) -> None:
    """Write questions with four choices, and frames of films with the boxes of their objects."""
    rng = Random("vcr")
    images = scale.count(IMAGES["vcr"])
    width, height = VCR_SIZE
    metadata = root / "photographs" / "metadata.json"
    boxes = [*BOXES, BOXES[0]]
    _write_json(
        metadata, {"boxes": boxes, "names": list(OBJECTS), "width": width, "height": height}
    )
    names = [f"film{number // _PER_FOLDER}/{number}" for number in range(images)]
    folder = root / "vcr" / "vcr1images"
    _link(folder, (f"{name}.jpg" for name in names), photographs)
    _link(folder, (f"{name}.json" for name in names), [metadata])
    for split, count in scale.records("vcr").items():
        records = (
            {
                "annot_id": f"{split}-{number}",
                "img_fn": f"{names[number * images // count]}.jpg",
                "metadata_fn": f"{names[number * images // count]}.json",
                "objects": list(OBJECTS),
                "question": ["Why", "is", [0], *_draw_words(rng), "?"],
                "answer_choices": [[[1], *_draw_words(rng), "."] for _ in range(4)],
                "answer_label": rng.randrange(4),
                "rationale_choices": [[[0], *_draw_words(rng), "."] for _ in range(4)],
                "rationale_label": rng.randrange(4),
            }
            for number in range(count)
        )
        _write_lines(root / "vcr" / "annotation" / f"{split}.jsonl", records)


def write_model(folder: Path, **changes: Any) -> None:
    """Write ViLT-B/32 with random weights, a vocabulary of its size and its image settings.

    changes: of the configuration, for a smaller network.
    """
    torch.manual_seed(0)
    config = ViltConfig(**changes)
    ViltModel(config).save_pretrained(folder)
    words = [*SPECIAL, *WORDS, ".", "?"]
    words += [f"[unused{number}]" for number in range(config.vocab_size - len(words))]
    vocabulary = {word: number for number, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    ViltImageProcessorPil().save_pretrained(folder)


def _draw_photographs(folder: Path, size: tuple[int, int] | None = None) -> Iterator[Path]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(PHOTOGRAPHS):
        image = Image.fromarray(make_photograph(rng))
        if size is not None:
            image = image.resize(size)
        elif number % UPRIGHT == 1:
            image = image.transpose(Image.Transpose.ROTATE_90)
        path = folder / f"{number}.jpg"
        image.save(path, quality=90)
        yield path


def _link(folder: Path, names: Iterable[str], sources: list[Path]) -> None:
    """Make hard links to the sources in turn; a file system allows some ten thousand of each."""
    last = None
    for number, name in enumerate(names):
        path = folder / name
        if path.parent != last:
            last = path.parent
            last.mkdir(parents=True, exist_ok=True)
        place = number % len(sources)
        try:
            os.link(sources[place], path)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            # the file has as many links as its system allows: a copy takes over
            path.write_bytes(sources[place].read_bytes())
            sources[place] = path


def _numbers(split: str, images: int) -> range:
    """Return the ids of a split's COCO images; the two splits share none."""
    first = 1 if split == "train2014" else 300_000
    return range(first, first + images)


def _draw_words(rng: Random) -> list[str]:
    return rng.choices(WORDS, k=rng.randint(4, 12))


def _draw_sentence(rng: Random) -> str:
    return " ".join(_draw_words(rng))


def _write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def _write_lines(path: Path, records: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
