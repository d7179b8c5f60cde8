"""What mcit keeps in its cache is verified: damaged, cut, empty or in the wrong place, it is made
again, and said."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_official import write_image

from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import ConfigError, DataError
from mcit.registry import find_task

SAID = "are damaged (or of an earlier version): parsing them again"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=6, evaluation=4))
    return root


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(root: Path, name: str = "snli-ve", **options: Any) -> dict[str, Any]:
    """All that a task takes from the cache of parsed annotations."""
    task = find_task(name)(root=root, **options)
    rows = {split: task.split(split).table[:] for split in ("train", "eval")}
    return {"rows": rows, "about": task.describe_data(), "fingerprint": task.fingerprint()}


def list_files(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in files if not path.name.startswith(".lock"))


def flip(data: bytes, place: float, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[int(place * (len(data) - 1))] ^= 1 << bit
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "one bit at the start": lambda data: flip(data, 0),
    "one bit in the middle": lambda data: flip(data, 0.5, 3),
    "one bit at the end": lambda data: flip(data, 1, 6),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "another JSON": lambda data: b"[]",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_table_is_parsed_again_and_that_is_said(root, cache, capsys, damage):
    expected = read(root)
    for path in list_files(cache / "tables"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert read(root) == expected, path
        assert SAID in capsys.readouterr().err, path
    assert read(root) == expected
    assert capsys.readouterr().err == ""


def test_a_single_flipped_bit_is_noticed_wherever_it_is(root, cache, capsys):
    expected = read(root)
    rng = random.Random(0)
    for _ in range(60):
        path = rng.choice(list_files(cache / "tables"))
        path.write_bytes(flip(path.read_bytes(), rng.random(), rng.randrange(8)))
        assert read(root) == expected
        assert SAID in capsys.readouterr().err


def test_a_file_that_is_gone_is_made_again(root, cache, capsys):
    expected = read(root)
    for path in list_files(cache / "tables"):
        path.unlink()
        assert read(root) == expected
        assert SAID in capsys.readouterr().err


def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_replaced(root, cache, capsys):
    expected = read(root)
    for path in list_files(cache / "tables"):
        for replace in (os.mkfifo, os.mkdir):
            path.unlink()
            replace(path)
            assert read(root) == expected
            assert SAID in capsys.readouterr().err


def test_a_file_in_the_place_of_a_table_is_replaced(root, cache, capsys):
    expected = read(root)
    for folder in sorted((cache / "tables").iterdir()):
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.write_text("no folder")
            assert read(root) == expected
            assert SAID in capsys.readouterr().err


def test_the_training_table_in_the_place_of_the_other_is_noticed(root, cache, capsys):
    expected = read(root)
    (train,) = (cache / "tables").glob("snli-ve-train-*")
    (dev,) = (cache / "tables").glob("snli-ve-dev-*")
    shutil.rmtree(dev)
    shutil.copytree(train, dev)
    assert read(root) == expected
    assert SAID in capsys.readouterr().err


def test_files_of_another_table_are_noticed(root, cache, capsys):
    expected = read(root)
    (train,) = (cache / "tables").glob("snli-ve-train-*")
    (dev,) = (cache / "tables").glob("snli-ve-dev-*")
    for path in list_files(train):
        shutil.copy(path, dev / path.name)
        assert read(root) == expected, path
        assert SAID in capsys.readouterr().err, path


def test_a_cache_that_was_copied_is_verified_where_it_is(
    root, cache, tmp_path, monkeypatch, capsys
):
    """Also with its times: nothing that another place was known by counts."""
    expected = read(root)
    for number, path in enumerate(list_files(cache / "tables")):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(cache, copy)
        damaged = copy / path.relative_to(cache)
        status = damaged.stat()
        damaged.write_bytes(flip(damaged.read_bytes(), 0.4, 2))
        os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
        monkeypatch.setenv("MCIT_CACHE", str(copy))
        assert read(root) == expected
        assert SAID in capsys.readouterr().err


def test_a_table_that_is_whole_is_not_parsed_again(root, cache, capsys):
    expected = read(root)
    before = {path: path.stat().st_ino for path in list_files(cache / "tables")}
    assert read(root) == expected
    assert {path: path.stat().st_ino for path in list_files(cache / "tables")} == before
    assert capsys.readouterr().err == ""


def test_many_that_find_a_table_damaged_at_once_all_get_a_whole_one(root, cache, capsys):
    expected = read(root)
    for path in list_files(cache / "tables"):
        path.write_bytes(b"")
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: read(root), range(16)))
    assert capsys.readouterr().err.count(SAID) == 2
    assert len([path for path in (cache / "tables").iterdir() if path.is_dir()]) == 2


def test_a_damaged_table_that_cannot_be_replaced_is_refused(root, cache):
    read(root)
    for path in list_files(cache / "tables"):
        path.write_bytes(b"")
    # as where nothing can be written
    (cache / ".lock").unlink(missing_ok=True)
    (cache / ".lock").mkdir()
    with pytest.raises(DataError, match=r"is damaged and cannot be written again .*set MCIT_CACHE"):
        read(root)


@pytest.fixture
def broken(root, tmp_path) -> Path:
    """The benchmark with an image that cannot be opened."""
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    folder = copy / "flickr30k" / "flickr30k_images"
    task = find_task("snli-ve")(root=copy)
    (folder / f"{task.split('train').table[2]['image']}.jpg").write_bytes(b"broken")
    return copy


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_remembered_of_images_is_verified_too(cache, broken, capsys, damage):
    expected = read(broken, on_bad_record="skip")
    assert expected["about"]["train"]["skipped"]["records"] == 1
    files = list_files(cache / "verified")
    assert len(files) == 2
    for path in files:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert read(broken, on_bad_record="skip") == expected
        assert "is damaged (or of an earlier version): making it again" in capsys.readouterr().err
    assert read(broken, on_bad_record="skip") == expected
    assert capsys.readouterr().err == ""


def test_what_is_remembered_of_one_split_does_not_pass_for_another(cache, broken):
    """Else the broken image would be learned from, or whole ones left out."""
    expected = read(broken, on_bad_record="skip")
    one, other = list_files(cache / "verified")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert read(broken, on_bad_record="skip") == expected


def test_what_is_remembered_of_images_holds_no_invented_fault(cache, root):
    expected = read(root, on_bad_record="skip")
    for path in list_files(cache / "verified"):
        found = json.loads(path.read_text())
        found["value"] = {"flickr30k/flickr30k_images/1.jpg": ["is bad", "bad"]}
        path.write_text(json.dumps(found))
    assert read(root, on_bad_record="skip") == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_vocabulary_in_the_cache_is_written_again(cache, root, damage):
    find_task("vqa")(root=root, minimum=1).check()
    (path,) = list_files(cache / "vocabularies")
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    find_task("vqa")(root=root, minimum=1).check()
    assert path.read_bytes() == whole


def test_a_cache_below_a_home_that_is_not_known_is_refused_with_what_would_do(root, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(
        ConfigError,
        match=r"no folder for caches \(MCIT_CACHE is '~nobody.*; set MCIT_CACHE to a folder",
    ):
        read(root)


def test_a_tilde_in_the_environment_is_the_home(root, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCIT_CACHE", "~/kept")
    read(root)
    assert (tmp_path / "kept" / "tables").is_dir()


def test_an_image_that_is_written_again_is_opened_again(cache, broken):
    """What is remembered is of the files as they were."""
    assert read(broken, on_bad_record="skip")["about"]["train"]["skipped"]["records"] == 1
    for path in (broken / "flickr30k" / "flickr30k_images").iterdir():
        if path.read_bytes() == b"broken":
            write_image(path)
    assert read(broken, on_bad_record="skip")["about"]["train"]["skipped"]["records"] == 0
