"""Hostile and broken input: a clean error that names it, or left out and counted; never another
traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from test_fuzz_data import use
from tiny_official import make_cell, make_png, write_image, write_imagenet, write_lines
from torch._utils import ExceptionWrapper

from mcit.cli import main
from mcit.config.schema import RunConfig
from mcit.data.cifar import read_cifar100
from mcit.data.image_folders import read_imagenet_subset, read_tiny_imagenet
from mcit.data.images import MOST_PIXELS, open_image, verify_image
from mcit.data.problems import BadRecord, BadRecords
from mcit.errors import DataError
from mcit.registry import find_task
from mcit.runner.plan import resolve


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(12_000, 10_000), (60_000, 60_000)])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, size):
    assert size[0] * size[1] > MOST_PIXELS
    path = tmp_path / "bomb.png"
    path.write_bytes(make_png(*size, depth=8, color=2, data=bytes(99)))
    for look in (open_image, verify_image):
        with pytest.raises(BadRecord, match=r"bomb\.png") as caught:
            look(path)
        assert caught.value.reason == "image too large"


def test_an_image_is_opened_as_an_image_only(tmp_path):
    """Pillow would hand a PostScript program to an interpreter."""
    path = tmp_path / "program.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nquit\n")
    with pytest.raises(BadRecord, match=r"program\.jpg is not a readable image \(cannot identify"):
        open_image(path)


@pytest.mark.parametrize("keep", [10, 200, 700])
def test_a_quick_look_finds_a_cut_image_as_a_full_one_does(tmp_path, keep):
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.jpg")
    verify_image(tmp_path / "whole.jpg")
    cut = tmp_path / f"{keep}.jpg"
    cut.write_bytes((tmp_path / "whole.jpg").read_bytes()[:keep])
    for look in (open_image, verify_image):
        with pytest.raises(BadRecord) as caught:
            look(cut)
        assert caught.value.reason == "image unreadable"


def entailment(number: int, **changes: Any) -> dict[str, Any]:
    plain = {
        "Flickr30K_ID": str(number),
        "pairID": f"p{number}",
        "sentence2": "one dog",
        "gold_label": "neutral",
    }
    return {**plain, **changes}


@pytest.fixture
def mixed(tmp_path) -> Path:
    """SNLI-VE with 4 good records and 9 bad ones, each in its own way."""
    root = tmp_path / "data"
    records = [entailment(number) for number in range(4)]
    records += [
        entailment(4, gold_label="maybe"),
        entailment(5, gold_label=1),
        entailment(6, pairID="p1"),
        entailment(7, Flickr30K_ID="../../secret"),
        entailment(8, sentence2="\ud800"),
        entailment(9, Flickr30K_ID="404"),
        entailment(10),
        entailment(11),
    ]
    lines = [json.dumps(record) + "\n" for record in records] + ["{no JSON\n"]
    write_lines(root / "snli-ve" / "snli_ve_dev.jsonl", [entailment(number) for number in range(2)])
    (root / "snli-ve" / "snli_ve_train.jsonl").write_text("".join(lines))
    images = root / "flickr30k" / "flickr30k_images"
    for number in range(12):
        write_image(images / f"{number}.jpg")
    (images / "10.jpg").write_bytes((images / "10.jpg").read_bytes()[:300])
    (images / "11.jpg").write_bytes(make_png(30_000, 30_000, depth=8, color=2, data=bytes(99)))
    return root


REASONS = {
    "'gold_label' must be one of entailment, contradiction, neutral": 1,
    "'gold_label' must be text": 1,
    "duplicate id": 1,
    "the Flickr30k id must be the name of an image in the folder": 1,
    "half a character": 1,
    "not valid JSON": 1,
    "image missing": 1,
    "image unreadable": 1,
    "image too large": 1,
}


def test_wrong_records_are_refused_all_together_with_file_and_record(mixed):
    with pytest.raises(DataError) as caught:
        find_task("snli-ve")(root=mixed).check()
    message = str(caught.value)
    assert "the data have 6 problems" in message
    for number in (5, 6, 7, 8, 9, 13):
        assert f"snli_ve_train.jsonl, record {number}: " in message


def test_wrong_records_are_left_out_counted_and_said(mixed):
    task = find_task("snli-ve")(root=mixed, on_bad_record="skip")
    use(task)
    assert len(task.examples("train")) == 4
    skipped = task.split("train").skipped.to_dict()
    assert {reason: found["records"] for reason, found in skipped["reasons"].items()} == REASONS
    for reason, found in skipped["reasons"].items():
        assert "snli_ve_train.jsonl, record " in found["first"], reason
    (line,) = task.data_notes(None)
    assert line.startswith("snli-ve, train: 9 of 13 records are left out: 1 ")


def test_a_record_without_its_image_is_left_out_from_between_others(mixed):
    records = [entailment(0), entailment(1, Flickr30K_ID="404"), entailment(2), entailment(3)]
    write_lines(mixed / "snli-ve" / "snli_ve_train.jsonl", records)
    task = find_task("snli-ve")(root=mixed, on_bad_record="skip")
    use(task)
    assert len(task.examples("train")) == 3
    assert task.split("train").skipped.counts == {"image missing": 1}


def test_what_is_left_out_is_found_once_and_found_again_when_an_image_changes(mixed, tmp_path):
    task = find_task("snli-ve")(root=mixed, on_bad_record="skip")
    assert len(task.examples("train")) == 4
    verified = list((tmp_path / "cache" / "verified").iterdir())
    assert len(find_task("snli-ve")(root=mixed, on_bad_record="skip").examples("train")) == 4
    assert list((tmp_path / "cache" / "verified").iterdir()) == verified
    before = task.fingerprint()
    write_image(mixed / "flickr30k" / "flickr30k_images" / "10.jpg")
    fixed = find_task("snli-ve")(root=mixed, on_bad_record="skip")
    assert len(fixed.examples("train")) == 5
    assert fixed.fingerprint() != before


def test_the_policy_comes_from_the_configuration_and_the_counts_go_into_the_provenance(mixed):
    config = RunConfig(order=("snli-ve",), data_root=str(mixed), on_bad_record="skip")
    plan = resolve(config)
    plan.check_data()
    described = json.loads(json.dumps(plan.describe()))
    assert described["config"]["on_bad_record"] == "skip"
    train = described["records"]["snli-ve"]["train"]
    assert (train["records"], train["dropped"], train["skipped"]["records"]) == (13, 0, 9)
    assert described["records"]["snli-ve"]["eval"]["skipped"] == {"records": 0, "reasons": {}}
    with pytest.raises(DataError, match="the data have 6 problems"):
        resolve(RunConfig(order=("snli-ve",), data_root=str(mixed))).check_data()


def test_a_split_without_a_good_record_is_refused_under_either_policy(mixed):
    write_lines(
        mixed / "snli-ve" / "snli_ve_dev.jsonl",
        [entailment(1, gold_label=None), entailment(2, gold_label=3)],
    )
    with pytest.raises(
        DataError,
        match=r"dev\.jsonl holds no examples; 2 of 2 records are left out: 2 'gold_label'",
    ):
        find_task("snli-ve")(root=mixed, on_bad_record="skip").check()
    write_lines(mixed / "snli-ve" / "snli_ve_dev.jsonl", [entailment(10)])
    with pytest.raises(
        DataError,
        match="has an image that can be opened: 1 of 1 records are left out: 1 image unread",
    ):
        find_task("snli-ve")(root=mixed, on_bad_record="skip").check()


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_file_that_ends_within_a_record_is_refused_under_either_policy(mixed, policy):
    """Else a file of which a half was fetched would count as one with a single wrong record."""
    path = write_lines(
        mixed / "snli-ve" / "snli_ve_dev.jsonl", [entailment(number) for number in range(3)]
    )
    path.write_text(path.read_text()[:-30])
    with pytest.raises(
        DataError, match=r"dev\.jsonl, record 3: not valid JSON .* it is cut short, fetch it again"
    ):
        len(find_task("snli-ve")(root=mixed, on_bad_record=policy).split("eval").table)


def test_a_file_full_of_wrong_records_is_not_read_to_its_end(tmp_path):
    write_lines(tmp_path / "snli-ve" / "snli_ve_train.jsonl", [{}] * 5000)
    with pytest.raises(DataError, match=r"the data have 1001 problems") as caught:
        len(find_task("snli-ve")(root=tmp_path).split("train").table)
    assert caught.value.problems[-1] == "no more were looked for"


def test_wrong_rows_of_a_class_incremental_set_are_left_out_and_counted(tmp_path):
    cells = [{"bytes": b"no image"}] + [{"bytes": make_cell()}] * 5
    table = pyarrow.table({"img": cells, "fine_label": [3, 3, 8, 8, 100, -1]})
    for part in ("train", "test"):
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(
        DataError, match=r"train\.parquet, row 4: fine label 100 is not one of 0\.\.99"
    ):
        read_cifar100(tmp_path, "train", [3, 8])
    bad = BadRecords()
    assert read_cifar100(tmp_path, "train", [3, 8], bad.add).labels.tolist() == [3, 8, 8]
    assert bad.counts == {"label out of range": 2, "image unreadable": 1}
    task = find_task("cifar100")(root=tmp_path, on_bad_record="skip")
    with pytest.raises(DataError, match="holds 2 classes"):
        task.check()


def test_files_of_a_class_incremental_set_are_opened_beforehand_where_bad_ones_are_left_out(
    tmp_path,
):
    write_imagenet(tmp_path)
    write_image(tmp_path / "train" / "n00000007" / "b.png").write_bytes(b"broken")
    task = find_task("imagenet_subset")(root=tmp_path, on_bad_record="skip")
    task.check()
    assert len(task.examples("train")) == 100
    (line,) = task.data_notes(None)
    assert line.startswith(
        "imagenet_subset, train: 1 of 101 records are left out: 1 image unreadable (first: "
    )
    assert task.describe_data()["train"]["skipped"]["records"] == 1
    assert (
        len(read_imagenet_subset(tmp_path, "train", range(100), None).paths) == 101
    )  # found when it is opened


def test_a_file_that_is_named_twice_is_a_wrong_record(tmp_path):
    for number in range(200):
        (tmp_path / "train" / f"n{number:08}").mkdir(parents=True)
    write_image(tmp_path / "val" / "images" / "a.JPEG", size=(64, 64))
    lines = "a.JPEG\tn00000003\t0\n" * 2
    (tmp_path / "val" / "val_annotations.txt").write_text(lines)
    with pytest.raises(DataError, match=r"line 2: 'a\.JPEG' is already in line 1"):
        read_tiny_imagenet(tmp_path, "eval", [3])
    bad = BadRecords()
    assert read_tiny_imagenet(tmp_path, "eval", [3], bad.add).labels.tolist() == [3]
    assert bad.counts == {"duplicate file": 1}


@pytest.mark.parametrize(
    "error", [DataError("a.jpg is broken"), BadRecord("a.jpg is broken", "image unreadable")]
)
def test_an_error_out_of_a_loader_worker_is_said_without_its_traceback(error, capsys, monkeypatch):
    """As torch hands it over: the text is wrapped in the worker's traceback."""
    try:
        raise error
    except DataError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    monkeypatch.setattr("mcit.commands.list.run", lambda arguments: wrapped.reraise())
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "mcit: a.jpg is broken\n"
