"""Files that are no files, images of odd shapes and depths, and text that would write to the
terminal."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image, features
from test_data_cifar import write_archive, write_extracted, write_folders, write_parquet
from tiny_official import (
    make_png,
    small_processor,
    write_image,
    write_imagenet,
    write_tiny_imagenet,
)

from mcit.cli import main
from mcit.data.answers import read_vocabulary
from mcit.data.cifar import read_cifar100
from mcit.data.image_folders import read_imagenet_subset, read_tiny_imagenet
from mcit.data.images import decode_image, open_image, verify_image
from mcit.data.problems import BadRecord
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import DataError
from mcit.printable import printable
from mcit.registry import find_task

OPTIONS = {"vqa": {"minimum": 1}}
ANNOTATIONS = {
    "vqa": "vqav2/v2_mscoco_train2014_annotations.json",
    "nlvr2": "nlvr2/data/train.json",
    "snli-ve": "snli-ve/snli_ve_train.jsonl",
    "vcr": "vcr/annotation/train.jsonl",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Whatever waits for a pipe is woken, and fails."""

    def wake(*_: object) -> None:
        raise AssertionError("it waits for something that never comes")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(40)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=3, evaluation=2))
    return root


@pytest.fixture
def root(benchmark, tmp_path) -> Path:
    shutil.copytree(benchmark, tmp_path / "data")
    return tmp_path / "data"


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_device(path: Path) -> None:
    """A link to something that has no end."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def put_loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path], None]] = {"pipe": put_pipe, "device": put_device, "loop": put_loop}


def list_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))


# --- files that are no files


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_an_image_that_is_no_file_is_missing(root, name, kind, capsys):
    task = find_task(name)(root=root, **OPTIONS.get(name, {}))
    shown = task.pictures(task.split("train").table[0], task.split("train").images)[0]
    ODD[kind](shown.path)
    with pytest.raises(DataError, match=r"record 1: .* lacks "):
        find_task(name)(root=root, **OPTIONS.get(name, {})).check()
    options = [f"--set=tasks.{name}.{key}={value}" for key, value in OPTIONS.get(name, {}).items()]
    assert main(["doctor", "--data-root", str(root), "--order", name, "--deep", *options]) in (1, 3)
    assert " lacks 1 of " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations_that_are_no_file_are_named_as_such(root, name, kind, capsys):
    ODD[kind](root / ANNOTATIONS[name])
    with pytest.raises(DataError, match="is a pipe, a device or a broken link"):
        find_task(name)(root=root, **OPTIONS.get(name, {})).check()
    assert main(["doctor", "--data-root", str(root), "--order", name]) == 3
    assert f"{ANNOTATIONS[name]} is a pipe, a device or a broken link" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_metadata_that_are_no_file_are_missing(root, policy, kind):
    task = find_task("vcr")(root=root)
    ODD[kind](root / "vcr" / "vcr1images" / task.split("train").table[1]["metadata"])
    task = find_task("vcr")(root=root, on_bad_record=policy)
    if policy == "fail":
        with pytest.raises(DataError, match="lacks metadata"):
            task.check()
    else:
        task.check()
        assert 0 < len(task.examples("train")) < 3


@pytest.mark.parametrize("kind", ODD)
def test_a_file_that_is_none_any_more_when_it_is_opened_is_a_bad_image(root, kind):
    task = find_task("snli-ve")(root=root)
    examples = task.examples("train")
    ODD[kind](
        root / "flickr30k" / "flickr30k_images" / f"{task.split('train').table[0]['image']}.jpg"
    )
    with pytest.raises(DataError, match=r"record 1: .* is not a readable image"):
        examples[0]


@pytest.mark.parametrize("kind", ODD)
def test_odd_files_beside_the_images_do_no_harm(root, kind):
    folder = root / "flickr30k" / "flickr30k_images"
    for name in ("odd", "odd.jpg", "1234567.jpg"):
        ODD[kind](folder / name)
    task = find_task("snli-ve")(root=root)
    task.check()
    assert len(task.examples("train")) == 3


@pytest.mark.parametrize("kind", ODD)
def test_images_of_classes_that_are_no_files_are_left_aside_or_refused(tmp_path, kind):
    write_imagenet(tmp_path / "imagenet")
    ODD[kind](tmp_path / "imagenet" / "train" / "n00000003" / "b.png")
    assert len(read_imagenet_subset(tmp_path / "imagenet", "train", range(100), None).paths) == 100
    write_tiny_imagenet(tmp_path / "tiny")
    ODD[kind](tmp_path / "tiny" / "train" / "n00000003" / "images" / "b.png")
    assert len(read_tiny_imagenet(tmp_path / "tiny", "train", range(5)).labels) == 5
    ODD[kind](tmp_path / "tiny" / "val" / "images" / "3.png")
    with pytest.raises(DataError, match=r"3\.png is not a readable image"):
        read_tiny_imagenet(tmp_path / "tiny", "eval", range(5))
    ODD[kind](tmp_path / "tiny" / "val" / "val_annotations.txt")
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        read_tiny_imagenet(tmp_path / "tiny", "eval", range(5))


CIFAR = {
    "train.parquet": write_parquet,
    "train/bear/01.png": lambda folder: write_folders(folder, numbered=False),
    "cifar-100-python.tar.gz": write_archive,
    "cifar-100-python/train": lambda folder: write_extracted(folder / "cifar-100-python"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", CIFAR)
def test_a_file_of_cifar_that_is_none_is_not_waited_for(tmp_path, name, kind):
    CIFAR[name](tmp_path)
    ODD[kind](tmp_path / name)
    if name.endswith(".png"):
        assert read_cifar100(tmp_path, "train", [3]).labels.tolist() == [3]  # one of two is left
    else:
        with pytest.raises(DataError):
            read_cifar100(tmp_path, "train", [3])


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["train2014.zip", "train2014.tar.gz", "train2014.tar"])
def test_an_archive_that_is_no_file_is_not_waited_for(root, name, kind, capsys):
    shutil.rmtree(root / "ms-coco" / "images")
    ODD[kind](root / "ms-coco" / name)
    assert (
        main(["doctor", "--data-root", str(root), "--order", "vqa", "--set", "tasks.vqa.minimum=1"])
        == 3
    )
    assert "ms-coco/images is missing" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ODD)
def test_a_shard_of_the_image_cache_that_is_no_file_is_damaged(root, kind, capsys):
    assert main(["prepare", "--data-root", str(root), "--order", "snli-ve", "--jobs", "1"]) == 0
    (shard,) = (root / ".mcit" / "images").rglob("*.shard")
    ODD[kind](shard)
    task = find_task("snli-ve")(root=root)
    task.check()
    assert (
        "no image comes from the cache" in task.data_notes(None)[0]
        or "is not used" in task.data_notes(None)[0]
    )
    assert main(["prepare", "--data-root", str(root), "--order", "snli-ve", "--jobs", "1"]) == 0
    assert "5 images written" in capsys.readouterr().out


def test_a_vocabulary_without_an_end_is_refused(tmp_path):
    put_device(tmp_path / "answers.json")
    with pytest.raises(DataError, match=r"answers\.json cannot be read: not a regular file"):
        read_vocabulary(tmp_path / "answers.json")
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"long\.json has more than 67,108,864 bytes"):
        read_vocabulary(tmp_path / "long.json")
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()


# --- damaged shards


@pytest.mark.parametrize("damage", ["cut", "empty", "table", "other"])
def test_a_damaged_shard_is_said_on_stderr_when_its_pictures_are_read_from_their_sources(
    root, damage, capsys
):
    processor = small_processor()
    examples = find_task("nlvr2")(root=root).examples("train")
    expected = find_task("nlvr2")(root=root).collate([examples[0]], processor)
    prepare_for(root, processor)
    (shard,) = (root / ".mcit" / "images").rglob("*.shard")
    data = shard.read_bytes()
    flipped = bytearray(data)
    flipped[-40] ^= 255
    shard.write_bytes(
        {"cut": data[:-9], "empty": b"", "table": bytes(flipped), "other": b"x" * 300}[damage]
    )
    task = find_task("nlvr2")(root=root)
    capsys.readouterr()
    batch = task.collate([task.examples("train")[0]], processor)
    said = capsys.readouterr().err
    assert "image cache: nlvr2/images/train/" in said
    assert f"is not found, maybe because of 1 damaged file of {shard.parent} ({shard.name} " in said
    assert "; it is read from its source (1 so far here); `mcit prepare` fixes it" in said
    assert all(torch.equal(batch[key], expected[key]) for key in expected)
    assert "no image comes from the cache: it has 1 damaged file" in task.data_notes(processor)[0]


def prepare_for(root: Path, processor: object) -> None:
    from mcit.data.preparing import collect_pictures, do_work, plan_work

    task = find_task("nlvr2")(root=root)
    pictures = collect_pictures(task, "train", "eval")
    do_work(plan_work(root, list(pictures.values()), processor.resizing), jobs=1)


# --- odd images


def make_gray(width: int, height: int) -> bytes:
    """An image of few bytes and many pixels."""
    return make_png(width, height, depth=8, color=0, data=bytes((width + 1) * height))


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 60_000), (40_000, 100)])
def test_an_image_that_is_far_too_long_is_refused_before_it_is_scaled(tmp_path, size):
    write_imagenet(tmp_path)
    path = tmp_path / "val" / "n00000007" / "a.png"
    path.write_bytes(make_gray(*size))
    images = read_imagenet_subset(tmp_path, "eval", [7], None)
    tracemalloc.start()
    with pytest.raises(
        BadRecord, match=rf"has {size[0]}x{size[1]} pixels, one side more than 200 times the other"
    ):
        find_task("imagenet_subset")().eval_transform(images.paths)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    task = find_task("imagenet_subset")(root=tmp_path, on_bad_record="skip")
    with pytest.raises(DataError, match="has no eval image of the class"):
        task.check()
    assert task.part.pool.skipped("eval").counts == {"image too long": 1}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_no_task_opens_an_image_that_is_far_too_long(root, name):
    task = find_task(name)(root=root, **OPTIONS.get(name, {}))
    task.pictures(task.split("train").table[0], task.split("train").images)[0].path.write_bytes(
        make_gray(1, 60_000)
    )
    with pytest.raises(DataError, match="one side more than 200 times the other"):
        task.examples("train")[0]


def test_an_image_of_a_panorama_is_read(tmp_path):
    path = write_image(tmp_path / "a.png", (9, 8, 7), (2000, 10))
    assert open_image(path).size == (2000, 10)


RAMP = (np.arange(256 * 256, dtype=np.uint16)).reshape(256, 256)


def save(array: np.ndarray, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_grays_of_16_bits_become_their_upper_8(form, order):
    pixels = np.asarray(decode_image(save(RAMP.astype(order), form), "ramp"))
    assert pixels.shape == (256, 256, 3)
    assert (pixels == (RAMP >> 8)[:, :, None]).all()


def test_a_gray_of_16_bits_is_what_the_same_gray_as_a_color_is():
    """As PNG holds it in either way."""

    def make(color: int, values: np.ndarray) -> bytes:
        rows = values.astype(">u2").reshape(256, -1)
        return make_png(
            256, 256, depth=16, color=color, data=b"".join(b"\0" + row.tobytes() for row in rows)
        )

    gray = decode_image(make(0, RAMP), "gray")
    color = decode_image(make(2, np.repeat(RAMP[:, :, None], 3, axis=2)), "color")
    assert gray.tobytes() == color.tobytes()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8),
            "an image of floating-point numbers",
        ),
        (
            np.arange(64, dtype=np.int32).reshape(8, 8) * 1000,
            "an image of signed or 32-bit numbers",
        ),
    ],
)
def test_numbers_without_a_range_are_refused_and_the_doctor_says_so(root, array, words, capsys):
    data = save(array, "TIFF")
    with pytest.raises(
        BadRecord,
        match=f"it is {words}, and nothing says which of them is white; save it with 8 or 16",
    ):
        decode_image(data, "it")
    for path in list_images(root / "flickr30k"):
        path.write_bytes(data)
        with pytest.raises(BadRecord, match=words):
            verify_image(path)
    assert main(["doctor", "--data-root", str(root), "--order", "snli-ve"]) == 1
    assert words in capsys.readouterr().out
    with pytest.raises(
        DataError, match="3 of 3 records are left out: 3 image with an unknown range of values"
    ):
        find_task("snli-ve")(root=root, on_bad_record="skip").check()


MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "JPEG": ["L", "RGB", "CMYK"],
    "GIF": ["L", "P"],
    "BMP": ["1", "L", "P", "RGB"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"],
    "WEBP": ["RGB", "RGBA"],
}


@pytest.mark.parametrize(
    ("form", "mode"), [(form, mode) for form, modes in MODES.items() for mode in modes]
)
def test_images_of_8_bits_are_read_as_pillow_reads_them(form, mode):
    if form == "WEBP" and not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    pixels = np.random.default_rng(0).integers(0, 256, (19, 23, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert("RGB" if mode in ("1", "CMYK") else "RGBA").convert(mode).save(
        file, form
    )
    expected = Image.open(io.BytesIO(file.getvalue())).convert("RGB")
    assert decode_image(file.getvalue(), "it").tobytes() == expected.tobytes()


# --- text that would write to the terminal


NASTY = "a\x1b[2Jb\x07\r\x7f\x85\u202e\u2028c"


def test_what_does_not_print_is_shown_by_its_escape():
    assert printable("plain é 語 🙂") == "plain é 語 🙂"
    assert printable(NASTY) == r"a\x1b[2Jb\x07\r\x7f\x85\u202e\u2028c"
    assert printable("one\n  - two") == "one\n  - two"
    assert printable("\ud800") == r"\ud800"


def assert_prints(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n")), ascii(text)
    text.encode()


def test_every_data_error_can_be_printed():
    for error in (DataError(NASTY), BadRecord(NASTY, NASTY), DataError(f"{NASTY}\n{NASTY}")):
        assert_prints(str(error))
    assert_prints(BadRecord(NASTY, NASTY).reason)


def test_what_a_library_says_of_a_file_is_printable(tmp_path):
    whole = io.BytesIO()
    table = pyarrow.table({f"{NASTY}": [1], "other": [2]})
    pyarrow.parquet.write_table(table, whole)
    (tmp_path / "train.parquet").write_bytes(whole.getvalue())
    with pytest.raises(DataError, match=r"found a\\x1b\[2Jb") as caught:
        read_cifar100(tmp_path, "train", [3])
    assert_prints(str(caught.value))


def test_nothing_that_files_hold_reaches_the_terminal_as_it_is(root, capsys):
    """Values of records, names of files, and lines of lists."""
    annotations = root / "snli-ve" / "snli_ve_train.jsonl"
    records = [json.loads(line) for line in annotations.read_text().splitlines()]
    records[0]["gold_label"] = NASTY
    records[1][NASTY] = records[1].pop("gold_label")
    annotations.write_text("".join(json.dumps(record) + "\n" for record in records))
    shutil.move(
        root / "nlvr2" / "images" / "train", root / "nlvr2" / "images" / f"tr\x1b[31main{NASTY}"
    )
    (root / f"v\x1b[31m{NASTY}.zip").write_text("no archive")
    for command in (
        ["doctor"],
        ["doctor", "--deep"],
        ["prepare"],
        ["prepare", "--order", "snli-ve"],
    ):
        main([*command, "--data-root", str(root), "--set", "tasks.vqa.minimum=1"])
        printed = capsys.readouterr()
        assert_prints(printed.out.replace("\x1b[0m", ""))
        assert_prints(printed.err)
    argv = [
        "run",
        "--order",
        "snli-ve",
        "--data-root",
        str(root),
        "--set",
        "model.name=embedded",
        "--dry-run",
    ]
    assert main(argv) == 2
    assert_prints(capsys.readouterr().err)


def test_an_image_with_a_nasty_name_is_named_printably(root, capsys):
    folder = root / "flickr30k" / "flickr30k_images"
    task = find_task("snli-ve")(root=root)
    image = task.split("train").table[0]["image"]
    (folder / f"{image}.jpg").unlink()
    (folder / NASTY).mkdir()
    (folder / NASTY / f"{image}.jpg").write_bytes(b"broken")
    assert main(["prepare", "--data-root", str(root), "--order", "snli-ve", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "cannot be read: flickr30k/flickr30k_images/a\\x1b" in printed
    assert_prints(printed)
