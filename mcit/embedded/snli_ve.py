"""The embedded SNLI-VE: every hypothesis stands beside three scenes, one that entails it, one that contradicts it, and
one that leaves it open because the object it speaks of is not in sight."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from mcit.embedded.render import draw, encode
from mcit.embedded.scenes import (
    COLORS,
    RELATIONS,
    SHAPES,
    SIZES,
    Item,
    Scene,
    another,
    draw_item,
    draw_pair,
    fill_scene,
    near_misses,
    place_apart,
)

LABELS = ("entailment", "neutral", "contradiction")
HALVES = {
    "on the left": "left",
    "on the right": "right",
    "at the top": "top",
    "at the bottom": "bottom",
}
OPPOSITES = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
Hypothesis = tuple[
    str, Callable[[str], Scene]
]  # a sentence, and a way to make scenes with a given label


def differs(color: str, shape: str) -> Callable[[Item], bool]:
    return lambda item: (item.color, item.shape) != (color, shape)


def show_absent(rng: Random, color: str, shape: str, other: dict[str, str] | None = None) -> Scene:
    """No such object, but its colour and its shape on two others; and, if given, the other object of a relation."""
    wanted = near_misses(rng, color, shape) + ([other] if other else [])
    extra = (0, 2) if other else (1, 3)  # as many objects as in the scenes of the other labels
    return fill_scene(rng, place_apart(rng, wanted), extra, differs(color, shape))


def suppose_size(rng: Random) -> Hypothesis:
    color, shape, size = rng.choice(COLORS), rng.choice(SHAPES), rng.choice(SIZES)

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, color, shape)
        shown = size if label == "entailment" else another(rng, size, SIZES)
        return fill_scene(
            rng,
            [draw_item(rng, color=color, shape=shape, size=shown)],
            (2, 4),
            differs(color, shape),
        )

    return f"The {color} {shape} is {size}.", make


def suppose_place(rng: Random) -> Hypothesis:
    color, shape, place = rng.choice(COLORS), rng.choice(SHAPES), rng.choice(list(HALVES))

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, color, shape)
        while True:
            item = draw_item(rng, color=color, shape=shape)
            if (HALVES[place] in item.corner.split()) == (label == "entailment"):
                return fill_scene(rng, [item], (2, 4), differs(color, shape))

    return f"The {color} {shape} is {place}.", make


def suppose_color(rng: Random) -> Hypothesis:
    """Left open where there is no object of the shape."""
    color, shape = rng.choice(COLORS), rng.choice(SHAPES)

    def make(label: str) -> Scene:
        if label == "neutral":
            near = place_apart(rng, [{"color": color, "shape": another(rng, shape, SHAPES)}])
            return fill_scene(rng, near, (2, 4), lambda item: item.shape != shape)
        shown = color if label == "entailment" else another(rng, color, COLORS)
        return fill_scene(
            rng,
            [draw_item(rng, color=shown, shape=shape)],
            (2, 4),
            lambda item: item.shape != shape,
        )

    return f"The {shape} is {color}.", make


def suppose_relation(rng: Random) -> Hypothesis:
    """Left open where the first of the two objects is missing."""
    relation, colors, shapes = (
        rng.choice(list(RELATIONS)),
        rng.sample(COLORS, 2),
        rng.sample(SHAPES, 2),
    )
    first, second = (
        {"color": color, "shape": shape} for color, shape in zip(colors, shapes, strict=True)
    )

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, **first, other=second)
        shown = relation if label == "entailment" else OPPOSITES[relation]
        pair = draw_pair(rng, shown, first, second)
        return fill_scene(
            rng, pair, (1, 3), lambda item: differs(**first)(item) and differs(**second)(item)
        )

    names = [f"the {color} {shape}" for color, shape in zip(colors, shapes, strict=True)]
    return f"{names[0].capitalize()} is {relation} {names[1]}.", make


MAKERS = (suppose_size, suppose_place, suppose_color, suppose_relation)
SHARES = (0.25, 0.3, 0.25, 0.2)


def write_snli_ve(root: Path, split: str, count: int, rng: Random) -> None:
    """Hypotheses and images of `train`, `dev` or `test`."""
    images, lines = root / "flickr30k" / "flickr30k_images", []
    images.mkdir(parents=True, exist_ok=True)
    first = {"train": 1_000_000, "dev": 2_000_000, "test": 3_000_000}[split]
    for group in range((count + 2) // 3):
        sentence, make = rng.choices(MAKERS, SHARES)[0](rng)
        labels = rng.sample(LABELS, 3)
        for number, label in enumerate(labels[: count - 3 * group]):
            image_id = str(first + 3 * group + number)
            scene = make(label)
            (images / f"{image_id}.jpg").write_bytes(encode(draw(scene), ".jpg"))
            lines.append(_record(image_id, scene, sentence, label))
    folder = root / "snli-ve"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"snli_ve_{split}.jsonl").write_text(
        "\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8"
    )


def _record(image_id: str, scene: Scene, sentence: str, label: str) -> dict:
    caption = ", ".join(f"a {item.size} {item.color} {item.shape}" for item in scene.items)
    return {
        "Flickr30K_ID": image_id,
        "annotator_labels": [label],
        "captionID": f"{image_id}.jpg#0",
        "gold_label": label,
        "pairID": f"{image_id}.jpg#0r1{label[0]}",
        "sentence1": f"{caption.capitalize()}.",
        "sentence2": sentence,
    }
