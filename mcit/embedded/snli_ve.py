"""The embedded SNLI-VE: every hypothesis has three scenes.

One entails it, one contradicts it, and one leaves it open because the object it is about is not in
sight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mcit.embedded.render import save, save_lines
from mcit.embedded.scenes import (
    COLORS,
    RELATIONS,
    SHAPES,
    SIZES,
    Attributes,
    Item,
    Scene,
    another,
    draw_item,
    draw_pair,
    fill_scene,
    has,
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
# a sentence, and a way to make scenes with a given label
Hypothesis = tuple[str, Callable[[str], Scene]]


def differs(attributes: Attributes) -> Callable[[Item], bool]:
    """Return whether an object is another than the one with these attributes."""
    return lambda item: not has(item, attributes)


def show_absent(rng: Random, wanted: Attributes, other: Attributes | None = None) -> Scene:
    """Return a scene without an object, but with its color and its shape on two others.

    If given, the other object of a relation is there. There are as many objects as with other
    labels.
    """
    shown = near_misses(rng, **wanted)
    extra = (1, 3)
    if other is not None:
        shown.append(other)
        extra = (0, 2)
    return fill_scene(rng, place_apart(rng, shown), extra, differs(wanted))


def suppose_size(rng: Random) -> Hypothesis:
    """Suppose that an object is small or large."""
    wanted = {"color": rng.choice(COLORS), "shape": rng.choice(SHAPES)}
    size = rng.choice(SIZES)

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, wanted)
        shown = size if label == "entailment" else another(rng, size, SIZES)
        item = draw_item(rng, **wanted, size=shown)
        return fill_scene(rng, [item], (2, 4), differs(wanted))

    return f"The {wanted['color']} {wanted['shape']} is {size}.", make


def suppose_place(rng: Random) -> Hypothesis:
    """Suppose that an object is in one half of the image."""
    wanted = {"color": rng.choice(COLORS), "shape": rng.choice(SHAPES)}
    place = rng.choice(list(HALVES))

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, wanted)
        while True:
            item = draw_item(rng, **wanted)
            if (HALVES[place] in item.corner.split()) == (label == "entailment"):
                return fill_scene(rng, [item], (2, 4), differs(wanted))

    return f"The {wanted['color']} {wanted['shape']} is {place}.", make


def suppose_color(rng: Random) -> Hypothesis:
    """Suppose that an object has a color; it is left open if there is no object of the shape."""
    color = rng.choice(COLORS)
    shape = rng.choice(SHAPES)

    def make(label: str) -> Scene:
        if label == "neutral":
            near = {"color": color, "shape": another(rng, shape, SHAPES)}
            items = place_apart(rng, [near])
        else:
            shown = color if label == "entailment" else another(rng, color, COLORS)
            items = [draw_item(rng, color=shown, shape=shape)]
        return fill_scene(rng, items, (2, 4), differs({"shape": shape}))

    return f"The {shape} is {color}.", make


def suppose_relation(rng: Random) -> Hypothesis:
    """Suppose where an object stands; it is left open if that object is missing."""
    relation = rng.choice(list(RELATIONS))
    colors = rng.sample(COLORS, 2)
    shapes = rng.sample(SHAPES, 2)
    first = {"color": colors[0], "shape": shapes[0]}
    second = {"color": colors[1], "shape": shapes[1]}

    def make(label: str) -> Scene:
        if label == "neutral":
            return show_absent(rng, first, other=second)
        shown = relation if label == "entailment" else OPPOSITES[relation]
        pair = draw_pair(rng, shown, first, second)
        return fill_scene(
            rng, pair, (1, 3), lambda item: not has(item, first) and not has(item, second)
        )

    sentence = f"The {colors[0]} {shapes[0]} is {relation} the {colors[1]} {shapes[1]}."
    return sentence, make


MAKERS = (suppose_size, suppose_place, suppose_color, suppose_relation)
SHARES = (0.25, 0.3, 0.25, 0.2)


def write_snli_ve(root: Path, split: str, count: int, rng: Random) -> None:
    """Write hypotheses and images of `train`, `dev` or `test`."""
    images = root / "flickr30k" / "flickr30k_images"
    records = []
    first = {"train": 1_000_000, "dev": 2_000_000, "test": 3_000_000}[split]
    for group in range((count + 2) // 3):
        sentence, make = rng.choices(MAKERS, SHARES)[0](rng)
        labels = rng.sample(LABELS, 3)
        for number, label in enumerate(labels[: count - 3 * group]):
            image_id = str(first + 3 * group + number)
            scene = make(label)
            save(scene, images / f"{image_id}.jpg")
            records.append(_make_record(image_id, scene, sentence, label))
    save_lines(records, root / "snli-ve" / f"snli_ve_{split}.jsonl")


def _make_record(image_id: str, scene: Scene, sentence: str, label: str) -> dict[str, Any]:
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
