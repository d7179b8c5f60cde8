"""Captions of scenes, true and nearly true: what the small ViLT is pretrained on.

A caption is a template with slots of one word each. `words` fill it truly; `wrong` differs from them in one slot, or in
two that were exchanged, so that the sentence becomes false. Captions state, they never ask: the tasks are not in here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from mcit.embedded.scenes import (
    COLORS,
    PLURALS,
    SHAPES,
    SIZES,
    Item,
    Scene,
    another,
    fill_scene,
    stands,
)

NUMBERS = ("0", "1", "2", "3", "4")
DIRECTIONS = {
    "left": "right",
    "right": "left",
    "above": "below",
    "below": "above",
}  # each with its opposite
HALVES = {"top": "bottom", "bottom": "top", "left": "right", "right": "left"}


@dataclass(frozen=True)
class Caption:
    """A sentence about a scene, a false one beside it, and the objects that it calls by a tag."""

    template: str
    words: dict[str, str]
    wrong: dict[str, str]
    boxed: tuple[
        Item, ...
    ] = ()  # the first is `{tag}` in the template, the second, if spoken of, `{tag2}`
    kind: str = ""


def describe(rng: Random, objects: tuple[int, int] = (2, 6)) -> tuple[Scene, Caption]:
    """A random scene, with so many objects, and a caption of it."""
    kind = rng.choices(list(MAKERS), [weight for _, weight in MAKERS.values()])[0]
    while True:
        scene = fill_scene(rng, extra=objects)
        caption = MAKERS[kind][0](rng, scene)
        if caption is not None:  # not every scene has what every kind of caption needs
            return scene, replace(caption, kind=kind)


def describe_at_length(
    rng: Random, objects: tuple[int, int], sentences: int
) -> tuple[Scene, list[Caption]]:
    """A random scene and several captions of it, none of which needs a box."""
    scene, captions = fill_scene(rng, extra=objects), []
    kinds = [kind for kind in MAKERS if kind != "boxed"]
    while len(captions) < sentences:
        kind = rng.choices(kinds, [MAKERS[kind][1] for kind in kinds])[0]
        caption = MAKERS[kind][0](rng, scene)
        if caption is not None:
            captions.append(replace(caption, kind=kind))
    return scene, captions


def tell_existence(rng: Random, scene: Scene) -> Caption | None:
    item = rng.choice(scene.items)
    slots = rng.choice((("color", "shape"), ("size", "color", "shape"), ("size", "shape")))
    words = {slot: getattr(item, slot) for slot in slots}
    changed = rng.choice(slots)
    wrong = {**words, changed: another(rng, words[changed], VALUES[changed])}
    if scene.count(**wrong):
        return None
    phrase = " ".join(f"{{{slot}}}" for slot in slots)
    return Caption(f"{rng.choice(('there is a', 'a', 'the image has a'))} {phrase}", words, wrong)


def tell_attribute(rng: Random, scene: Scene) -> Caption | None:
    known, told = rng.choice((("shape", "color"), ("color", "shape"), ("shape", "size")))
    item = rng.choice(scene.items)
    if scene.count(**{known: getattr(item, known)}) != 1:
        return None
    words = {known: getattr(item, known), told: getattr(item, told)}
    wrong = {**words, told: another(rng, words[told], VALUES[told])}
    forms = (f"the {{shape}} is {{{told}}}", f"the {told} of the {{shape}} is {{{told}}}")
    return Caption(
        "the {color} object is a {shape}" if known == "color" else rng.choice(forms), words, wrong
    )


def tell_place(rng: Random, scene: Scene) -> Caption | None:
    item = rng.choice(scene.items)
    known = rng.choice((("color", "shape"), ("shape",), ("color",)))
    words = {slot: getattr(item, slot) for slot in known}
    if scene.count(**words) != 1:
        return None
    subject = {1: "{shape}" if known == ("shape",) else "{color} object", 2: "{color} {shape}"}[
        len(known)
    ]
    return _place(rng, f"the {subject}", words, item)


def _place(
    rng: Random, subject: str, words: dict[str, str], item: Item, boxed: tuple[Item, ...] = ()
) -> Caption:
    vertical, horizontal = item.corner.split()
    form = rng.choice(
        ("in the {vertical} {horizontal}", "at the {vertical}", "on the {horizontal}")
    )
    places = {"vertical": vertical, "horizontal": horizontal}
    places = {slot: word for slot, word in places.items() if f"{{{slot}}}" in form}
    words = {**words, **places}
    changed = rng.choice(list(places))
    return Caption(f"{subject} is {form}", words, {**words, changed: HALVES[words[changed]]}, boxed)


def tell_number(rng: Random, scene: Scene) -> Caption | None:
    kind = rng.choice(("shape", "color"))
    value = rng.choice(VALUES[kind])
    number = scene.count(**{kind: value})
    if number > 4:
        return None
    near = [n for n in (number - 1, number + 1) if 0 <= n <= 4]
    words = {"number": str(number), kind: PLURALS[value] if kind == "shape" else value}
    things = "{shape}" if kind == "shape" else "{color} objects"
    template = rng.choice(
        (f"the number of {things} is {{number}}", f"there are {{number}} {things}")
    )
    return Caption(template, words, {**words, "number": str(rng.choice(near))})


def tell_more(rng: Random, scene: Scene) -> Caption | None:
    more, fewer = rng.sample(SHAPES, 2)
    if scene.count(shape=more) <= scene.count(shape=fewer):
        return None
    words = {"more": PLURALS[more], "fewer": PLURALS[fewer]}
    wrong = {"more": PLURALS[fewer], "fewer": PLURALS[more]}
    return Caption("there are more {more} than {fewer}", words, wrong)


def tell_relation(rng: Random, scene: Scene) -> Caption | None:
    if len(scene.items) < 2:
        return None
    one, other = rng.sample(scene.items, 2)
    slots = rng.choice((("shape",), ("color", "shape")))
    if any(
        scene.count(**{slot: getattr(item, slot) for slot in slots}) != 1 for item in (one, other)
    ):
        return None
    if slots == ("shape",):
        words = {"shape": one.shape, "shape2": other.shape}
        return _relate(rng, "the {shape}", "the {shape2}", words, one, other)
    words = {"color": one.color, "shape": one.shape, "color2": other.color, "shape2": other.shape}
    return _relate(rng, "the {color} {shape}", "the {color2} {shape2}", words, one, other)


def _relate(
    rng: Random,
    subject: str,
    reference: str,
    words: dict[str, str],
    one: Item,
    other: Item,
    boxed: tuple[Item, ...] = (),
) -> Caption | None:
    true = [
        d for d in DIRECTIONS if stands(one, d if d in ("above", "below") else f"{d} of", other)
    ]
    direction = rng.choice(true)  # never empty: two objects differ in row or column
    of = " of" if direction in ("left", "right") else ""
    words = {**words, "direction": direction}
    wrong = {**words, "direction": DIRECTIONS[direction]}
    return Caption(f"{subject} is {{direction}}{of} {reference}", words, wrong, boxed)


def tell_boxed(rng: Random, scene: Scene) -> Caption | None:
    """A caption that calls an object by its tag, which only the box around it makes clear.

    `tag` and `tag2` stand for what the reader of tags says; whoever shows the caption fills them in.
    """
    boxed = tuple(rng.sample(scene.items, rng.randint(1, min(4, len(scene.items)))))
    things = [item.shape for item in boxed if item.shape != "person"]
    if len(set(things)) < len(things):  # two boxed circles would have the same tag
        return None
    item = boxed[0]
    form = rng.choice(("color", "place", "relation"))
    if form == "color":
        wrong = [other.color for other in boxed if other.color != item.color] or [
            another(rng, item.color, COLORS)
        ]
        return Caption(
            "{tag} is {color}", {"color": item.color}, {"color": rng.choice(wrong)}, boxed
        )
    if form == "place":
        return _place(rng, "{tag}", {}, item, boxed)
    return None if len(boxed) < 2 else _relate(rng, "{tag}", "{tag2}", {}, item, boxed[1], boxed)


VALUES = {"color": COLORS, "shape": SHAPES, "size": SIZES}
MAKERS: dict[
    str, tuple[Callable[[Random, Scene], Caption | None], float]
] = {  # kind -> maker, weight
    "existence": (tell_existence, 3),
    "attribute": (tell_attribute, 4),
    "place": (tell_place, 4),
    "number": (tell_number, 2.5),
    "more": (tell_more, 1),
    "relation": (tell_relation, 3),
    "boxed": (tell_boxed, 4),
}
