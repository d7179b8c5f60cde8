"""The embedded NLVR2: two sentences beside the same two pairs of images, each true of one and false of the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mcit.embedded.render import draw, encode
from mcit.embedded.scenes import (
    COLORS,
    PLURALS,
    SHAPES,
    Item,
    Scene,
    fill_scene,
    near_misses,
    place_apart,
)


@dataclass(frozen=True)
class Wish:
    """What a sentence needs of one image: objects with attributes it draws, and nothing else that is not allowed."""

    want: Callable[[], list[dict[str, str]]]
    allows: Callable[[Item], bool]


@dataclass(frozen=True)
class Statement:
    """A sentence about a shape, and a way to wish for a left and a right image of which it is true or false."""

    sentence: str
    shape: str
    wish: Callable[[bool], tuple[Wish, Wish]]


def wish_object(rng: Random, color: str, shape: str, present: bool) -> Wish:
    """Such an object; or none, but as many objects, two of which share its colour and its shape between them."""

    def want() -> list[dict[str, str]]:
        misses = near_misses(rng, color, shape)
        return [{"color": color, "shape": shape}, misses[1]] if present else misses

    return Wish(want, lambda item: (item.color, item.shape) != (color, shape))


def wish_number(shape: str, number: int) -> Wish:
    """Exactly so many objects of a shape."""
    return Wish(lambda: [{"shape": shape}] * number, lambda item: item.shape != shape)


def show(rng: Random, wishes: Sequence[Wish]) -> Scene:
    """A scene that grants all wishes, which are about different shapes."""
    while True:
        wanted = [(attributes, wish) for wish in wishes for attributes in wish.want()]
        items = place_apart(rng, [attributes for attributes, _ in wanted])
        owned = zip(items, (owner for _, owner in wanted), strict=True)
        if all(wish is owner or wish.allows(item) for item, owner in owned for wish in wishes):
            return fill_scene(
                rng, items, (0, 2), lambda item: all(wish.allows(item) for wish in wishes)
            )


def state_side(rng: Random) -> Statement:
    """Whatever the other image shows does not matter."""
    side, color, shape = rng.choice(("left", "right")), rng.choice(COLORS), rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        here, there = (
            wish_object(rng, color, shape, present) for present in (truth, rng.random() < 0.5)
        )
        return (here, there) if side == "left" else (there, here)

    return Statement(f"The {side} image shows a {color} {shape}.", shape, wish)


def state_both(rng: Random) -> Statement:
    """Where it is false, one of the images does show it."""
    color, shape = rng.choice(COLORS), rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        left, right = (True, True) if truth else rng.choice(((True, False), (False, True)))
        return wish_object(rng, color, shape, left), wish_object(rng, color, shape, right)

    return Statement(f"Both images show a {color} {shape}.", shape, wish)


def state_one(rng: Random) -> Statement:
    color, shape = rng.choice(COLORS), rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        left, right = rng.choice(
            ((True, False), (False, True)) if truth else ((True, True), (False, False))
        )
        return wish_object(rng, color, shape, left), wish_object(rng, color, shape, right)

    return Statement(f"Only one image shows a {color} {shape}.", shape, wish)


def state_more(rng: Random) -> Statement:
    """Where it is false, the other image has more."""
    side, shape = rng.choice(("left", "right")), rng.choice(SHAPES)

    def wish(truth: bool) -> tuple[Wish, Wish]:
        fewer, more = sorted(rng.sample(range(5), 2))
        left, right = (more, fewer) if truth == (side == "left") else (fewer, more)
        return wish_number(shape, left), wish_number(shape, right)

    return Statement(f"There are more {PLURALS[shape]} in the {side} image.", shape, wish)


MAKERS = (state_side, state_both, state_one, state_more)
SHARES = (0.35, 0.25, 0.15, 0.25)


def draw_statements(rng: Random) -> tuple[Statement, Statement]:
    """Two statements about different shapes, so that any truth of the one goes with any truth of the other."""
    first = rng.choices(MAKERS, SHARES)[0](rng)
    while True:
        second = rng.choices(MAKERS, SHARES)[0](rng)
        if second.shape != first.shape:
            return first, second


def write_nlvr2(root: Path, split: str, count: int, rng: Random) -> None:
    """Statements and images of `train`, `dev` or `test1`."""
    images, records = root / "nlvr2" / "images" / split, []
    images.mkdir(parents=True, exist_ok=True)
    for group in range((count + 3) // 4):
        statements = draw_statements(rng)
        truths = [
            rng.sample((True, False), 2) for _ in statements
        ]  # of the two pairs, for each statement
        for number in range(2):
            pair = f"{split}-{group}-{number}"
            wishes = [
                statement.wish(truth[number])
                for statement, truth in zip(statements, truths, strict=True)
            ]
            for side in range(2):
                scene = show(rng, [wish[side] for wish in wishes])
                (images / f"{pair}-img{side}.png").write_bytes(encode(draw(scene), ".png"))
            for place, statement in enumerate(statements):
                records.append(
                    _record(split, pair, place, statement.sentence, truths[place][number])
                )
    (root / "nlvr2" / "data").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records[:count])
    (root / "nlvr2" / "data" / f"{split}.json").write_text(lines, encoding="utf-8")


def _record(split: str, pair: str, place: int, sentence: str, truth: bool) -> dict:
    record = {"sentence": sentence, "label": str(truth), "identifier": f"{pair}-{place}"}
    record |= {"left_url": f"embedded:{pair}-img0.png", "right_url": f"embedded:{pair}-img1.png"}
    record |= {"synset": "shape", "query": "shapes"}
    return record | {"directory": 0} if split == "train" else record
