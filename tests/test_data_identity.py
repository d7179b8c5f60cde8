"""A task is of certain data: its identity changes with any file that it uses, and with nothing
else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data_cifar import LABELS, WRITERS
from tiny_official import write_image, write_imagenet, write_tiny_imagenet

from mcit.embedded.benchmark import Sizes, ensure_benchmark, write_benchmark
from mcit.registry import find_task

OPTIONS: dict[str, dict[str, Any]] = {"vqa": {"minimum": 1}}
PLACES = {
    "vqa": ["ms-coco/images"],
    "nlvr2": ["nlvr2/images/train", "nlvr2/images/dev"],
    "snli-ve": ["flickr30k/flickr30k_images"],
    "vcr": ["vcr/vcr1images"],
}


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    write_benchmark(tmp_path / "data", Sizes(train=6, evaluation=4))
    return tmp_path / "data"


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
    random = np.random.default_rng(7)
    other = lambda part: random.integers(0, 256, (len(LABELS), 3, 32, 32), dtype=np.uint8)  # noqa: E731
    monkeypatch.setattr("test_data_cifar.make_pixels", other)
    (tmp_path / "two").mkdir()
    WRITERS[form](tmp_path / "two")
    assert fingerprint("cifar100", tmp_path / "two", classes=len(order)) != before


def test_the_embedded_images_are_the_same_wherever_and_whenever_they_are_made(tmp_path):
    made = [
        ensure_benchmark(tmp_path / name, Sizes(train=3, evaluation=2)) for name in ("one", "two")
    ]
    assert fingerprint("nlvr2", made[0]) == fingerprint("nlvr2", made[1])
