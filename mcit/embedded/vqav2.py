"""The embedded VQAv2: one question per scene, ten annotators who sometimes disagree, COCO's file names."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from mcit.embedded.render import draw, encode
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
    near_misses,
    place_apart,
    stands,
)

NUMBERS = ("0", "1", "2", "3", "4")
NUMBER_WORDS = ("zero", "one", "two", "three", "four")


@dataclass(frozen=True)
class Question:
    """A question, its answer, what an annotator might say instead, and a scene in which the answer is right."""

    text: str
    answer: str
    rivals: tuple[str, ...]
    scene: Scene


def ask_color(rng: Random) -> Question:
    shape, answer = rng.choice(SHAPES), rng.choice(COLORS)
    scene = fill_scene(
        rng, [draw_item(rng, shape=shape, color=answer)], allowed=lambda item: item.shape != shape
    )
    return Question(f"What color is the {shape}?", answer, COLORS, scene)


def ask_shape(rng: Random) -> Question:
    color, answer = rng.choice(COLORS), rng.choice(SHAPES)
    scene = fill_scene(
        rng, [draw_item(rng, shape=answer, color=color)], allowed=lambda item: item.color != color
    )
    return Question(f"What is the {color} object?", answer, SHAPES, scene)


def ask_neighbour(rng: Random) -> Question:
    """What is left of the red object? Only one object is, and the others are not."""
    relation, color, answer = rng.choice(list(RELATIONS)), rng.choice(COLORS), rng.choice(SHAPES)
    asked, other = {"shape": answer, "color": another(rng, color, COLORS)}, {"color": color}
    first, second = draw_pair(rng, relation, asked, other)
    scene = fill_scene(
        rng,
        [first, second],
        (1, 3),
        lambda item: item.color != color and not stands(item, relation, second),
    )
    return Question(f"What is {relation} the {color} object?", answer, SHAPES, scene)


def ask_number(rng: Random) -> Question:
    kind, value = rng.choice(
        [("shape", shape) for shape in SHAPES] + [("color", color) for color in COLORS]
    )
    answer = rng.choice(NUMBERS)
    counted = place_apart(rng, [{kind: value}] * int(answer))
    scene = fill_scene(rng, counted, (1, 3), allowed=lambda item: getattr(item, kind) != value)
    things = PLURALS[value] if kind == "shape" else f"{value} objects"
    near = tuple(NUMBERS[n] for n in (int(answer) - 1, int(answer) + 1) if 0 <= n < len(NUMBERS))
    return Question(f"How many {things} are there?", answer, near, scene)


def ask_existence(rng: Random) -> Question:
    """Where the answer is no, the colour and the shape are still there, on two different objects."""
    color, shape, answer = rng.choice(COLORS), rng.choice(SHAPES), rng.choice(("yes", "no"))
    items = place_apart(rng, near_misses(rng, color, shape))
    if answer == "yes":
        items[0] = replace(items[0], color=color, shape=shape)
    scene = fill_scene(rng, items, (1, 3), lambda item: (item.color, item.shape) != (color, shape))
    return Question(f"Is there a {color} {shape}?", answer, ("yes", "no"), scene)


def ask_place(rng: Random) -> Question:
    color, shape, answer = rng.choice(COLORS), rng.choice(SHAPES), rng.choice(CORNERS)
    item = draw_item(rng, cells_of(answer), color=color, shape=shape)
    scene = fill_scene(rng, [item], allowed=lambda item: (item.color, item.shape) != (color, shape))
    return Question(f"Where is the {color} {shape}?", answer, CORNERS, scene)


KINDS = {  # maker, share of all questions, official question type and answer type
    ask_color: (0.28, "what color is the", "other"),
    ask_shape: (0.20, "what is the", "other"),
    ask_neighbour: (0.10, "what is", "other"),
    ask_number: (0.18, "how many", "number"),
    ask_existence: (0.08, "is there a", "yes/no"),
    ask_place: (0.16, "where is the", "other"),
}


def annotate(rng: Random, question: Question) -> list[str]:
    """Ten answers. Some write a number as a word or a noun with its article, and up to three of them are wrong."""
    wrong = rng.choice((0, 0, 0, 0, 1, 2, 3))
    answers = (
        [another(rng, question.answer, question.rivals) for _ in range(wrong)]
        if len(question.rivals) > 1
        else []
    )
    for _ in range(10 - len(answers)):
        answer = question.answer
        if answer in NUMBERS and rng.random() < 0.1:
            answer = NUMBER_WORDS[int(answer)]
        elif answer in SHAPES and rng.random() < 0.1:
            answer = f"a {answer}"
        answers.append(answer)
    rng.shuffle(answers)
    return answers


def write_vqav2(root: Path, split: str, count: int, rng: Random) -> None:
    """Questions, annotations and images of `train` or `val`."""
    makers, shares = list(KINDS), [share for share, _, _ in KINDS.values()]
    questions, annotations = [], []
    images = root / "ms-coco" / "images"
    images.mkdir(parents=True, exist_ok=True)
    first = 1 if split == "train" else 500_001
    for image_id in range(first, first + count):
        maker = rng.choices(makers, shares)[0]
        question = maker(rng)
        _, question_type, answer_type = KINDS[maker]
        answers = annotate(rng, question)
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
        (images / name).write_bytes(encode(draw(question.scene), ".jpg"))
    folder = root / "vqav2"
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / f"v2_OpenEnded_mscoco_{split}2014_questions.json",
        split,
        "OpenEnded",
        "questions",
        questions,
    )
    _write(
        folder / f"v2_mscoco_{split}2014_annotations.json", split, None, "annotations", annotations
    )


def _write(path: Path, split: str, task_type: str | None, key: str, records: list[dict]) -> None:
    head = {
        "info": {"description": "mcit embedded benchmark", "version": "2.0"},
        "data_type": "mscoco",
    }
    head |= {"data_subtype": f"{split}2014", **({"task_type": task_type} if task_type else {})}
    path.write_text(json.dumps({**head, key: records}), encoding="utf-8")
