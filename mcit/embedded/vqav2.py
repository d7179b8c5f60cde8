"""The embedded VQAv2: one question per scene, and ten annotators who sometimes disagree."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from mcit.embedded.render import save
from mcit.embedded.scenes import (
    COLORS,
    CORNERS,
    PLURALS,
    RELATIONS,
    SHAPES,
    Scene,
    another,
    cells_of,
    draw_item,
    draw_pair,
    fill_scene,
    has,
    near_misses,
    place_apart,
    stands,
)

NUMBERS = ("0", "1", "2", "3", "4")
NUMBER_WORDS = ("zero", "one", "two", "three", "four")


@dataclass(frozen=True)
class Question:
    """A question, its answer, what an annotator might say instead, and a scene that fits."""

    text: str
    answer: str
    rivals: tuple[str, ...]
    scene: Scene


def ask_color(rng: Random) -> Question:
    """Ask for the color of the only object of a shape."""
    shape = rng.choice(SHAPES)
    answer = rng.choice(COLORS)
    item = draw_item(rng, shape=shape, color=answer)
    scene = fill_scene(rng, [item], allowed=lambda other: other.shape != shape)
    return Question(f"What color is the {shape}?", answer, COLORS, scene)


def ask_shape(rng: Random) -> Question:
    """Ask for the shape of the only object of a color."""
    color = rng.choice(COLORS)
    answer = rng.choice(SHAPES)
    item = draw_item(rng, shape=answer, color=color)
    scene = fill_scene(rng, [item], allowed=lambda other: other.color != color)
    return Question(f"What is the {color} object?", answer, SHAPES, scene)


def ask_neighbor(rng: Random) -> Question:
    """Ask what is left of the red object: only one object is."""
    relation = rng.choice(list(RELATIONS))
    color = rng.choice(COLORS)
    answer = rng.choice(SHAPES)
    asked = {"shape": answer, "color": another(rng, color, COLORS)}
    first, second = draw_pair(rng, relation, asked, {"color": color})
    scene = fill_scene(
        rng,
        [first, second],
        (1, 3),
        lambda item: item.color != color and not stands(item, relation, second),
    )
    return Question(f"What is {relation} the {color} object?", answer, SHAPES, scene)


def ask_number(rng: Random) -> Question:
    """Ask for the number of objects of a shape or a color."""
    shapes = [("shape", shape) for shape in SHAPES]
    colors = [("color", color) for color in COLORS]
    kind, value = rng.choice(shapes + colors)
    number = int(rng.choice(NUMBERS))
    counted = place_apart(rng, [{kind: value}] * number)
    scene = fill_scene(rng, counted, (1, 3), lambda item: not has(item, {kind: value}))
    things = PLURALS[value] if kind == "shape" else f"{value} objects"
    near = tuple(NUMBERS[n] for n in (number - 1, number + 1) if 0 <= n < len(NUMBERS))
    return Question(f"How many {things} are there?", NUMBERS[number], near, scene)


def ask_existence(rng: Random) -> Question:
    """Ask for an object. If the answer is no, its color and its shape are there on two others."""
    color = rng.choice(COLORS)
    shape = rng.choice(SHAPES)
    wanted = {"color": color, "shape": shape}
    answer = rng.choice(("yes", "no"))
    items = place_apart(rng, near_misses(rng, color, shape))
    if answer == "yes":
        items[0] = replace(items[0], color=color, shape=shape)
    scene = fill_scene(rng, items, (1, 3), lambda item: not has(item, wanted))
    return Question(f"Is there a {color} {shape}?", answer, ("yes", "no"), scene)


def ask_place(rng: Random) -> Question:
    """Ask for the corner of the only such object."""
    wanted = {"color": rng.choice(COLORS), "shape": rng.choice(SHAPES)}
    answer = rng.choice(CORNERS)
    item = draw_item(rng, cells_of(answer), **wanted)
    scene = fill_scene(rng, [item], allowed=lambda other: not has(other, wanted))
    text = f"Where is the {wanted['color']} {wanted['shape']}?"
    return Question(text, answer, CORNERS, scene)


# maker -> share of all questions, official question type and answer type
KINDS = {
    ask_color: (0.28, "what color is the", "other"),
    ask_shape: (0.20, "what is the", "other"),
    ask_neighbor: (0.10, "what is", "other"),
    ask_number: (0.18, "how many", "number"),
    ask_existence: (0.08, "is there a", "yes/no"),
    ask_place: (0.16, "where is the", "other"),
}


def annotate(rng: Random, question: Question) -> list[str]:
    """Return ten answers: some as a number word or with an article, and up to three wrong."""
    wrong = rng.choice((0, 0, 0, 0, 1, 2, 3))
    answers = []
    if len(question.rivals) > 1:
        answers = [another(rng, question.answer, question.rivals) for _ in range(wrong)]
    while len(answers) < 10:
        answer = question.answer
        if answer in NUMBERS and rng.random() < 0.1:
            answer = NUMBER_WORDS[int(answer)]
        elif answer in SHAPES and rng.random() < 0.1:
            answer = f"a {answer}"
        answers.append(answer)
    rng.shuffle(answers)
    return answers


def write_vqav2(root: Path, split: str, count: int, rng: Random) -> None:
    """Write questions, annotations and images of `train` or `val`."""
    shares = [share for share, _, _ in KINDS.values()]
    questions = []
    annotations = []
    images = root / "ms-coco" / "images"
    first = 1 if split == "train" else 500_001
    for image_id in range(first, first + count):
        make = rng.choices(list(KINDS), shares)[0]
        question = make(rng)
        answers = annotate(rng, question)
        _, question_type, answer_type = KINDS[make]
        question_id = image_id * 1000
        questions.append(
            {"image_id": image_id, "question": question.text, "question_id": question_id}
        )
        annotations.append(
            {
                "question_type": question_type,
                "multiple_choice_answer": question.answer,
                "answers": [
                    {"answer": answer, "answer_confidence": "yes", "answer_id": place}
                    for place, answer in enumerate(answers, start=1)
                ],
                "image_id": image_id,
                "answer_type": answer_type,
                "question_id": question_id,
            }
        )
        name = f"COCO_{split}2014_{image_id:012d}.jpg"
        save(question.scene, images / name)
    folder = root / "vqav2"
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "info": {"description": "mcit embedded benchmark", "version": "2.0"},
        "data_type": "mscoco",
        "data_subtype": f"{split}2014",
    }
    asked = {**head, "task_type": "OpenEnded", "questions": questions}
    path = folder / f"v2_OpenEnded_mscoco_{split}2014_questions.json"
    path.write_text(json.dumps(asked), encoding="utf-8")
    path = folder / f"v2_mscoco_{split}2014_annotations.json"
    path.write_text(json.dumps({**head, "annotations": annotations}), encoding="utf-8")
