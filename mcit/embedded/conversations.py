"""Conversations that the small LLaVA is pretrained on: captions, told, completed and matched.

A conversation is about one scene, or two, and has a few turns. A turn gives a caption (`tell`),
fills a gap in one (`fill`), says whether one matches by yes or no (`match`) or by whatever words
it is told to use (`say`), picks the letter of what fits (`pick`) or, with two scenes, says which of
them a caption fits (`which`). What is to be done is said before a caption or after it: a model
that reads from left to right must be ready to compare before it knows that it is asked to. The
captions are those of the small ViLT; the tasks' own questions and instructions are not in here.
"""

from __future__ import annotations

import re
import string
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from mcit.data.boxes import NAMES
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.embedded.captions import (
    DIRECTIONS,
    HALVES,
    MAKERS,
    VALUES,
    Caption,
    choose_boxed,
    state_of_boxed,
)
from mcit.embedded.pretraining import IGNORED, read_texts, show_boxes
from mcit.embedded.render import draw
from mcit.embedded.scenes import (
    COLORS,
    CORNERS,
    GRID,
    HALF,
    PLURALS,
    RELATIONS,
    SHAPES,
    SIZES,
    Item,
    Scene,
    fill_scene,
    has,
    stands,
)

PAD = "<pad>"
UNKNOWN = "<unk>"
END = "</s>"
IMAGE = "<image>"
USER = "USER:"
ASSISTANT = "ASSISTANT:"
SPECIAL = (PAD, UNKNOWN, END, IMAGE, USER, ASSISTANT)
GAP = "_"
LETTERS = ("A", "B", "C", "D")
# image tokens: one per cell of the grid
TOKENS = 16
# instructions of published benchmarks, so that a prompt need not be spelled in characters
INSTRUCTIONS = (
    "Answer the question using a single word or phrase.",
    "Answer with the option's letter from the given choices directly.",
    "Is this statement true or false? True False true false",
    "Is the statement true or false of the two images? Answer with true or false.",
    "Does the image entail, contradict or leave open the statement? "
    "Answer with entailment, neutral or contradiction.",
    "Does the image entail the hypothesis: entailment, neutral, contradiction?",
    "The first image is on the left, the second image is on the right.",
    "Look at the images and the sentence. Choose one of these options: yes or no.",
    "Question Answer Options Choices Statement Hypothesis Sentence Context Image Picture",
    "Generate a brief caption for the image. What is happening in the image?",
    "Please describe what you see; respond with unanswerable if the information is insufficient.",
    "Which of the following is correct, wrong, right, given, about, below, above?",
    "correct answer is option letter word words only one using directly Reply Respond Give Say",
)


# words for what fits and what does not, of which a prompt names two; none is an answer of a task
VERDICTS = ("good", "bad", "fine", "odd", "up", "down", "high", "low", "hot", "cold")
# of captions without boxes, with their weights
KINDS = {"existence": 3, "attribute": 5, "place": 4, "number": 2, "more": 0.5, "relation": 1.5}

# whether the left and the right one of two scenes have an object -> in words
WHICH = {
    (True, True): "both",
    (True, False): "left",
    (False, True): "right",
    (False, False): "neither",
}
# a place, and in which scenes an object is of which that is true
PLACES_OF_TWO = {
    "the left image": ((True, True), (True, False)),
    "the right image": ((True, True), (False, True)),
    "each image": ((True, True),),
    "a single image": ((True, False), (False, True)),
    "no image": ((False, False),),
}

Pictures = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Turn:
    """What is said to the model, and what it is to answer."""

    prompt: str
    answer: str
    kind: str


@dataclass(frozen=True)
class Conversation:
    """One or two pictures and the turns about them."""

    pictures: Pictures
    turns: tuple[Turn, ...]


def write_sentence(text: str) -> str:
    """Return a caption with a capital and a period."""
    return f"{text[0].upper()}{text[1:]}."


def say(rng: Random, text: str) -> str:
    """Return a caption as a sentence, or as it is."""
    if rng.random() < 0.5:
        return text
    return write_sentence(text)


def tell(captions: Sequence[str], kind: str) -> Turn:
    """Ask for a description; here are some captions."""
    text = " ".join(map(write_sentence, captions))
    return Turn("Describe the image.", text, f"tell: {kind}")


def choose_slot(rng: Random, caption: Caption) -> str:
    """Return the slot that is left open: a number, where there is one."""
    if "number" in caption.words:
        return "number"
    return rng.choice(list(caption.words))


def fill(rng: Random, caption: Caption, tags: dict[str, str]) -> Turn:
    """Ask for a word that is missing in a caption."""
    slot = choose_slot(rng, caption)
    text = caption.template.format(**{**caption.words, slot: GAP}, **tags)
    return Turn(f"Fill the gap: {say(rng, text)}", caption.words[slot], f"fill: {caption.kind}")


def match(rng: Random, caption: Caption, tags: dict[str, str]) -> Turn:
    """Ask whether a caption matches."""
    truth = rng.random() < 0.5
    words = caption.words if truth else caption.wrong
    return judge(rng, caption.template.format(**words, **tags), truth, caption.kind)


def judge(rng: Random, text: str, truth: bool, kind: str) -> Turn:
    """Ask whether a text is true, in one of four forms."""
    before = rng.random() < 0.5
    if rng.random() < 0.4:
        answer = "yes" if truth else "no"
        if before:
            return Turn(f"Does it match: {say(rng, text)}", answer, f"match: {kind}")
        return Turn(f"{write_sentence(text)} Does it match?", answer, f"match: {kind}")
    good, bad = rng.sample(VERDICTS, 2)
    answer = good if truth else bad
    wanted = f"Say {good} if it fits, else {bad}"
    if before:
        return Turn(f"{wanted}: {say(rng, text)}", answer, f"say: {kind}")
    return Turn(f"{write_sentence(text)} {wanted}.", answer, f"say: {kind}")


def list_rivals(slot: str, word: str) -> list[str]:
    """Return other words that could fill a slot."""
    name = slot.rstrip("2")
    if name == "number":
        return [number for number in "01234" if number != word]
    if name in ("more", "fewer") or word in PLURALS.values():
        return [plural for plural in PLURALS.values() if plural != word]
    if name in VALUES:
        return [value for value in VALUES[name] if value != word]
    if name == "direction":
        # of an object that is left of another, nothing is known but that it is not right of it
        return [DIRECTIONS[word]]
    return [HALVES[word]]


def letter(rng: Random, question: str, right: str, wrong: Sequence[str], kind: str) -> Turn:
    """Ask for the letter of the right one of up to four."""
    options = [right, *rng.sample(list(wrong), min(3, len(wrong)))]
    rng.shuffle(options)
    ending = rng.choice((".", ""))
    listed = " ".join(
        f"{name}. {option}{ending}" for name, option in zip(LETTERS, options, strict=False)
    )
    return Turn(f"{question} {listed}", LETTERS[options.index(right)], f"pick: {kind}")


def pick(rng: Random, caption: Caption, tags: dict[str, str]) -> Turn:
    """Ask for the letter of the word that is missing in a caption, or of both words of a corner."""
    if {"vertical", "horizontal"} <= caption.words.keys():
        gapped = caption.template.replace("{vertical} {horizontal}", GAP)
        text = gapped.format(**caption.words, **tags)
        right = "{vertical} {horizontal}".format(**caption.words)
        corners = [corner for corner in CORNERS if corner != right]
        return letter(rng, f"Pick: {say(rng, text)}", right, corners, caption.kind)
    slot = choose_slot(rng, caption)
    text = caption.template.format(**{**caption.words, slot: GAP}, **tags)
    wrong = list_rivals(slot, caption.words[slot])
    return letter(rng, f"Pick: {say(rng, text)}", caption.words[slot], wrong, caption.kind)


def pick_caption(rng: Random, captions: Sequence[Caption]) -> Turn:
    """Ask for the letter of the one caption that fits."""
    first, *others = captions
    right = first.template.format(**first.words)
    wrong = [caption.template.format(**caption.wrong) for caption in others]
    return letter(rng, "Pick what fits:", right, wrong, "caption")


def pick_object(rng: Random, boxed: Sequence[Item], names: Sequence[str]) -> Turn | None:
    """Ask for the letter of the one boxed object that has a color or stands somewhere."""
    pairs = list(zip(boxed, names, strict=True))
    one, name = pairs[0]
    if rng.random() < 0.4:
        wrong = [other for item, other in pairs[1:] if item.color != one.color]
        if len(wrong) < len(pairs) - 1 or not wrong:
            return None
        return letter(rng, f"Pick: {say(rng, f'{GAP} is {one.color}')}", name, wrong, "object")
    relation = rng.choice(list(RELATIONS))
    standing = [other for item, other in pairs[1:] if stands(item, relation, one)]
    wrong = [other for item, other in pairs[1:] if not stands(item, relation, one)]
    if not standing or not wrong:
        return None
    text = f"{GAP} is {relation} {name}"
    return letter(rng, f"Pick: {say(rng, text)}", rng.choice(standing), wrong, "object")


def caption_scene(rng: Random, scene: Scene) -> Caption:
    """Return a caption that needs no box."""
    while True:
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        caption = MAKERS[kind][0](rng, scene)
        if caption is not None:
            return replace(caption, kind=kind)


def talk(rng: Random, objects: tuple[int, int]) -> Iterator[tuple[Pictures, Turn]]:
    """Yield turns about one scene."""
    scene = fill_scene(rng, extra=objects)
    pictures = (draw(scene),)
    while True:
        caption = caption_scene(rng, scene)
        draw_turn = rng.random()
        if draw_turn < 0.2:
            turn = tell([caption.template.format(**caption.words)], caption.kind)
        elif draw_turn < 0.5:
            turn = fill(rng, caption, {})
        elif draw_turn < 0.8:
            turn = match(rng, caption, {})
        elif draw_turn < 0.95:
            turn = pick(rng, caption, {})
        else:
            others = [caption_scene(rng, scene) for _ in range(3)]
            turn = pick_caption(rng, [caption, *others])
        yield pictures, turn


def talk_of_boxes(rng: Random, objects: tuple[int, int]) -> Iterator[tuple[Pictures, Turn]]:
    """Yield turns about a scene, some of whose objects are boxed and called by tags."""
    boxed = None
    while boxed is None:
        scene = fill_scene(rng, extra=objects)
        boxed = choose_boxed(rng, scene)
    picture, names = name_boxed(scene, boxed)
    while True:
        order = rng.sample(range(len(boxed)), len(boxed))
        items = tuple(boxed[place] for place in order)
        called = [names[place] for place in order]
        turn = speak_of_boxed(rng, items, called)
        if turn is not None:
            yield (picture,), turn


def speak_of_boxed(rng: Random, items: tuple[Item, ...], names: Sequence[str]) -> Turn | None:
    """Return a turn about the first of these objects; None if what was drawn does not apply."""
    draw_turn = rng.random()
    if draw_turn < 0.35 and len(items) > 1:
        return pick_object(rng, items, names)
    caption = state_of_boxed(rng, items)
    if caption is None:
        return None
    caption = replace(caption, kind="boxed")
    tags = {"tag": names[0], "tag2": names[min(1, len(names) - 1)]}
    if draw_turn < 0.6:
        return pick(rng, caption, tags)
    if draw_turn < 0.75:
        return match(rng, caption, tags)
    if draw_turn < 0.9:
        return fill(rng, caption, tags)
    return tell([caption.template.format(**caption.words, **tags)], "boxed")


def name_boxed(scene: Scene, boxed: tuple[Item, ...]) -> tuple[np.ndarray, list[str]]:
    """Return the picture with boxes, and what each boxed object is called."""
    picture, _ = show_boxes(scene, boxed, draw(scene))
    names = []
    for item in boxed:
        _, tags = show_boxes(scene, (item,), picture)
        names.append(tags["tag"])
    return picture, names


def talk_of_two(rng: Random, objects: tuple[int, int]) -> Iterator[tuple[Pictures, Turn]]:
    """Yield turns about two scenes, of which the second may repeat objects."""
    left = fill_scene(rng, extra=objects)
    shared = []
    for item in left.items:
        if rng.random() < 0.35:
            shared.append(item)
    fewest = max(objects[0] - len(shared), 0)
    right = fill_scene(rng, shared, (fewest, max(objects[1] - len(shared), fewest)))
    scenes = [left, right]
    rng.shuffle(scenes)
    pictures = (draw(scenes[0]), draw(scenes[1]))
    while True:
        drawn = rng.random()
        if drawn < 0.3:
            yield pictures, which(rng, scenes)
            continue
        if drawn < 0.65:
            yield pictures, judge_both(rng, scenes)
            continue
        side = rng.randrange(2)
        caption = caption_scene(rng, scenes[side])
        template = f"in the {('left', 'right')[side]} image {caption.template}"
        placed = replace(caption, template=template, kind=f"two, {caption.kind}")
        make = rng.choices((match, fill), (0.6, 0.4))[0]
        yield pictures, make(rng, placed, {})


def find_fitting(rng: Random, scenes: Sequence[Scene]) -> tuple[str, tuple[bool, bool]]:
    """Return an object in words, and which of two scenes have it."""
    items = [*scenes[0].items, *scenes[1].items]
    one, other = rng.choice(items), rng.choice(items)
    wanted = {"color": one.color, "shape": one.shape}
    if rng.random() < 0.4:
        wanted["shape"] = other.shape
    left, right = (any(has(item, wanted) for item in scene.items) for scene in scenes)
    return f"a {wanted['color']} {wanted['shape']}", (left, right)


def which(rng: Random, scenes: Sequence[Scene]) -> Turn:
    """Ask which of two scenes a caption fits: left, right, both or neither."""
    named, found = find_fitting(rng, scenes)
    answer = WHICH[found]
    text = f"{rng.choice(('there is ', ''))}{named}"
    if rng.random() < 0.5:
        return Turn(f"Which image fits: {say(rng, text)}", answer, "which")
    return Turn(f"{write_sentence(text)} Which image fits?", answer, "which")


def judge_both(rng: Random, scenes: Sequence[Scene]) -> Turn:
    """Ask whether an object is where a caption of two scenes says; as often as not it is."""
    truth = rng.random() < 0.5
    while True:
        named, found = find_fitting(rng, scenes)
        place, holds = rng.choice(list(PLACES_OF_TWO.items()))
        if (found in holds) == truth:
            return judge(rng, f"{named} is in {place}", truth, "two, which")


def make_conversation(rng: Random, objects: tuple[int, int], length: int) -> Conversation:
    """Return a random conversation of so many tokens, if it has more than one turn."""
    maker = rng.choices((talk, talk_of_boxes, talk_of_two), (0.4, 0.3, 0.3))[0]
    said = maker(rng, objects)
    pictures, first = next(said)
    turns = [first]
    length -= TOKENS * len(pictures) + count_tokens(first)
    while True:
        _, turn = next(said)
        length -= count_tokens(turn)
        if length < 0:
            return Conversation(pictures, tuple(turns))
        turns.append(turn)


def count_tokens(turn: Turn) -> int:
    """Return the tokens of a turn: its words and three marks."""
    return len(split_words(turn.prompt)) + len(split_words(turn.answer)) + 3


def make_description(rng: Random, objects: tuple[int, int], length: int) -> Conversation:
    """Return a scene, or two, described by as many captions as so many tokens hold."""
    scene = fill_scene(rng, extra=objects)
    form = rng.choices(("one", "boxed", "two"), (0.5, 0.25, 0.25))[0]
    boxed = choose_boxed(rng, scene) if form == "boxed" else None
    if boxed:
        picture, names = name_boxed(scene, boxed)
        pictures: Pictures = (picture,)
    elif form == "two":
        scenes = [scene, fill_scene(rng, extra=objects)]
        pictures = (draw(scenes[0]), draw(scenes[1]))
    else:
        pictures = (draw(scene),)
    captions: list[str] = []
    length -= TOKENS * len(pictures) + 8
    while True:
        if boxed:
            order = rng.sample(range(len(boxed)), len(boxed))
            caption = state_of_boxed(rng, tuple(boxed[place] for place in order))
            if caption is None:
                continue
            tags = {"tag": names[order[0]], "tag2": names[order[min(1, len(order) - 1)]]}
            text = caption.template.format(**caption.words, **tags)
        elif form == "two":
            side = rng.randrange(2)
            caption = caption_scene(rng, scenes[side])
            side_name = ("left", "right")[side]
            text = f"in the {side_name} image {caption.template.format(**caption.words)}"
        else:
            caption = caption_scene(rng, scene)
            text = caption.template.format(**caption.words)
        length -= len(split_words(text)) + 1
        if captions and length < 0:
            return Conversation(pictures, (tell(captions, "long"),))
        captions.append(text)


# what a cell of the grid may hold, an empty one nothing, and the half of the image that it is in
CONTENTS = (
    ("", *SHAPES),
    ("", *COLORS),
    ("", *SIZES),
    ("", "gray", *NAMES[:6]),
    ("top", "bottom"),
    ("left", "right"),
)


def make_cells(rng: Random, objects: tuple[int, int], count: int) -> tuple[Tensor, Tensor]:
    """Return pictures, half of them with boxes, and what is in their cells, [count, cells, 6]."""
    pictures = []
    contents = torch.zeros(count, TOKENS, len(CONTENTS), dtype=torch.long)
    contents[..., 4] = torch.arange(TOKENS) // GRID // HALF
    contents[..., 5] = torch.arange(TOKENS) % GRID // HALF
    for row in range(count):
        scene = fill_scene(rng, extra=objects)
        picture = draw(scene)
        boxed = choose_boxed(rng, scene) if rng.random() < 0.5 else None
        names: list[str] = []
        if boxed:
            picture, names = name_boxed(scene, boxed)
        pictures.append(picture)
        for item in scene.items:
            box = ""
            if boxed and item in boxed:
                name = names[boxed.index(item)]
                box = name if item.shape == "person" else "gray"
            words = (item.shape, item.color, item.size, box)
            found = [values.index(word) for values, word in zip(CONTENTS, words, strict=False)]
            contents[row, item.cell[0] * GRID + item.cell[1], :4] = torch.tensor(found)
    return to_pixels(pictures), contents


def to_pixels(pictures: Sequence[np.ndarray]) -> Tensor:
    """Return pixel values [pictures, 3, side, side], with mean and deviation 0.5."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def build_vocabulary() -> dict[str, int]:
    """Return the words of captions, tasks, names and instructions, and characters for others."""
    rng = Random("vocabulary")
    texts = [*NAMES, *COLORS, *INSTRUCTIONS]
    for _ in range(5000):
        for turn in make_conversation(rng, (2, 6), 80).turns:
            texts += [turn.prompt, turn.answer]
    with tempfile.TemporaryDirectory() as folder:
        write_benchmark(Path(folder), Sizes(train=1000, evaluation=3), seed=1)
        texts += read_texts(Path(folder))
    words: set[str] = set()
    for text in texts:
        for word in re.findall(r"[A-Za-z]+", text):
            words.update((word, word.lower()))
    characters = string.ascii_letters + string.digits
    endings = [f"##{character}" for character in characters]
    pieces = [*SPECIAL, *string.punctuation, *characters, *endings, *sorted(words)]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def split_words(text: str) -> list[str]:
    """Return words and punctuation marks, as the tokenizer splits them."""
    return re.findall(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]", text)


def make_batch(
    conversations: Sequence[Conversation], vocabulary: dict[str, int]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model's inputs, and the labels: answers with their end marks, elsewhere -100."""
    rows = []
    for conversation in conversations:
        row: list[tuple[str, bool]] = []
        pictures = [IMAGE] * (TOKENS * len(conversation.pictures))
        for turn in conversation.turns:
            prompt = [USER, *pictures, *split_words(turn.prompt), ASSISTANT]
            row += [(word, False) for word in prompt]
            row += [(word, True) for word in (*split_words(turn.answer), END)]
            pictures = []
        rows.append(row)
    # [batch, length]
    ids = torch.full((len(rows), max(map(len, rows))), vocabulary[PAD])
    labels = torch.full(ids.shape, IGNORED)
    for place, row in enumerate(rows):
        words = torch.tensor([vocabulary[word] for word, _ in row])
        answered = torch.tensor([answer for _, answer in row])
        ids[place, : len(row)] = words
        labels[place, : len(row)] = words.masked_fill(~answered, IGNORED)
    shown = [picture for conversation in conversations for picture in conversation.pictures]
    batch = {
        "input_ids": ids,
        "attention_mask": (ids != vocabulary[PAD]).long(),
        "pixel_values": to_pixels(shown),
    }
    return batch, labels
