"""The embedded NLVR2: two sentences with two pairs of images, each true of one pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from mcit.embedded.render import save, save_lines
from mcit.embedded.scenes import (
    COLORS,
    PLURALS,
    SHAPES,
    Attributes,
    Item,
    Scene,
    fill_scene,
    has,
    near_misses,
    place_apart,
)

_ONE = ((True, False), (False, True))
_ALIKE = ((True, True), (False, False))


@dataclass(frozen=True)
class Wish:
    """The objects that a sentence needs in one image, and which others it allows."""

    want: Callable[[], list[Attributes]]
    allows: Callable[[Item], bool]


@dataclass(frozen=True)
class Statement:
    """A sentence about a shape, and a way to wish for two images of which it is true or false."""

    sentence: str
    shape: str
    wish: Callable[[bool], tuple[Wish, Wish]]


def wish_object(rng: Random, color: str, shape: str, present: bool) -> Wish:
    """Return the wish for such an object, or for its color and its shape on two others."""
    wanted = {"color": color, "shape": shape}

    def want() -> list[Attributes]:
        misses = near_misses(rng, color, shape)
        return [wanted, misses[1]] if present else misses

    return Wish(want, lambda item: not has(item, wanted))


def wish_number(shape: str, number: int) -> Wish:
    """Return the wish for exactly so many objects of a shape."""
    return Wish(lambda: [{"shape": shape}] * number, lambda item: item.shape != shape)


def show(rng: Random, wishes: Sequence[Wish]) -> Scene:
    """Return a scene that grants all wishes, which are about different shapes."""

    def is_allowed(item: Item, owner: Wish | None = None) -> bool:
        return all(wish is owner or wish.allows(item) for wish in wishes)

    while True:
        wanted = [(attributes, wish) for wish in wishes for attributes in wish.want()]
        items = place_apart(rng, [attributes for attributes, _ in wanted])
        owners = [owner for _, owner in wanted]
        if all(is_allowed(item, owner) for item, owner in zip(items, owners, strict=True)):
            return fill_scene(rng, items, (0, 2), is_allowed)


def state_side(rng: Random) -> Statement:
    """State something of one image; whatever the other one shows does not matter."""
    side = rng.choice(("left", "right"))
    color = rng.choice(COLORS)
    shape = rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        here = wish_object(rng, color, shape, truth)
        there = wish_object(rng, color, shape, rng.random() < 0.5)
        return (here, there) if side == "left" else (there, here)

    return Statement(f"The {side} image shows a {color} {shape}.", shape, wish)


def state_both(rng: Random) -> Statement:
    """State something of both images; if it is false, one of them does show it."""
    color = rng.choice(COLORS)
    shape = rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        left, right = (True, True) if truth else rng.choice(_ONE)
        return wish_object(rng, color, shape, left), wish_object(rng, color, shape, right)

    return Statement(f"Both images show a {color} {shape}.", shape, wish)


def state_one(rng: Random) -> Statement:
    """State something of exactly one image."""
    color = rng.choice(COLORS)
    shape = rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        left, right = rng.choice(_ONE if truth else _ALIKE)
        return wish_object(rng, color, shape, left), wish_object(rng, color, shape, right)

    return Statement(f"Only one image shows a {color} {shape}.", shape, wish)


def state_more(rng: Random) -> Statement:
    """State which image has more objects of a shape; if it is false, the other one has."""
    side = rng.choice(("left", "right"))
    shape = rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        numbers = sorted(rng.sample(range(5), 2))
        if truth == (side == "left"):
            numbers.reverse()
        left, right = numbers
        return wish_number(shape, left), wish_number(shape, right)

    return Statement(f"There are more {PLURALS[shape]} in the {side} image.", shape, wish)


MAKERS = (state_side, state_both, state_one, state_more)
SHARES = (0.35, 0.25, 0.15, 0.25)


def draw_statements(rng: Random) -> tuple[Statement, Statement]:
    """Return two statements about different shapes, whose truths are independent."""
    first = rng.choices(MAKERS, SHARES)[0](rng)
    while True:
        second = rng.choices(MAKERS, SHARES)[0](rng)
        if second.shape != first.shape:
            return first, second


def write_nlvr2(root: Path, split: str, count: int, rng: Random) -> None:
    """Write statements and images of `train`, `dev` or `test1`."""
    images = root / "nlvr2" / "images" / split
    records = []
    for group in range((count + 3) // 4):
        statements = draw_statements(rng)
        # of the two pairs, for each statement
        truths = [rng.sample((True, False), 2) for _ in statements]
        for number in range(2):
            pair = f"{split}-{group}-{number}"
            judged = list(zip(statements, [truth[number] for truth in truths], strict=True))
            wishes = [statement.wish(truth) for statement, truth in judged]
            for side in range(2):
                scene = show(rng, [wish[side] for wish in wishes])
                save(scene, images / f"{pair}-img{side}.png")
            for place, (statement, truth) in enumerate(judged):
                records.append(_make_record(split, pair, place, statement.sentence, truth))
    save_lines(records[:count], root / "nlvr2" / "data" / f"{split}.json")


def _make_record(split: str, pair: str, place: int, sentence: str, truth: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "sentence": sentence,
        "label": str(truth),
        "identifier": f"{pair}-{place}",
        "left_url": f"embedded:{pair}-img0.png",
        "right_url": f"embedded:{pair}-img1.png",
        "synset": "shape",
        "query": "shapes",
    }
    if split == "train":
        record["directory"] = 0
    return record
