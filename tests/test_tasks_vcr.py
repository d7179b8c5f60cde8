"""VCR: four choices, boxes drawn on the fly, the question truncated and never the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_official import (
    small_processor,
    vcr_record,
    write_image,
    write_json,
    write_lines,
    write_vcr_image,
)
from torch.testing import assert_close

from mcit.data.boxes import GRAY, color_of
from mcit.errors import DataError
from mcit.registry import find_task
from mcit.task import Recipe

Vcr = find_task("vcr")
BOXES = [[5, 5, 30, 30, 0.9], [40, 5, 70, 30, 0.9], [10, 40, 60, 70, 0.9]]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    for split, number in (("train", 1), ("val", 2)):
        write_lines(root / "vcr" / "annotation" / f"{split}.jsonl", [vcr_record(number, split)])
        write_vcr_image(root, number, BOXES)
    return root


def write_val(root, **changes):
    write_lines(root / "vcr" / "annotation" / "val.jsonl", [vcr_record(2, "val", **changes)])


def test_it_is_what_the_protocol_says():
    task = Vcr()
    assert (task.name, task.chance) == ("vcr", 25.0)
    assert (task.head.outputs, task.head.kind, task.head.layout, task.head.views) == (
        4,
        "choice",
        "linear",
        4,
    )
    assert task.recipe == Recipe(
        10, 16, 1e-4, 1e-2, "adamw", (0.9, 0.98), 1e-8, schedule="linear", warmup=0.1
    )


def test_a_batch_has_four_texts_and_one_image_an_example(root):
    task = Vcr(root=root)
    task.check()
    example = task.examples("train")[0]
    assert example["question"] == "Why is Alex and Robin near the gray dog ?"
    assert example["choices"] == ["they play", "Robin sleeps", "it rains", "no reason"]
    batch = task.collate([example, example, example], small_processor(24))
    assert batch["input_ids"].shape[0] == 12
    assert len(batch["pixels"]) == 3
    assert_close(batch["labels"], torch.tensor([1, 1, 1]))
    assert_close(batch["input_ids"][:4], batch["input_ids"][4:8])


def test_a_long_question_loses_words_and_the_choices_stay_apart(root):
    write_val(root, question=["Why", "is"] * 40)
    processor = small_processor(12)
    task = Vcr(root=root)
    ids = task.collate([task.examples("eval")[0]], processor)["input_ids"]
    assert ids.shape[1] == 12
    texts = processor.tokenizer.batch_decode(ids)
    ends = [text.split()[-2:] for text in texts]
    assert ends == [[word, "[SEP]"] for word in ("play", "sleeps", "rains", "reason")]


def test_with_rationale_the_right_answer_stands_behind_the_question(root):
    task, processor = Vcr(root=root, rationale=True), small_processor(24)
    example = task.examples("train")[0]
    assert example["choices"] == ["one", "two", "three", "Alex smiles"]
    assert example["label"] == 3
    first = processor.tokenizer.decode(task.collate([example], processor)["input_ids"][0])
    assert first.startswith(
        "[CLS] Why is Alex and Robin near the gray dog ? Robin sleeps [SEP] one [SEP]"
    )


def test_with_rationale_a_long_question_loses_words_and_the_answer_none(root):
    write_val(
        root,
        question=["Why", "is"] * 40,
        rationale_choices=[["dog"] * 3, ["two"], ["three"], ["one"]],
    )
    task, processor = Vcr(root=root, rationale=True), small_processor(12)
    ids = task.collate([task.examples("eval")[0]], processor)["input_ids"]
    assert (
        processor.tokenizer.decode(ids[0])
        == "[CLS] Why is Why is Robin sleeps [SEP] dog dog dog [SEP]"
    )


def colors(image):
    return {tuple(pixel) for pixel in np.asarray(image).reshape(-1, 3).tolist()}


def test_the_objects_spoken_of_are_marked_and_no_others(root):
    write_val(root, question=["Why", [2], "?"], answer_choices=[["no"], [[0]], ["it"], ["one"]])
    image = Vcr(root=root).examples("eval")[0]["image"]
    assert {color_of(0, "person"), GRAY} <= colors(image)
    assert color_of(1, "person") not in colors(image)
    assert image.size == (100, 80)


def test_a_choice_only_the_rationale_makes_is_marked_for_the_rationale_only(root):
    write_val(root, question=["Why"], answer_choices=[["no"]] * 4)
    assert colors(Vcr(root=root).examples("eval")[0]["image"]) == {(0, 0, 0)}
    assert color_of(0, "person") in colors(
        Vcr(root=root, rationale=True).examples("eval")[0]["image"]
    )


@pytest.mark.parametrize(
    ("rationale", "name"), [(False, "qa"), (False, "answer"), (True, "qar"), (True, "rationale")]
)
def test_images_drawn_before_are_taken_under_either_name(root, rationale, name):
    for split, number in (("train", 1), ("val", 2)):
        path = root / "vcr" / "drawn_images" / "bbox" / split / name / f"{split}-{number}.jpg"
        write_image(path, (200, 0, 0), size=(20, 10))
    task = Vcr(root=root, drawn=True, rationale=rationale)
    task.check()
    assert task.examples("eval")[0]["image"].size == (20, 10)
    with pytest.raises(DataError, match=r"no image folder .* set tasks\.vcr\.drawn=false"):
        Vcr(root=root, drawn=True, rationale=not rationale).check()


def test_a_bare_index_is_a_tag_of_one_object(root):
    write_val(root, question=["Why", 1, "?"])
    assert Vcr(root=root).examples("eval")[0]["question"] == "Why Robin ?"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"img_fn": "../../secret.jpg"},
            "'img_fn' must be a path inside the image folder, found '../../secret.jpg'",
        ),
        ({"metadata_fn": "/etc/passwd"}, "'metadata_fn' must be a path inside the image folder"),
        ({"annot_id": "../x"}, "'annot_id' must be the name of a file"),
        ({"question": ["Why", [3]]}, r"a list of indices below 3, found \[3\]"),
        ({"question": ["Why", [-1]]}, r"a list of indices below 3, found \[-1\]"),
        ({"question": "Why?"}, "'question' must be a list, found 'Why"),
        ({"answer_choices": [["a"]] * 3}, "'answer_choices' must hold 4 choices, found 3"),
        ({"answer_label": 4}, "'answer_label' must be from 0 to 3, found 4"),
        ({"objects": [1]}, "'objects' must be a list of class names"),
    ],
)
def test_a_wrong_record_is_named(root, changes, message):
    write_val(root, **changes)
    with pytest.raises(DataError, match=rf"val\.jsonl, record 1: .*{message}"):
        Vcr(root=root).check()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"boxes": BOXES[:2], "width": 100, "height": 80}, "one for each of 3 objects, found 2"),
        ({"width": 100, "height": 80}, "found none"),
        (
            {"boxes": [[1, 2]] * 3, "width": 100, "height": 80},
            r"box 0 must be \[x1, y1, x2, y2, ...\]",
        ),
        ({"boxes": BOXES, "width": 100}, "'width' and 'height'"),
        ([], "found none"),
    ],
)
def test_wrong_metadata_are_named(root, metadata, message):
    write_json(root / "vcr" / "vcr1images" / "movie" / "2.json", metadata)
    with pytest.raises(DataError, match=rf"val\.jsonl, record 1: .*2\.json.*{message}"):
        Vcr(root=root).check()


def test_absent_metadata_and_corrupt_images_are_found_by_check(root):
    (root / "vcr" / "vcr1images" / "movie" / "1.json").unlink()
    (root / "vcr" / "vcr1images" / "movie" / "2.jpg").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        Vcr(root=root).check()
    assert "train.jsonl, record 1: " in str(caught.value)
    assert "lacks metadata 'movie/1.json'" in str(caught.value)
    assert "2.jpg is not a readable image" in str(caught.value)


def test_there_is_no_labeled_test_split(root):
    with pytest.raises(DataError, match="no labeled 'test' split"):
        Vcr(root=root).examples("test")
