"""A run is of certain images: where they change, it is not gone on with, and nothing is taken from the stage cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from killing import assert_same_end, start, stop_after
from PIL import Image, ImageOps
from test_data_cifar import LABELS, WRITERS
from tiny_official import write_image
from tiny_run import configure, write_world

from mcit.config import RunConfig
from mcit.embedded import Sizes, ensure_benchmark
from mcit.registry import find_task
from mcit.runner.plan import describe_plan, resolve
from mcit.runner.run_folder import FolderError

OPTIONS: dict[str, dict[str, Any]] = {"vqa": {"minimum": 1}}
PLACES = {
    "vqa": ["ms-coco/images"],
    "nlvr2": ["nlvr2/images/train", "nlvr2/images/dev"],
    "snli-ve": ["flickr30k/flickr30k_images"],
    "vcr": ["vcr/vcr1images"],
}


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


def fingerprint(name: str, root: Path, **options: Any) -> str:
    return find_task(name)(root=root, **OPTIONS.get(name, {}), **options).fingerprint()


def list_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))


def touch(path: Path) -> None:
    """Another time of change, the same bytes."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def swap_bytes(path: Path) -> None:
    """Other bytes, as many."""
    path.write_bytes(path.read_bytes()[::-1])


def grow(path: Path) -> None:
    """A byte more, and the time of before."""
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], None]] = {"time": touch, "bytes": swap_bytes, "size": grow}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", PLACES)
def test_a_changed_image_changes_the_identity_of_a_vision_language_task(root, name, change):
    before = fingerprint(name, root)
    assert fingerprint(name, root) == before
    for place in PLACES[name]:
        CHANGES[change](list_images(root / place)[0])
        after = fingerprint(name, root)
        assert after != before
        before = after


def test_changed_boxes_change_the_identity_of_vcr(root):
    before = fingerprint("vcr", root)
    metadata = next((root / "vcr" / "vcr1images").rglob("*.json"))
    metadata.write_text(metadata.read_text().replace("[[", "[[1"))
    assert fingerprint("vcr", root) != before


def test_an_image_that_no_record_names_does_not_matter(root):
    before = fingerprint("snli-ve", root)
    write_image(root / "flickr30k" / "flickr30k_images" / "9999999.jpg")
    assert fingerprint("snli-ve", root) == before


def test_another_vocabulary_is_another_task(root, tmp_path):
    path = tmp_path / "answers.json"
    path.write_text('["yes", "no"]')
    before = fingerprint("vqa", root, vocabulary=path)
    path.write_text('["no", "yes"]')
    assert fingerprint("vqa", root, vocabulary=path) != before


def write_imagenet(root: Path) -> None:
    for part in ("train", "val"):
        for number in range(100):
            write_image(root / part / f"n{number:08}" / "a.png", (number, 0, 0), (9, 9))


def write_tiny_imagenet(root: Path) -> None:
    lines = []
    for number in range(200):
        name = f"n{number:08}"
        write_image(root / "train" / name / "images" / "a.png", (number, 0, 0), (64, 64))
        write_image(root / "val" / "images" / f"{number}.png", (number, 0, 0), (64, 64))
        lines.append(f"{number}.png\t{name}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_changed_image_changes_the_identity_of_imagenet_subset(tmp_path, part, change):
    write_imagenet(tmp_path)
    before = fingerprint("imagenet_subset", tmp_path)
    assert fingerprint("imagenet_subset", tmp_path) == before
    CHANGES[change](tmp_path / part / "n00000042" / "a.png")
    assert fingerprint("imagenet_subset", tmp_path) != before


@pytest.mark.parametrize("path", ["train/n00000042/images/a.png", "val/images/42.png"])
def test_a_changed_image_changes_the_identity_of_tiny_imagenet(tmp_path, path):
    """Every pixel is read in any case; when a file was written does not matter then."""
    write_tiny_imagenet(tmp_path)
    before = fingerprint("tiny_imagenet", tmp_path)
    touch(tmp_path / path)
    assert fingerprint("tiny_imagenet", tmp_path) == before
    write_image(tmp_path / path, (0, 9, 0), (64, 64))
    assert fingerprint("tiny_imagenet", tmp_path) != before


@pytest.mark.parametrize("form", WRITERS)
def test_changed_images_change_the_identity_of_cifar(tmp_path, monkeypatch, form):
    order = sorted(set(LABELS))
    monkeypatch.setattr("mcit.data.class_incremental.order_classes", lambda count, seed: order)
    (tmp_path / "one").mkdir()
    WRITERS[form](tmp_path / "one")
    before = fingerprint("cifar100", tmp_path / "one", classes=len(order))
    for path in (tmp_path / "one").rglob("*"):
        touch(path)
    assert fingerprint("cifar100", tmp_path / "one", classes=len(order)) == before
    random = numpy.random.default_rng(7)
    other = lambda part: random.integers(0, 256, (len(LABELS), 3, 32, 32), dtype=numpy.uint8)  # noqa: E731
    monkeypatch.setattr("test_data_cifar.make_pixels", other)
    (tmp_path / "two").mkdir()
    WRITERS[form](tmp_path / "two")
    assert fingerprint("cifar100", tmp_path / "two", classes=len(order)) != before


def test_runs_on_two_copies_of_the_same_data_are_the_same_experiment(root, tmp_path):
    """The passport, which reports go by, has no times; a run goes on only with the files that it began with."""
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    plans = [
        resolve(RunConfig(order=("snli-ve", "vcr"), data_root=str(folder)))
        for folder in (root, tmp_path / "copy")
    ]
    one, other = (describe_plan(plan)["data"] for plan in plans)
    assert one == other
    assert None not in one.values()
    assert plans[0].tasks[0].fingerprint() != plans[1].tasks[0].fingerprint()
    grow(list_images(tmp_path / "copy" / "flickr30k")[0])
    assert describe_plan(resolve(plans[1].config))["data"]["snli-ve"] != one["snli-ve"]


def test_the_embedded_images_are_the_same_wherever_and_whenever_they_are_made(tmp_path):
    made = [
        ensure_benchmark(tmp_path / name, Sizes(train=3, evaluation=2)) for name in ("one", "two")
    ]
    assert fingerprint("nlvr2", made[0]) == fingerprint("nlvr2", made[1])


# --- going on with a run


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


def test_a_run_whose_images_were_changed_is_not_gone_on_with(stopped, root):
    for path in list_images(root / "flickr30k"):
        invert(path)
    with pytest.raises(FolderError) as caught:
        start(*stopped, resume=True)
    message = str(caught.value)
    assert "was begun with other data than there are now:" in message
    assert (
        "snli-ve: images under flickr30k/flickr30k_images differ in names or sizes of their files"
        in message
    )
    assert "nlvr2" not in message
    assert "choose another --output" in message


def test_a_run_whose_images_were_copied_without_their_times_is_told_so(stopped, root):
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


def test_a_run_whose_annotations_were_changed_is_told_so(stopped, root):
    path = root / "snli-ve" / "snli_ve_train.jsonl"
    path.write_text(path.read_text().replace("the", "a", 1))
    with pytest.raises(FolderError, match="- snli-ve: annotations differ\n"):
        start(*stopped, resume=True)


def test_a_run_goes_on_with_a_copy_that_kept_the_times(stopped, root, tmp_path):
    config, run = stopped
    shutil.copytree(root, tmp_path / "copy")
    shutil.rmtree(root)
    (tmp_path / "copy").rename(root)
    start(config, run, resume=True)
    start(config, tmp_path / "whole")
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
