"""A run is of certain images: if they change, it is not resumed, and the stage cache has
nothing."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from killing import assert_same_end, start, stop_after
from PIL import Image, ImageOps
from tiny_run import configure, write_world

from mcit.config.schema import RunConfig
from mcit.errors import FolderError
from mcit.runner.plan import resolve


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict[str, str]:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def own_world(world, tmp_path, monkeypatch) -> dict[str, str]:
    """A copy of the data, with their times, and a cache of its own."""
    root = tmp_path / "data"
    shutil.copytree(world["data_root"], root)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return {**world, "data_root": str(root)}


@pytest.fixture
def root(own_world) -> Path:
    return Path(own_world["data_root"])


def list_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))


def touch(path: Path) -> None:
    """Another time of change, the same bytes."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def grow(path: Path) -> None:
    """A byte more, and the time of before."""
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_runs_on_two_copies_of_the_same_data_are_the_same_experiment(root, tmp_path):
    """The provenance, which reports compare, has no times; a run resumes only with its own
    files."""
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    plans = [
        resolve(RunConfig(order=("snli-ve", "vcr"), data_root=str(folder)))
        for folder in (root, tmp_path / "copy")
    ]
    one, other = (plan.describe()["data"] for plan in plans)
    assert one == other
    assert None not in one.values()
    assert plans[0].tasks[0].fingerprint() != plans[1].tasks[0].fingerprint()
    grow(list_images(tmp_path / "copy" / "flickr30k")[0])
    assert resolve(plans[1].config).describe()["data"]["snli-ve"] != one["snli-ve"]


# --- resuming a run


def invert(path: Path) -> None:
    with Image.open(path) as image:
        inverted = ImageOps.invert(image.convert("RGB"))
    inverted.save(path)


@pytest.fixture
def stopped(own_world, tmp_path) -> tuple[RunConfig, Path]:
    """A run that was stopped in its second task."""
    config = configure("snli-ve,nlvr2", "finetune", own_world)
    stop_after(4, config, tmp_path / "run")
    return config, tmp_path / "run"


def test_a_run_whose_images_were_changed_is_not_resumed(stopped, root):
    for path in list_images(root / "flickr30k"):
        invert(path)
    with pytest.raises(FolderError) as caught:
        start(*stopped, resume=True)
    message = str(caught.value)
    assert "was started with data that differ from the present ones:" in message
    assert (
        "snli-ve: images under flickr30k/flickr30k_images differ in names or sizes of their files"
        in message
    )
    assert "nlvr2" not in message
    assert "choose another --output" in message


def test_a_run_whose_images_were_copied_without_their_times_is_refused(stopped, root):
    for path in list_images(root / "nlvr2" / "images" / "dev"):
        touch(path)
    with pytest.raises(FolderError) as caught:
        start(*stopped, resume=True)
    message = str(caught.value)
    assert (
        "nlvr2: images under nlvr2/images/dev differ in the times of their files (names and sizes"
        in message
    )
    assert "a copy must keep the times of its files: cp -a, rsync -a" in message
    assert "nlvr2/images/train" not in message


def test_a_run_whose_annotations_were_changed_is_refused(stopped, root):
    path = root / "snli-ve" / "snli_ve_train.jsonl"
    path.write_text(path.read_text().replace("the", "a", 1))
    with pytest.raises(FolderError, match="- snli-ve: annotations differ\n"):
        start(*stopped, resume=True)


def test_a_run_resumes_with_a_copy_that_kept_the_times(stopped, root, tmp_path):
    config, run = stopped
    shutil.copytree(root, tmp_path / "copy")
    start(config, tmp_path / "whole")
    shutil.rmtree(root)
    moved = replace(config, data_root=str(tmp_path / "copy"))
    start(moved, run, resume=True)
    assert_same_end(run, tmp_path / "whole")


def test_a_stage_on_changed_images_is_not_taken_from_the_cache(own_world, root, tmp_path):
    config, said = configure("snli-ve", "finetune", own_world), []
    start(config, tmp_path / "first", cache=tmp_path / "stages")
    start(config, tmp_path / "second", said.append, cache=tmp_path / "stages")
    assert any("from the stage cache" in line for line in said)
    for path in list_images(root / "flickr30k"):
        invert(path)
    said.clear()
    start(config, tmp_path / "third", said.append, cache=tmp_path / "stages")
    assert not any("from the stage cache" in line for line in said)
