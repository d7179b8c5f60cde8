"""What the small LLaVA is pretrained on, and what ships of it."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from mcit.embedded.benchmark import LLAVA, Sizes, write_benchmark
from mcit.embedded.conversations import (
    ASSISTANT,
    IMAGE,
    INSTRUCTIONS,
    PLACES_OF_TWO,
    TOKENS,
    USER,
    VERDICTS,
    caption_scene,
    judge,
    judge_both,
    make_batch,
    make_cells,
    make_conversation,
    make_description,
    pick,
    split_words,
    which,
)
from mcit.embedded.pretraining import IGNORED, read_texts
from mcit.embedded.scenes import fill_scene


@pytest.fixture(scope="module")
def processor():
    return AutoProcessor.from_pretrained(LLAVA, local_files_only=True)


def make_some(count: int, length: int = 72):
    rng = Random("test")
    return [make_conversation(rng, (2, 6), length) for _ in range(count)]


def test_conversations_state_and_never_ask_what_the_tasks_ask():
    said = [turn for conversation in make_some(500) for turn in conversation.turns]
    asked = {word for turn in said for word in split_words(turn.prompt)}
    answered = {turn.answer for turn in said}
    assert not asked & {"What", "How", "Where", "Who", "Both", "Only", "true", "Answer"}
    assert not answered & {"true", "false", "True", "False", "entailment", "neutral"}
    questions = {turn.prompt.rpartition(". ")[2] for turn in said if turn.prompt.endswith("?")}
    assert questions == {"Does it match?", "Which image fits?"}


def test_a_statement_is_judged_by_the_words_that_its_prompt_names():
    rng = Random(4)
    forms = set()
    for truth in (True, False) * 50:
        turn = judge(rng, "the circle is red", truth, "attribute")
        if turn.kind == "match: attribute":
            assert turn.answer == ("yes" if truth else "no")
        else:
            good, bad = re.search(r"Say (\w+) if it fits, else (\w+)", turn.prompt).groups()
            assert turn.answer == (good if truth else bad)
            assert {good, bad} < set(VERDICTS)
        assert "the circle is red" in turn.prompt.lower()
        forms.add((turn.kind, turn.prompt.lower().startswith("the circle")))
    assert len(forms) == 4


def test_what_is_said_of_two_images_holds_as_often_as_not():
    rng = Random(7)
    places = set()
    truths = []
    for _ in range(300):
        scenes = [fill_scene(rng), fill_scene(rng)]
        turn = judge_both(rng, scenes)
        found = re.search(r"an? (\w+) (\w+) is in ([a-z ]+ image)", turn.prompt, re.IGNORECASE)
        color, shape, place = found.groups()
        left, right = (scene.count(color=color, shape=shape) > 0 for scene in scenes)
        holds = {
            "the left image": left,
            "the right image": right,
            "each image": left and right,
            "a single image": left != right,
            "no image": not (left or right),
        }
        words = re.search(r"Say (\w+)", turn.prompt)
        assert (turn.answer == (words[1] if words else "yes")) == holds[place]
        places.add(place)
        truths.append(holds[place])
    assert places == set(PLACES_OF_TWO)
    assert 100 < sum(truths) < 200


def test_which_of_two_images_is_answered_by_what_they_show():
    rng = Random(5)
    answers = set()
    for _ in range(200):
        scenes = [fill_scene(rng), fill_scene(rng)]
        turn = which(rng, scenes)
        color, shape = re.search(r"\ban? (\w+) (\w+)", turn.prompt, re.IGNORECASE).groups()
        shown = [scene.count(color=color, shape=shape) > 0 for scene in scenes]
        expected = {(True, True): "both", (True, False): "left", (False, True): "right"}
        assert turn.answer == expected.get(tuple(shown), "neither")
        answers.add(turn.answer)
    assert answers == {"both", "left", "right", "neither"}


def test_the_picked_letter_is_that_of_the_missing_word():
    rng = Random(6)
    for _ in range(200):
        caption = caption_scene(rng, fill_scene(rng))
        turn = pick(rng, caption, {})
        gapped, _, options = turn.prompt.removeprefix("Pick: ").partition(" A. ")
        listed = re.split(r" [BCD]\. ", options)
        assert len(set(listed)) == len(listed) > 1
        word = listed["ABCD".index(turn.answer)].removesuffix(".")
        whole = caption.template.format(**caption.words)
        assert gapped.replace("_", word).removesuffix(".").lower() == whole


def test_labels_are_the_answers_and_their_end_marks_only(processor):
    vocabulary = processor.tokenizer.get_vocab()
    conversations = make_some(8)
    batch, labels = make_batch(conversations, vocabulary)
    for row, conversation in enumerate(conversations):
        kept = labels[row][labels[row] != IGNORED].tolist()
        expected = []
        for turn in conversation.turns:
            expected += processor.tokenizer(turn.answer)["input_ids"]
            expected.append(processor.tokenizer.eos_token_id)
        assert kept == expected
        images = int((batch["input_ids"][row] == vocabulary[IMAGE]).sum())
        assert images == TOKENS * len(conversation.pictures)


def test_the_chat_template_writes_what_was_pretrained(processor):
    conversation = next(each for each in make_some(50) if len(each.pictures) == 2)
    turn = conversation.turns[0]
    images = [{"type": "image"}, {"type": "image"}]
    messages = [{"role": "user", "content": [*images, {"type": "text", "text": turn.prompt}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    shown = [list(conversation.pictures)]
    inputs = processor(text=[text], images=shown, return_tensors="pt")
    batch, labels = make_batch([conversation], processor.tokenizer.get_vocab())
    length = inputs["input_ids"].shape[1]
    assert inputs["input_ids"][0].tolist() == batch["input_ids"][0, :length].tolist()
    assert labels[0, length] != IGNORED
    assert (inputs["pixel_values"] - batch["pixel_values"]).abs().max() < 1e-6
    assert text.startswith(USER)
    assert text.endswith(ASSISTANT)


def test_no_word_of_the_tasks_is_spelled_in_characters(processor, tmp_path):
    write_benchmark(tmp_path, Sizes(train=200, evaluation=3), seed=3)
    for text in (*read_texts(tmp_path), *INSTRUCTIONS):
        tokens = processor.tokenizer.tokenize(text)
        assert not [token for token in tokens if token.startswith("##") or token == "<unk>"], text


def test_what_ships_is_small_and_opens_by_auto_classes():
    assert sum(file.stat().st_size for file in Path(LLAVA).iterdir()) < 5e6
    model = AutoModelForImageTextToText.from_pretrained(LLAVA, local_files_only=True)
    assert model.generation_config.do_sample is False
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 0.5e6 < parameters < 1.3e6
    assert f"{parameters:,}" in (LLAVA / "README.md").read_text()


def test_descriptions_fit_their_length_and_cells_hold_the_objects():
    rng = Random(2)
    for _ in range(50):
        description = make_description(rng, (2, 6), 72)
        words = split_words(description.turns[0].answer)
        assert len(words) + TOKENS * len(description.pictures) <= 72 or words.count(".") == 1
    pixels, contents = make_cells(Random(1), (3, 3), 4)
    assert pixels.shape == (4, 3, 48, 48)
    # three objects: shape, color and size are told of three cells
    assert (contents[..., :3] > 0).sum(dim=1).tolist() == [[3, 3, 3]] * 4
