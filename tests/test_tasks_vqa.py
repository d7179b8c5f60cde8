"""VQAv2: targets, score and vocabulary from the official files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_official import annotation, small_processor, write_image, write_json, write_vqa
from torch.testing import assert_close
from torch.utils.data import DataLoader

from mcit.errors import ConfigError, DataError
from mcit.registry import find_task
from mcit.task import Recipe

Vqa = find_task("vqa")
MIXED = (
    ["two"] * 3 + ["2"] * 2 + ["a dog"] * 2 + ["Dog"] + ["cat", "rare"]
)  # 2: five votes, dog: three


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path) -> Path:
    root = tmp_path / "data"
    write_vqa(root, "train2014", [annotation(1, 9, MIXED, "two"), annotation(2, 9, ["dog"] * 10)])
    write_vqa(root, "val2014", [annotation(3, 10, ["dog"] * 10), annotation(4, 10, ["zebra"] * 10)])
    write_image(root / "ms-coco" / "images" / "COCO_train2014_000000000009.jpg")
    write_image(root / "ms-coco" / "images" / "COCO_val2014_000000000010.jpg", size=(64, 32))
    return root


def make(root, **options):
    return Vqa(root=root, minimum=1, **options)


def test_it_is_what_the_protocol_says():
    task = Vqa()
    assert (task.name, task.chance) == ("vqa", 0.0)
    assert task.recipe == Recipe(
        10, 64, 1e-4, 1e-2, "adamw", (0.9, 0.98), 1e-8, schedule="linear", warmup=0.1
    )


def test_the_vocabulary_is_in_a_stable_order_and_written_as_json(root, cache):
    task = make(root)
    task.check()
    assert list(task.answer_ids) == ["dog", "2", "zebra"]
    assert (task.head.outputs, task.head.kind, task.head.layout, task.head.views) == (
        3,
        "multi_label",
        "mlp",
        1,
    )
    (written,) = (cache / "vocabularies").iterdir()
    assert json.loads(written.read_text()) == {"minimum": 1, "answers": ["dog", "2", "zebra"]}
    assert make(root, vocabulary=written).answer_ids == task.answer_ids
    assert list(Vqa(root=root, minimum=2).answer_ids) == ["dog"]


def test_targets_follow_the_ten_normalized_answers(root):
    task = make(root)
    batch = task.collate([task.examples("train")[0], task.examples("eval")[1]], small_processor())
    assert_close(batch["labels"], torch.tensor([[0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert batch["answer_ids"].shape == batch["answer_scores"].shape == (2, 10)
    assert sorted(batch["answer_ids"][0].tolist()) == [-1] * 8 + [0, 1]
    assert batch["answer_scores"][0].sum().item() == pytest.approx(1.9)
    assert batch["input_ids"].shape[0] == batch["attention_mask"].shape[0] == 2
    assert len(batch["pixels"]) == len(batch["pixel_sizes"]) == 2
    assert_close(task.target(batch), batch["labels"])


def test_climb_compatibility_looks_raw_strings_up(root):
    task = make(root, compat="climb")
    example = task.examples("train")[0]
    assert example["answers"] == {
        "two": 0.9,
        "2": 0.6,
        "a dog": 0.6,
        "Dog": 0.3,
        "cat": 0.3,
        "rare": 0.3,
    }
    labels = task.collate([example], small_processor())["labels"]
    assert_close(labels, torch.tensor([[0.0, 0.6, 0.0]]))
    assert make(root).examples("train")[0]["answers"] != example["answers"]


def test_the_loss_is_summed_over_answers_and_averaged_over_examples():
    logits, labels = torch.randn(4, 7), torch.rand(4, 7)
    chances = torch.sigmoid(logits)
    by_hand = -(labels * chances.log() + (1 - labels) * (1 - chances).log()).sum() / 4
    assert_close(Vqa().loss(logits, {"labels": labels}), by_hand)


def test_the_score_is_the_soft_accuracy_and_unanswerable_items_count(root):
    write_vqa(
        root,
        "val2014",
        [annotation(3, 10, MIXED), annotation(4, 10, [f"odd {i}" for i in range(10)])],
    )
    vocabulary = write_json(root / "v.json", ["dog", "2", "zebra"])
    task = make(root, vocabulary=vocabulary)
    examples = task.examples("eval")
    batch = task.collate([examples[0], examples[1]], small_processor())
    assert batch["labels"][1].sum() == 0
    logits = torch.tensor([[5.0, 1.0, 0.0], [5.0, 1.0, 0.0]])
    metric = task.metric()
    metric.add_batch(
        **{name: column.tolist() for name, column in task.metric_inputs(logits, batch).items()}
    )
    assert metric.compute()["score"] == pytest.approx(100 * 0.9 / 2)


@pytest.mark.parametrize(
    "names",
    [
        ("000000000009.jpg", "000000000010.jpg"),
        ("train2014/COCO_train2014_000000000009.jpg", "val2014/COCO_val2014_000000000010.jpg"),
    ],
)
def test_images_are_found_under_either_year_and_in_sub_folders(root, names):
    for path in (root / "ms-coco" / "images").iterdir():
        path.unlink()
    for name, size in zip(names, ((40, 32), (64, 32)), strict=True):
        write_image(root / "ms-coco" / "images" / name, size=size)
    task = make(root)
    task.check()
    assert task.examples("train")[0]["image"].size == (40, 32)
    assert task.examples("eval")[0]["image"].size == (64, 32)


def test_an_edit_of_the_annotations_is_seen(root):
    assert len(make(root).examples("train")) == 2
    write_vqa(root, "train2014", [annotation(1, 9, ["cow"] * 10)])
    task = make(root)
    assert len(task.examples("train")) == 1
    assert "cow" in task.answer_ids


def test_examples_pass_through_loader_workers(root):
    task = make(root)
    examples = pickle.loads(pickle.dumps(task.examples("train")))
    assert isinstance(examples[0]["image"], Image.Image)
    loader = DataLoader(
        examples, batch_size=2, num_workers=1, collate_fn=Collate(task, small_processor())
    )
    (batch,) = loader
    assert_close(batch["labels"], torch.tensor([[0.9, 1.0, 0.0], [1.0, 0.0, 0.0]]))


class Collate:
    def __init__(self, task, processor):
        self.task, self.processor = task, processor

    def __call__(self, examples):
        return self.task.collate(examples, self.processor)


def test_the_wrong_number_of_answers_in_the_vocabulary_is_refused(root):
    with pytest.raises(
        DataError, match=r"v\.json has 2 answers where tasks\.vqa\.answers asks for 3129"
    ):
        make(root, vocabulary=write_json(root / "v.json", ["a", "b"]), answers=3129).check()
    with pytest.raises(DataError, match="has 3 answers where"):
        make(root, answers=3129).check()
    with pytest.raises(DataError, match=r"lower tasks\.vqa\.minimum"):
        Vqa(root=root).check()


def test_missing_files_are_listed_together(tmp_path):
    with pytest.raises(DataError) as caught:
        Vqa(root=tmp_path).check()
    for name in (
        "v2_OpenEnded_mscoco_train2014_questions.json",
        "v2_mscoco_val2014_annotations.json",
    ):
        assert name in str(caught.value)
    assert "visualqa.org" in str(caught.value)
    with pytest.raises(DataError, match="--data-root"):
        Vqa().check()
    with pytest.raises(DataError, match="no labeled 'test' split"):
        Vqa(root=tmp_path).examples("test")


def break_count(records):
    records[1]["answers"].pop()


def break_image(records):
    records[1]["image_id"] = 77


def break_question(records):
    records[1]["question_id"] = 99


def break_field(records):
    del records[1]["multiple_choice_answer"]


def break_identity(records):
    records[1]["question_id"] = records[0]["question_id"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_count, "has 9 answers where 10 annotators are needed"),
        (break_image, "question 2 is about image 9, its annotation about image 77"),
        (break_question, "question_id 99 has no question"),
        (break_field, "has no field 'multiple_choice_answer'"),
        (break_identity, "the id 1 is already that of record 1"),
    ],
)
def test_a_wrong_annotation_is_named_by_file_and_record(root, damage, message):
    path = root / "vqav2" / "v2_mscoco_train2014_annotations.json"
    data = json.loads(path.read_text())
    damage(data["annotations"])
    write_json(path, data)
    with pytest.raises(DataError, match=f"train2014_annotations.json, record 2: {message}"):
        make(root).check()


def test_a_truncated_file_an_absent_image_and_a_corrupt_one_are_each_named(root):
    images = root / "ms-coco" / "images"
    (images / "COCO_train2014_000000000009.jpg").unlink()
    (images / "COCO_val2014_000000000010.jpg").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        make(root).check()
    message = str(caught.value)
    assert "train2014_annotations.json, record 1: " in message
    assert "lacks image 9; unpack" in message
    assert "COCO_val2014_000000000010.jpg is not a readable image" in message
    path = root / "vqav2" / "v2_mscoco_val2014_annotations.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(DataError, match=r"val2014_annotations\.json, record 1: not valid JSON"):
        make(root).check()


def test_options_come_from_the_configuration(root):
    (task,) = Vqa.sequence(None, {"root": str(root), "minimum": 2, "recipe": {"epochs": 1, "batch_size": 2,
                                  "learning_rate": 1e-3}}, seed=1)  # fmt: skip
    assert (task.root, task.minimum, task.recipe.epochs) == (root, 2, 1)
    with pytest.raises(ConfigError, match="compat"):
        Vqa.sequence(None, {"compat": "clim"}, seed=1)
