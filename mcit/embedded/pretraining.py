"""What the small ViLT is pretrained on: pictures of scenes and captions that hide words or may be false, in batches."""

from __future__ import annotations

import json
import re
import string
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

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
PAD, CLS, SEP, MASK = 0, 2, 3, 4
IGNORED = -100


@dataclass(frozen=True)
class Example:
    """A picture and a caption: with hidden words, or whole and true (1) or false (0)."""

    picture: np.ndarray
    text: str
    kind: str
    hidden: tuple[str, ...] = ()  # in the order of their places
    truth: int = IGNORED


def read_texts(root: Path) -> Iterator[str]:
    """Every text that the four tasks show a model, and every answer that a head may give."""
    questions = json.loads(
        (root / "vqav2" / "v2_OpenEnded_mscoco_train2014_questions.json").read_text("utf-8")
    )
    yield from (record["question"] for record in questions["questions"])
    annotations = json.loads(
        (root / "vqav2" / "v2_mscoco_train2014_annotations.json").read_text("utf-8")
    )
    yield from (
        answer["answer"] for record in annotations["annotations"] for answer in record["answers"]
    )
    for line in (root / "nlvr2" / "data" / "train.json").read_text("utf-8").splitlines():
        yield json.loads(line)["sentence"]
    for line in (root / "snli-ve" / "snli_ve_train.jsonl").read_text("utf-8").splitlines():
        yield json.loads(line)["sentence2"]
    for line in (root / "vcr" / "annotation" / "train.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        for tokens in (record["question"], *record["answer_choices"], *record["rationale_choices"]):
            yield speak(tokens, record["objects"])


def build_vocabulary() -> dict[str, int]:
    """Whole words of captions, tasks and names; and single characters, so that any other word can be spelled."""
    rng, texts = Random("vocabulary"), list(NAMES)
    texts += [make_example(rng, (2, 6), matching=1.0).text for _ in range(5000)]
    with tempfile.TemporaryDirectory() as folder:
        write_benchmark(Path(folder), Sizes(train=1000, evaluation=3), seed=1)
        texts += read_texts(Path(folder))
    words = sorted({word for text in texts for word in re.findall(r"[a-z]+", text.lower())})
    characters = string.ascii_lowercase + string.digits
    pieces = [*SPECIAL, *string.punctuation, *characters, *(f"##{c}" for c in characters), *words]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def make_example(rng: Random, objects: tuple[int, int], matching: float) -> Example:
    """A random scene with its caption; `matching` is the share of whole captions."""
    scene, caption = describe(rng, objects)
    picture, tags = draw(scene), {}
    if caption.boxed:
        picture, tags = show_boxes(scene, caption.boxed, picture)
    template = caption.template.format_map(
        {**{slot: f"{{{slot}}}" for slot in caption.words}, **tags}
    )
    if rng.random() >= matching:
        slot = rng.choice(list(caption.words))
        text = template.format(**{**caption.words, slot: SPECIAL[MASK]})
        return Example(picture, lower(text), caption.kind, hidden=(caption.words[slot],))
    truth = rng.random() < 0.5
    text = template.format(**(caption.words if truth else caption.wrong))
    return Example(picture, lower(text), caption.kind, truth=int(truth))


def make_long_example(rng: Random, objects: tuple[int, int]) -> Example:
    """A random scene with three captions of it in a row, half of whose slots are hidden, at least one."""
    scene, captions = describe_at_length(rng, objects, 3)
    texts, hidden = [], []
    for caption in captions:
        slots = sorted(caption.words, key=lambda slot: caption.template.index(f"{{{slot}}}"))
        chosen = [
            slot for slot in slots if rng.random() < 0.5 or (not hidden and slot == slots[-1])
        ]
        texts.append(
            caption.template.format(**{**caption.words, **dict.fromkeys(chosen, SPECIAL[MASK])})
        )
        hidden += [caption.words[slot] for slot in chosen]
    return Example(draw(scene), lower(" . ".join(texts)), "long", hidden=tuple(hidden))


def lower(text: str) -> str:
    return text.lower().replace(SPECIAL[MASK].lower(), SPECIAL[MASK])


def show_boxes(
    scene: Scene, boxed: tuple[Item, ...], picture: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
    """The picture with boxes as VCR's reader draws them, and what it calls the first two boxed objects."""
    items = sorted(scene.items, key=lambda item: item.shape != "person")
    shapes, indices = [item.shape for item in items], [items.index(item) for item in boxed]
    boxes = [box_of(item) for item in items]
    image = draw_boxes(Image.fromarray(picture), boxes, shapes, indices, (SIDE, SIDE))
    names = [name_object(index, shapes) for index in indices]
    return np.asarray(image), {"tag": names[0], "tag2": names[min(1, len(names) - 1)]}


def make_batch(
    examples: list[Example], vocabulary: dict[str, int]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A batch for the encoder, the hidden words of all rows in order [words], and which captions are true [batch]."""
    rows = [
        [CLS, *(vocabulary[word] for word in example.text.split()), SEP] for example in examples
    ]
    ids = torch.full((len(rows), max(map(len, rows))), PAD)  # [batch, length]
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    pixels = torch.from_numpy(np.stack([example.picture for example in examples])).permute(
        0, 3, 1, 2
    )
    batch = {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "pixel_values": pixels.float() / 127.5
        - 1,  # [batch, 3, side, side], mean and deviation 0.5
        "pixel_mask": torch.ones(len(rows), SIDE, SIDE, dtype=torch.long),
    }
    words = torch.tensor(
        [vocabulary[word] for example in examples for word in example.hidden], dtype=torch.long
    )
    return batch, words, torch.tensor([example.truth for example in examples])
