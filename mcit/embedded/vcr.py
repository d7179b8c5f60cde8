"""The embedded VCR: questions about tagged objects, four answers of which one is right, boxes in metadata files.

A tag is a list of object numbers inside a list of words. Which circle "the circle" is, only its box tells. People come
first among the objects of an image, as most do in the original.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mcit.embedded.render import SIDE, box_of, draw, encode, outline_of
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


@dataclass(frozen=True)
class Question:
    """A question whose words may be objects, the right answer, three wrong ones, and the object it is all about."""

    words: tuple[str | Item, ...]
    right: tuple[str | Item, ...]
    wrong: tuple[tuple[str | Item, ...], ...]
    about: Item
    scene: Scene


def ask_color(rng: Random) -> Question:
    """Another object of the same shape has another colour, which is among the wrong answers."""
    shape, color = rng.choice(SHAPES), rng.choice(COLORS)
    item, twin = place_apart(
        rng,
        [{"shape": shape, "color": color}, {"shape": shape, "color": another(rng, color, COLORS)}],
    )
    scene = fill_scene(rng, [item, twin], (1, 3))
    others = [other for other in COLORS if other not in (color, twin.color)]
    wrong = [twin.color, *rng.sample(others, 2)]
    return Question(
        ("What", "color", "is", item, "?"),
        (color, "."),
        tuple((other, ".") for other in wrong),
        item,
        scene,
    )


def ask_place(rng: Random) -> Question:
    """Another object of the same shape stands in another corner."""
    shape, corner = rng.choice(SHAPES), rng.choice(CORNERS)
    item = draw_item(rng, cells_of(corner), shape=shape)
    twin = draw_item(rng, cells_of(another(rng, corner, CORNERS)), shape=shape)
    scene = fill_scene(rng, [item, twin], (1, 3))
    return _ask_corner(item, scene)


def _ask_corner(item: Item, scene: Scene) -> Question:
    wrong = [corner for corner in CORNERS if corner != item.corner]
    answers = [("In", "the", *corner.split(), ".") for corner in (item.corner, *wrong)]
    return Question(("Where", "is", item, "?"), answers[0], tuple(answers[1:]), item, scene)


def ask_neighbour(rng: Random) -> Question:
    """Of five objects of five shapes, just one stands in the relation to the first."""
    relation, shapes = rng.choice(list(RELATIONS)), rng.sample(SHAPES, 5)
    while True:
        item, right, *wrong = place_apart(rng, [{"shape": shape} for shape in shapes])
        if stands(right, relation, item) and not any(
            stands(other, relation, item) for other in wrong
        ):
            break
    scene = fill_scene(rng, [item, right, *wrong], (0, 0))
    words = ("What", "is", *relation.split(), item, "?")
    return Question(words, (right, "."), tuple((other, ".") for other in wrong), item, scene)


def ask_who(rng: Random) -> Question:
    """Four people, each in a colour of their own; their boxes tell their names."""
    people = place_apart(
        rng, [{"shape": "person", "color": color} for color in rng.sample(COLORS, 4)]
    )
    scene = fill_scene(rng, people, (0, 2), lambda item: item.shape != "person")
    right, *wrong = people
    return Question(
        ("Who", "is", right.color, "?"),
        (right, "."),
        tuple((other, ".") for other in wrong),
        right,
        scene,
    )


def ask_again(rng: Random, first: Question) -> Question:
    """Another question about the same image: the colour or the corner of any of its objects."""
    scene = first.scene
    item, by_color = rng.choice(scene.items), rng.random() < 0.5
    if (item, by_color) == (first.about, first.words[0] == "What"):
        by_color = not by_color
    if by_color:
        wrong = rng.sample([color for color in COLORS if color != item.color], 3)
        return Question(
            ("What", "color", "is", item, "?"),
            (item.color, "."),
            tuple((c, ".") for c in wrong),
            item,
            scene,
        )
    return _ask_corner(item, scene)


MAKERS = (ask_color, ask_place, ask_neighbour, ask_who)
SHARES = (0.2, 0.15, 0.4, 0.25)  # of the first questions; the second are about colours and corners


def explain(rng: Random, item: Item) -> tuple[tuple[str | Item, ...], ...]:
    """Four descriptions of an object, the first of them right."""
    color, corner = another(rng, item.color, COLORS), another(rng, item.corner, CORNERS)
    pairs = ((item.color, item.corner), (color, item.corner), (item.color, corner), (color, corner))
    return tuple(
        (item, "is", tint, "and", "in", "the", *place.split(), ".") for tint, place in pairs
    )


def write_vcr(root: Path, split: str, count: int, rng: Random) -> None:
    """Annotations, images and metadata of `train` or `val`: two questions about each image."""
    folder, records = root / "vcr" / "vcr1images" / f"embedded_{split}", []
    folder.mkdir(parents=True, exist_ok=True)
    for image in range((count + 1) // 2):
        first = rng.choices(MAKERS, SHARES)[0](rng)
        objects = sorted(
            first.scene.items, key=lambda item: item.shape != "person"
        )  # stable: people first
        (folder / f"{image:06d}.jpg").write_bytes(encode(draw(first.scene), ".jpg"))
        (folder / f"{image:06d}.json").write_text(json.dumps(_metadata(objects)), encoding="utf-8")
        for number, question in enumerate((first, ask_again(rng, first))):
            records.append(
                _record(
                    rng, split, 2 * image + number, f"{folder.name}/{image:06d}", question, objects
                )
            )
    (root / "vcr" / "annotation").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records[:count])
    (root / "vcr" / "annotation" / f"{split}.jsonl").write_text(lines, encoding="utf-8")


def _metadata(objects: list[Item]) -> dict:
    return {
        "boxes": [[*map(float, box_of(item)), 1.0] for item in objects],
        "segms": [[outline_of(item)] for item in objects],
        "names": [item.shape for item in objects],
        "width": SIDE,
        "height": SIDE,
    }


def _record(
    rng: Random, split: str, number: int, name: str, question: Question, objects: list[Item]
) -> dict:
    def tag(words: tuple[str | Item, ...]) -> list:
        return [word if isinstance(word, str) else [objects.index(word)] for word in words]

    def spell(words: tuple[str | Item, ...]) -> str:
        return " ".join(
            word if isinstance(word, str) else f"[{word.shape}{objects.index(word) + 1}]"
            for word in words
        )

    answers, answer_label = _shuffle(rng, (question.right, *question.wrong))
    explanations = explain(rng, question.about)
    rationales, rationale_label = _shuffle(rng, explanations)
    return {
        "movie": name.split("/")[0],
        "objects": [item.shape for item in objects],
        "interesting_scores": [1],
        "answer_likelihood": "likely",
        "img_fn": f"{name}.jpg",
        "metadata_fn": f"{name}.json",
        "answer_orig": spell(question.right),
        "question_orig": spell(question.words),
        "rationale_orig": spell(explanations[0]),
        "question": tag(question.words),
        "answer_match_iter": [0, 1, 2, 3],
        "answer_sources": [0, 0, 0, 0],
        "answer_choices": [tag(answer) for answer in answers],
        "answer_label": answer_label,
        "rationale_choices": [tag(rationale) for rationale in rationales],
        "rationale_sources": [0, 0, 0, 0],
        "rationale_match_iter": [0, 1, 2, 3],
        "rationale_label": rationale_label,
        "img_id": f"{split}-{number // 2}",
        "question_number": number % 2,
        "annot_id": f"{split}-{number}",
        "match_fold": f"{split}-0",
        "match_index": number,
    }


def _shuffle(rng: Random, choices: tuple) -> tuple[list, int]:
    """The choices in random order, and where the first of them went."""
    order = rng.sample(range(len(choices)), len(choices))
    return [choices[place] for place in order], order.index(0)
