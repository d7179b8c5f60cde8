"""NLVR2: pairs of images, string labels, consistency."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny_official import pair, small_processor, write_image, write_json, write_lines
from torch.testing import assert_close

from mcit.errors import DataError
from mcit.registry import find_task
from mcit.task import Recipe

Nlvr2 = find_task("nlvr2")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    records = {
        "train": [pair("train-10-0-0", "True"), pair("train-10-1-0", "False")],
        "dev": [
            pair("dev-1-0-0", "True"),
            pair("dev-1-1-0", "False"),
            pair("dev-1-0-1", "False", "is the dog"),
        ],
    }
    for split, items in records.items():
        write_lines(root / "nlvr2" / "data" / f"{split}.json", items)
        for item in items:
            stem = item["identifier"].rpartition("-")[0]
            write_image(root / "nlvr2" / "images" / split / f"{stem}-img0.png", (255, 0, 0))
            write_image(
                root / "nlvr2" / "images" / split / f"{stem}-img1.png", (0, 0, 255), size=(64, 32)
            )
    return root


def test_it_is_what_the_protocol_says():
    task = Nlvr2()
    assert (task.name, task.chance) == ("nlvr2", 50.0)
    assert (task.head.outputs, task.head.kind, task.head.layout, task.head.views) == (
        2,
        "class",
        "mlp",
        2,
    )
    assert task.recipe == Recipe(
        10, 32, 1e-4, 1e-2, "adamw", (0.9, 0.98), 1e-8, schedule="linear", warmup=0.1
    )


def test_a_batch_has_two_images_an_example_left_first(root):
    task = Nlvr2(root=root)
    task.check()
    examples = task.examples("eval")
    batch = task.collate([examples[i] for i in range(3)], small_processor())
    assert batch["input_ids"].shape[0] == 3
    assert len(batch["pixels"]) == 6
    assert_close(batch["labels"], torch.tensor([1, 0, 0]))
    assert batch["pixels"][:, 0, 0, 0].tolist() == [255, 0] * 3


def test_accuracy_and_the_official_consistency(root):
    task = Nlvr2(root=root)
    examples = task.examples("eval")
    batch = task.collate([examples[i] for i in range(3)], small_processor())
    assert batch["groups"].tolist() == [
        0,
        0,
        1,
    ]  # the number of the pair does not make another sentence
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    metric = task.metric()
    metric.add_batch(
        **{name: column.tolist() for name, column in task.metric_inputs(logits, batch).items()}
    )
    assert metric.compute() == {"score": pytest.approx(200 / 3), "consistency": 50.0}
    assert_close(task.loss(logits, batch), F.cross_entropy(logits, batch["labels"]))


def test_images_in_numbered_sub_folders_are_found(root):
    folder = root / "nlvr2" / "images" / "train"
    for path in list(folder.iterdir()):
        (folder / "37").mkdir(exist_ok=True)
        path.rename(folder / "37" / path.name)
    task = Nlvr2(root=root)
    task.check()
    assert len(task.examples("train")[1]["images"]) == 2


def test_labels_may_be_booleans_and_the_file_an_array(root):
    expected = [example["label"] for example in Nlvr2(root=root).examples("train")]
    write_json(
        root / "nlvr2" / "data" / "train.json",
        [pair("train-10-0-0", True), pair("train-10-1-0", False)],
    )
    assert (
        [example["label"] for example in Nlvr2(root=root).examples("train")] == expected == [1, 0]
    )


def test_the_test_split_is_read_on_request(root):
    write_lines(root / "nlvr2" / "data" / "test1.json", [pair("test1-0-0-0", "True")])
    for side in (0, 1):
        write_image(root / "nlvr2" / "images" / "test1" / f"test1-0-0-img{side}.png")
    assert len(Nlvr2(root=root).examples("test")) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (pair("dev-1-1-0", "maybe"), "'label' must be True or False, found 'maybe'"),
        (pair("dev-1-1-0", 1), "'label' must be text or true or false, found 1"),
        (pair("../../dev-1-1-0", "True"), "'identifier' must read split-set-pair-sentence"),
        (pair("dev-1", "True"), "'identifier' must read split-set-pair-sentence, found 'dev-1'"),
        (pair("dev-1-0-0", "True"), "the id 'dev-1-0-0' is already that of record 1"),
        ({"identifier": "dev-1-1-0", "label": "True"}, "has no field 'sentence'"),
    ],
)
def test_a_wrong_record_is_named(root, record, message):
    write_lines(root / "nlvr2" / "data" / "dev.json", [pair("dev-1-0-0", "True"), record])
    with pytest.raises(DataError, match=rf"dev\.json, record 2: {message}"):
        Nlvr2(root=root).check()


def test_one_error_lists_absent_images_and_missing_files(root):
    (root / "nlvr2" / "images" / "dev" / "dev-1-1-img1.png").unlink()
    (root / "nlvr2" / "data" / "train.json").unlink()
    with pytest.raises(DataError) as caught:
        Nlvr2(root=root).check()
    assert "2 problems" in str(caught.value)
    assert "train.json is missing; unpack" in str(caught.value)
    assert "dev.json, record 2: " in str(caught.value)
    assert "lacks right 'dev-1-1-img1.png'" in str(caught.value)
    with pytest.raises(DataError, match=r"'dev-1-1-img1\.png' is not in"):
        Nlvr2(root=root).examples("eval")[1]
