"""Data that the small ViLT is pretrained on: captions that hide words or may be false."""

from __future__ import annotations

import json
import re
import string
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mcit.data.boxes import NAMES, draw_boxes, name_object, speak
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.embedded.captions import describe, describe_at_length
from mcit.embedded.render import SIDE, box_of, draw
from mcit.embedded.scenes import Item, Scene

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD = 0
CLS = 2
SEP = 3
MASK = 4
IGNORED = -100


@dataclass(frozen=True)
class Example:
    """A picture and a caption: with hidden words, or whole and true (1) or false (0)."""

    picture: np.ndarray
    text: str
    kind: str
    # in the order of their places
    hidden: tuple[str, ...] = ()
    truth: int = IGNORED


def read_texts(root: Path) -> Iterator[str]:
    """Yield every text that the four tasks show a model, and every answer that a head may give."""
    questions = _read_json(root / "vqav2/v2_OpenEnded_mscoco_train2014_questions.json")
    for record in questions["questions"]:
        yield record["question"]
    annotations = _read_json(root / "vqav2/v2_mscoco_train2014_annotations.json")
    for record in annotations["annotations"]:
        for answer in record["answers"]:
            yield answer["answer"]
    for record in _read_lines(root / "nlvr2/data/train.json"):
        yield record["sentence"]
    for record in _read_lines(root / "snli-ve/snli_ve_train.jsonl"):
        yield record["sentence2"]
    for record in _read_lines(root / "vcr/annotation/train.jsonl"):
        for tokens in (record["question"], *record["answer_choices"], *record["rationale_choices"]):
            yield speak(tokens, record["objects"])


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def build_vocabulary() -> dict[str, int]:
    """Return the words of captions, tasks and names, and characters to spell any other word."""
    rng = Random("vocabulary")
    texts = list(NAMES)
    texts += [make_example(rng, (2, 6), matching=1.0).text for _ in range(5000)]
    with tempfile.TemporaryDirectory() as folder:
        write_benchmark(Path(folder), Sizes(train=1000, evaluation=3), seed=1)
        texts += read_texts(Path(folder))
    words: set[str] = set()
    for text in texts:
        words.update(re.findall(r"[a-z]+", text.lower()))
    characters = string.ascii_lowercase + string.digits
    endings = [f"##{character}" for character in characters]
    pieces = [*SPECIAL, *string.punctuation, *characters, *endings, *sorted(words)]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def make_example(rng: Random, objects: tuple[int, int], matching: float) -> Example:
    """Return a random scene with its caption; `matching` is the share of whole captions."""
    scene, caption = describe(rng, objects)
    picture = draw(scene)
    tags: Mapping[str, str] = {}
    if caption.boxed:
        picture, tags = show_boxes(scene, caption.boxed, picture)
    if rng.random() >= matching:
        slot = rng.choice(list(caption.words))
        words = {**caption.words, slot: SPECIAL[MASK]}
        text = lower(caption.template.format(**words, **tags))
        return Example(picture, text, caption.kind, hidden=(caption.words[slot],))
    truth = rng.random() < 0.5
    words = caption.words if truth else caption.wrong
    text = lower(caption.template.format(**words, **tags))
    return Example(picture, text, caption.kind, truth=int(truth))


def make_long_example(rng: Random, objects: tuple[int, int]) -> Example:
    """Return a random scene with three captions in a row, half of whose slots are hidden."""
    scene, captions = describe_at_length(rng, objects, 3)
    texts = []
    hidden: list[str] = []
    for caption in captions:
        slots = sorted(caption.words, key=lambda slot: caption.template.index(f"{{{slot}}}"))
        chosen = []
        for slot in slots:
            if rng.random() < 0.5 or (not hidden and slot == slots[-1]):
                chosen.append(slot)
        masks = dict.fromkeys(chosen, SPECIAL[MASK])
        texts.append(caption.template.format(**{**caption.words, **masks}))
        hidden += [caption.words[slot] for slot in chosen]
    return Example(draw(scene), lower(" . ".join(texts)), "long", hidden=tuple(hidden))


def lower(text: str) -> str:
    """Return a text in lower case, but for its masks."""
    return text.lower().replace(SPECIAL[MASK].lower(), SPECIAL[MASK])


def show_boxes(
    scene: Scene, boxed: tuple[Item, ...], picture: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
    """Return the picture with boxes as VCR's reader draws them, and the names of two objects."""
    items = sorted(scene.items, key=lambda item: item.shape != "person")
    shapes = [item.shape for item in items]
    indices = [items.index(item) for item in boxed]
    boxes = [box_of(item) for item in items]
    image = draw_boxes(Image.fromarray(picture), boxes, shapes, indices, (SIDE, SIDE))
    names = [name_object(index, shapes) for index in indices]
    return np.asarray(image), {"tag": names[0], "tag2": names[min(1, len(names) - 1)]}


def make_batch(
    examples: list[Example], vocabulary: dict[str, int]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return a batch for the encoder, the hidden words in order, and which captions are true."""
    rows = []
    for example in examples:
        rows.append([CLS, *(vocabulary[word] for word in example.text.split()), SEP])
    # [batch, length]
    ids = torch.full((len(rows), max(map(len, rows))), PAD)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    pictures = torch.from_numpy(np.stack([example.picture for example in examples]))
    batch = {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        # [batch, 3, side, side], mean and deviation 0.5
        "pixel_values": pictures.permute(0, 3, 1, 2).float() / 127.5 - 1,
        "pixel_mask": torch.ones(len(rows), SIDE, SIDE, dtype=torch.long),
    }
    words = [vocabulary[word] for example in examples for word in example.hidden]
    truths = torch.tensor([example.truth for example in examples])
    return batch, torch.tensor(words, dtype=torch.long), truths
