"""Captions of scenes, true and nearly true: what the small ViLT is pretrained on.

A caption is a template with slots of one word each. `words` fill it truly; `wrong` differs from
them in one slot, or in two that were exchanged, so that the sentence becomes false. Captions state,
they never ask: the tasks are not in here.
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
    Attributes,
    Item,
    Scene,
    another,
    fill_scene,
    stands,
)

# each with its opposite
DIRECTIONS = {"left": "right", "right": "left", "above": "below", "below": "above"}
HALVES = {"top": "bottom", "bottom": "top", "left": "right", "right": "left"}
VALUES = {"color": COLORS, "shape": SHAPES, "size": SIZES}


@dataclass(frozen=True)
class Caption:
    """A sentence about a scene, how it becomes false, and the objects that it calls by a tag."""

    template: str
    words: dict[str, str]
    wrong: dict[str, str]
    # the first is `{tag}` in the template, the second, if it is mentioned, `{tag2}`
    boxed: tuple[Item, ...] = ()
    kind: str = ""


def describe(rng: Random, objects: tuple[int, int] = (2, 6)) -> tuple[Scene, Caption]:
    """Return a random scene, with so many objects, and a caption of it."""
    kind = _choose_kind(rng, list(MAKERS))
    while True:
        scene = fill_scene(rng, extra=objects)
        caption = MAKERS[kind][0](rng, scene)
        # not every scene has what every kind of caption needs
        if caption is not None:
            return scene, replace(caption, kind=kind)


def describe_at_length(
    rng: Random, objects: tuple[int, int], sentences: int
) -> tuple[Scene, list[Caption]]:
    """Return a random scene and several captions of it, none of which needs a box."""
    scene = fill_scene(rng, extra=objects)
    captions: list[Caption] = []
    kinds = [kind for kind in MAKERS if kind != "boxed"]
    while len(captions) < sentences:
        kind = _choose_kind(rng, kinds)
        caption = MAKERS[kind][0](rng, scene)
        if caption is not None:
            captions.append(replace(caption, kind=kind))
    return scene, captions


def _choose_kind(rng: Random, kinds: list[str]) -> str:
    return rng.choices(kinds, [MAKERS[kind][1] for kind in kinds])[0]


def _pick(item: Item, slots: tuple[str, ...]) -> Attributes:
    return {slot: getattr(item, slot) for slot in slots}


def state_existence(rng: Random, scene: Scene) -> Caption | None:
    """State that there is an object."""
    item = rng.choice(scene.items)
    slots = rng.choice((("color", "shape"), ("size", "color", "shape"), ("size", "shape")))
    words = _pick(item, slots)
    changed = rng.choice(slots)
    wrong = {**words, changed: another(rng, words[changed], VALUES[changed])}
    if scene.count(**wrong):
        return None
    lead = rng.choice(("there is a", "a", "the image has a"))
    phrase = " ".join(f"{{{slot}}}" for slot in slots)
    return Caption(f"{lead} {phrase}", words, wrong)


def state_attribute(rng: Random, scene: Scene) -> Caption | None:
    """State an attribute of an object that another attribute makes clear."""
    known, stated = rng.choice((("shape", "color"), ("color", "shape"), ("shape", "size")))
    item = rng.choice(scene.items)
    if scene.count(**_pick(item, (known,))) != 1:
        return None
    words = _pick(item, (known, stated))
    wrong = {**words, stated: another(rng, words[stated], VALUES[stated])}
    if known == "color":
        return Caption("the {color} object is a {shape}", words, wrong)
    forms = (f"the {{shape}} is {{{stated}}}", f"the {stated} of the {{shape}} is {{{stated}}}")
    return Caption(rng.choice(forms), words, wrong)


def state_place(rng: Random, scene: Scene) -> Caption | None:
    """State where an object is."""
    item = rng.choice(scene.items)
    known = rng.choice((("color", "shape"), ("shape",), ("color",)))
    words = _pick(item, known)
    if scene.count(**words) != 1:
        return None
    subjects = {
        ("color", "shape"): "the {color} {shape}",
        ("shape",): "the {shape}",
        ("color",): "the {color} object",
    }
    return _place(rng, subjects[known], words, item)


def _place(
    rng: Random, subject: str, words: Attributes, item: Item, boxed: tuple[Item, ...] = ()
) -> Caption:
    vertical, horizontal = item.corner.split()
    form, places = rng.choice(
        (
            (
                "in the {vertical} {horizontal}",
                {"vertical": vertical, "horizontal": horizontal},
            ),
            ("at the {vertical}", {"vertical": vertical}),
            ("on the {horizontal}", {"horizontal": horizontal}),
        )
    )
    words = {**words, **places}
    changed = rng.choice(list(places))
    wrong = {**words, changed: HALVES[words[changed]]}
    return Caption(f"{subject} is {form}", words, wrong, boxed)


def state_number(rng: Random, scene: Scene) -> Caption | None:
    """State how many objects have a shape or a color."""
    kind = rng.choice(("shape", "color"))
    value = rng.choice(VALUES[kind])
    number = scene.count(**{kind: value})
    if number > 4:
        return None
    near = [n for n in (number - 1, number + 1) if 0 <= n <= 4]
    if kind == "shape":
        things = "{shape}"
        value = PLURALS[value]
    else:
        things = "{color} objects"
    words = {"number": str(number), kind: value}
    forms = (f"the number of {things} is {{number}}", f"there are {{number}} {things}")
    template = rng.choice(forms)
    return Caption(template, words, {**words, "number": str(rng.choice(near))})


def state_more(rng: Random, scene: Scene) -> Caption | None:
    """State of which shape there are more objects."""
    more, fewer = rng.sample(SHAPES, 2)
    if scene.count(shape=more) <= scene.count(shape=fewer):
        return None
    words = {"more": PLURALS[more], "fewer": PLURALS[fewer]}
    wrong = {"more": PLURALS[fewer], "fewer": PLURALS[more]}
    return Caption("there are more {more} than {fewer}", words, wrong)


def state_relation(rng: Random, scene: Scene) -> Caption | None:
    """State where an object stands with respect to another."""
    if len(scene.items) < 2:
        return None
    one, other = rng.sample(scene.items, 2)
    slots = rng.choice((("shape",), ("color", "shape")))
    if any(scene.count(**_pick(item, slots)) != 1 for item in (one, other)):
        return None
    words = _pick(one, slots)
    for slot in slots:
        words[f"{slot}2"] = getattr(other, slot)
    subject = " ".join(f"{{{slot}}}" for slot in slots)
    reference = " ".join(f"{{{slot}2}}" for slot in slots)
    sides = (f"the {subject}", f"the {reference}")
    return _relate(rng, sides, words, (one, other))


def _relate(
    rng: Random,
    sides: tuple[str, str],
    words: Attributes,
    pair: tuple[Item, Item],
    boxed: tuple[Item, ...] = (),
) -> Caption:
    phrases = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
    true = [name for name, phrase in phrases.items() if stands(pair[0], phrase, pair[1])]
    # never empty: two objects differ in row or column
    direction = rng.choice(true)
    of = " of" if direction in ("left", "right") else ""
    words = {**words, "direction": direction}
    wrong = {**words, "direction": DIRECTIONS[direction]}
    return Caption(f"{sides[0]} is {{direction}}{of} {sides[1]}", words, wrong, boxed)


def state_boxed(rng: Random, scene: Scene) -> Caption | None:
    """State something of an object that is called by its tag, which only its box makes clear.

    Whoever shows the caption fills `tag` and `tag2` with the names of the objects.
    """
    boxed = choose_boxed(rng, scene)
    if boxed is None:
        return None
    return state_of_boxed(rng, boxed)


def choose_boxed(rng: Random, scene: Scene) -> tuple[Item, ...] | None:
    """Return up to four objects whose tags differ; None if the drawn ones' do not."""
    boxed = tuple(rng.sample(scene.items, rng.randint(1, min(4, len(scene.items)))))
    things = [item.shape for item in boxed if item.shape != "person"]
    # two boxed circles would have the same tag
    if len(set(things)) < len(things):
        return None
    return boxed


def state_of_boxed(rng: Random, boxed: tuple[Item, ...]) -> Caption | None:
    """State something of the first of these objects."""
    item = boxed[0]
    form = rng.choice(("color", "place", "relation"))
    if form == "place":
        return _place(rng, "{tag}", {}, item, boxed)
    if form == "color":
        wrong = [other.color for other in boxed if other.color != item.color]
        if not wrong:
            wrong = [another(rng, item.color, COLORS)]
        chosen = {"color": rng.choice(wrong)}
        return Caption("{tag} is {color}", {"color": item.color}, chosen, boxed)
    if len(boxed) < 2:
        return None
    return _relate(rng, ("{tag}", "{tag2}"), {}, (boxed[0], boxed[1]), boxed)


# how captions of a kind are made, and their weight
MAKERS: dict[str, tuple[Callable[[Random, Scene], Caption | None], float]] = {
    "existence": (state_existence, 3),
    "attribute": (state_attribute, 4),
    "place": (state_place, 4),
    "number": (state_number, 2.5),
    "more": (state_more, 1),
    "relation": (state_relation, 3),
    "boxed": (state_boxed, 4),
}
