"""The embedded VCR: questions about tagged objects, with four answers of which one is right.

A tag is a list of object numbers inside a list of words. Which circle "the circle" is, only its box
says. People come first among the objects of an image, as most do in the original.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from mcit.embedded.render import SIDE, box_of, outline_of, save, save_lines
from mcit.embedded.scenes import (
    COLORS,
    CORNERS,
    RELATIONS,
    SHAPES,
    Item,
    Scene,
    another,
    cells_of,
    draw_item,
    fill_scene,
    place_apart,
    stands,
)

# words, some of which are objects
Words = tuple[str | Item, ...]


@dataclass(frozen=True)
class Question:
    """A question, the right answer and three wrong ones, and the object it is all about."""

    words: Words
    # the right one first
    answers: tuple[Words, ...]
    about: Item
    scene: Scene


def ask_color(rng: Random) -> Question:
    """Ask for a color; another object of the same shape has one of the wrong answers."""
    shape = rng.choice(SHAPES)
    color = rng.choice(COLORS)
    twin_color = another(rng, color, COLORS)
    item, twin = place_apart(
        rng, [{"shape": shape, "color": color}, {"shape": shape, "color": twin_color}]
    )
    scene = fill_scene(rng, [item, twin], (1, 3))
    others = [other for other in COLORS if other not in (color, twin_color)]
    return _ask_color(item, [twin_color, *rng.sample(others, 2)], scene)


def _ask_color(item: Item, wrong: Sequence[str], scene: Scene) -> Question:
    answers = tuple((color, ".") for color in (item.color, *wrong))
    return Question(("What", "color", "is", item, "?"), answers, item, scene)


def ask_place(rng: Random) -> Question:
    """Ask for a corner; another object of the same shape stands in another one."""
    shape = rng.choice(SHAPES)
    corner = rng.choice(CORNERS)
    item = draw_item(rng, cells_of(corner), shape=shape)
    twin = draw_item(rng, cells_of(another(rng, corner, CORNERS)), shape=shape)
    return _ask_corner(item, fill_scene(rng, [item, twin], (1, 3)))


def _ask_corner(item: Item, scene: Scene) -> Question:
    wrong = [corner for corner in CORNERS if corner != item.corner]
    answers = tuple(("In", "the", *corner.split(), ".") for corner in (item.corner, *wrong))
    return Question(("Where", "is", item, "?"), answers, item, scene)


def ask_neighbor(rng: Random) -> Question:
    """Ask for the one of five objects of five shapes that stands in the relation to the first."""
    relation = rng.choice(list(RELATIONS))
    shapes = rng.sample(SHAPES, 5)
    while True:
        item, right, *wrong = place_apart(rng, [{"shape": shape} for shape in shapes])
        others = [other for other in wrong if stands(other, relation, item)]
        if stands(right, relation, item) and not others:
            break
    scene = fill_scene(rng, [item, right, *wrong], (0, 0))
    answers = tuple((other, ".") for other in (right, *wrong))
    return Question(("What", "is", *relation.split(), item, "?"), answers, item, scene)


def ask_who(rng: Random) -> Question:
    """Ask for one of four people, each in a color of their own; boxes decide on their names."""
    colors = rng.sample(COLORS, 4)
    people = place_apart(rng, [{"shape": "person", "color": color} for color in colors])
    scene = fill_scene(rng, people, (0, 2), lambda item: item.shape != "person")
    answers = tuple((person, ".") for person in people)
    return Question(("Who", "is", people[0].color, "?"), answers, people[0], scene)


def ask_again(rng: Random, first: Question) -> Question:
    """Ask another question about the same image: the color or the corner of any of its objects."""
    item = rng.choice(first.scene.items)
    by_color = rng.random() < 0.5
    if (item, by_color) == (first.about, first.words[0] == "What"):
        by_color = not by_color
    if not by_color:
        return _ask_corner(item, first.scene)
    others = [color for color in COLORS if color != item.color]
    return _ask_color(item, rng.sample(others, 3), first.scene)


MAKERS = (ask_color, ask_place, ask_neighbor, ask_who)
# of the first questions; the second are about colors and corners
SHARES = (0.2, 0.15, 0.4, 0.25)


def explain(rng: Random, item: Item) -> tuple[Words, ...]:
    """Return four descriptions of an object, the first of them right."""
    color = another(rng, item.color, COLORS)
    corner = another(rng, item.corner, CORNERS)
    pairs = ((item.color, item.corner), (color, item.corner), (item.color, corner), (color, corner))
    return tuple(
        (item, "is", tint, "and", "in", "the", *place.split(), ".") for tint, place in pairs
    )


def write_vcr(root: Path, split: str, count: int, rng: Random) -> None:
    """Write annotations, images and metadata of `train` or `val`: two questions per image."""
    folder = root / "vcr" / "vcr1images" / f"embedded_{split}"
    records = []
    for image in range((count + 1) // 2):
        first = rng.choices(MAKERS, SHARES)[0](rng)
        # a stable order: people first
        objects = sorted(first.scene.items, key=lambda item: item.shape != "person")
        name = f"{image:06d}"
        save(first.scene, folder / f"{name}.jpg")
        metadata = json.dumps(_make_metadata(objects))
        (folder / f"{name}.json").write_text(metadata, encoding="utf-8")
        for number, question in enumerate((first, ask_again(rng, first))):
            place = f"{folder.name}/{name}"
            index = 2 * image + number
            records.append(_make_record(rng, question, objects, place, split=split, index=index))
    save_lines(records[:count], root / "vcr" / "annotation" / f"{split}.jsonl")


def _make_metadata(objects: list[Item]) -> dict[str, Any]:
    return {
        "boxes": [[*map(float, box_of(item)), 1.0] for item in objects],
        "segms": [[outline_of(item)] for item in objects],
        "names": [item.shape for item in objects],
        "width": SIDE,
        "height": SIDE,
    }


def _make_record(
    rng: Random, question: Question, objects: list[Item], place: str, split: str, index: int
) -> dict[str, Any]:
    answers, answer_label = _shuffle(rng, question.answers)
    explanations = explain(rng, question.about)
    rationales, rationale_label = _shuffle(rng, explanations)
    return {
        "movie": place.partition("/")[0],
        "objects": [item.shape for item in objects],
        "interesting_scores": [1],
        "answer_likelihood": "likely",
        "img_fn": f"{place}.jpg",
        "metadata_fn": f"{place}.json",
        "answer_orig": _spell(question.answers[0], objects),
        "question_orig": _spell(question.words, objects),
        "rationale_orig": _spell(explanations[0], objects),
        "question": _tag(question.words, objects),
        "answer_match_iter": [0, 1, 2, 3],
        "answer_sources": [0, 0, 0, 0],
        "answer_choices": [_tag(answer, objects) for answer in answers],
        "answer_label": answer_label,
        "rationale_choices": [_tag(rationale, objects) for rationale in rationales],
        "rationale_sources": [0, 0, 0, 0],
        "rationale_match_iter": [0, 1, 2, 3],
        "rationale_label": rationale_label,
        "img_id": f"{split}-{index // 2}",
        "question_number": index % 2,
        "annot_id": f"{split}-{index}",
        "match_fold": f"{split}-0",
        "match_index": index,
    }


def _tag(words: Words, objects: list[Item]) -> list[str | list[int]]:
    """Return words with numbers of objects, as the annotations have them."""
    return [word if isinstance(word, str) else [objects.index(word)] for word in words]


def _spell(words: Words, objects: list[Item]) -> str:
    """Return words as a sentence, with tags such as [person1]."""
    spelled = []
    for word in words:
        if isinstance(word, Item):
            word = f"[{word.shape}{objects.index(word) + 1}]"
        spelled.append(word)
    return " ".join(spelled)


def _shuffle(rng: Random, choices: Sequence[Words]) -> tuple[list[Words], int]:
    """Return the choices in random order, and where the first of them went."""
    order = rng.sample(range(len(choices)), len(choices))
    return [choices[place] for place in order], order.index(0)
