"""SNLI-VE: the hypothesis and the image, with the reference's labels."""

from __future__ import annotations

import pytest
import torch
from tiny_official import small_processor, write_image, write_json, write_lines
from torch.testing import assert_close

from mcit.errors import DataError
from mcit.registry import find_task
from mcit.task import Recipe

SnliVe = find_task("snli-ve")


def record(label, image="123", number=0, **changes):
    return {
        "Flickr30K_ID": image,
        "pairID": f"{image}.jpg#{number}",
        "sentence1": "the caption",
        "sentence2": f"what is {number}",
        "gold_label": label,
        **changes,
    }


LABELS = ("entailment", "contradiction", "neutral")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    for split in ("train", "dev"):
        records = [record(label, number=number) for number, label in enumerate(LABELS)]
        write_lines(root / "snli-ve" / f"snli_ve_{split}.jsonl", records)
    write_image(root / "flickr30k" / "flickr30k_images" / "123.jpg")
    return root


def write_dev(root, records):
    write_lines(root / "snli-ve" / "snli_ve_dev.jsonl", records)


def test_it_is_what_the_protocol_says():
    task = SnliVe()
    assert (task.name, task.chance) == ("snli-ve", 33.33)
    assert (task.head.outputs, task.head.kind, task.head.layout, task.head.views) == (
        3,
        "class",
        "mlp",
        1,
    )
    assert task.recipe == Recipe(
        5, 64, 5e-5, 1e-2, "adamw", (0.9, 0.98), 1e-8, schedule="linear", warmup=0.1
    )


def test_the_hypothesis_is_read_and_never_the_caption(root):
    task = SnliVe(root=root)
    task.check()
    examples = task.examples("eval")
    assert [example["text"] for example in examples] == ["what is 0", "what is 1", "what is 2"]
    batch = task.collate([examples[i] for i in range(3)], small_processor())
    assert_close(batch["labels"], torch.tensor([0, 1, 2]))
    assert batch["input_ids"].shape[0] == len(batch["pixels"]) == 3
    assert "token_type_ids" not in batch


def test_the_score_is_the_accuracy(root):
    task = SnliVe(root=root)
    logits = torch.eye(3)[[0, 1, 1]]
    inputs = task.metric_inputs(logits, {"labels": torch.tensor([0, 1, 2])})
    metric = task.metric()
    metric.add_batch(**{name: column.tolist() for name, column in inputs.items()})
    assert metric.compute()["score"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    "image",
    [
        {"Flikr30kID": "123.jpg"},
        {"Flickr30K_ID": "123.jpg"},
        {"Flikr30kID": "123"},
        {"Flickr30K_ID": 123},
    ],
)
def test_either_spelling_of_the_image_is_read(root, image):
    plain = record("neutral")
    del plain["Flickr30K_ID"]
    write_dev(root, [{**plain, **image}])
    task = SnliVe(root=root)
    task.check()
    assert task.examples("eval")[0]["image"].size == (40, 32)


def test_pairs_without_a_gold_label_are_dropped_and_counted(root):
    write_dev(root, [record("-", number=7), record("neutral", number=8), record("-", number=9)])
    task = SnliVe(root=root)
    assert [example["label"] for example in task.examples("eval")] == [2]
    assert [task.split(name).about["dropped"] for name in ("eval", "train")] == [2, 0]


def test_an_array_reads_like_lines_and_the_test_split_on_request(root):
    write_json(
        root / "snli-ve" / "snli_ve_test.jsonl", [record("neutral"), record("entailment", number=1)]
    )
    assert [example["label"] for example in SnliVe(root=root).examples("test")] == [2, 0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            record("maybe", number=1),
            "'gold_label' must be one of entailment, contradiction, neutral, found 'maybe'",
        ),
        (
            record("neutral", "../../etc/passwd", 1),
            "the Flickr30k id must be the name of an image in the folder",
        ),
        (record("neutral", number=0), "is already that of record 1"),
        (record("neutral", number=1, sentence2=None), "'sentence2' must be text, found None"),
    ],
)
def test_a_wrong_record_is_named(root, bad, message):
    write_dev(root, [record("neutral"), bad])
    with pytest.raises(DataError, match=rf"snli_ve_dev\.jsonl, record 2: .*{message}"):
        SnliVe(root=root).check()


def test_the_record_is_named_by_its_line_even_after_dropped_ones(root):
    write_dev(
        root,
        [
            record("-"),
            record("neutral", number=1),
            record("neutral", "999", 2),
            record("neutral", "5", 3),
        ],
    )
    with pytest.raises(DataError, match=r"dev\.jsonl, record 3: .* lacks image '999', and 1 more"):
        SnliVe(root=root).check()


def test_a_missing_folder_is_said_once(root):
    (root / "flickr30k" / "flickr30k_images").rename(root / "elsewhere")
    with pytest.raises(DataError, match="no image folder") as caught:
        SnliVe(root=root).check()
    assert str(caught.value).count("no image folder") == 1


def test_an_empty_file_is_refused(root):
    write_dev(root, [])
    with pytest.raises(DataError, match=r"dev\.jsonl holds no examples"):
        SnliVe(root=root).check()
