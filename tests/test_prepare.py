"""`mcit prepare`: the same pixels as from the sources, whatever is killed, changed or damaged in
between."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from tiny_official import small_processor, write_image
from torch.utils.data import DataLoader
from transformers.models.vilt.image_processing_pil_vilt import (
    ViltImageProcessorPil,
    get_resize_output_image_size,
)

from mcit.cli import main
from mcit.data import preparing
from mcit.data.image_cache import ImageCache, load_index
from mcit.data.images import Picture
from mcit.data.preparing import collect_pictures, do_work, plan_work
from mcit.data.resizing import Resizing
from mcit.data.shards import DamagedShard, pack, read_table, unpack, write_shard
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import DataError
from mcit.files import hold_lock
from mcit.registry import find_task

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
SMALL = Resizing(shorter=32, divisor=16)  # as small_processor resizes
OPTIONS = {"vqa": {"minimum": 1}}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    """The four tasks in the official layout; images of several sizes and modes, and noise in
    one."""
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=7, evaluation=4))
    rng = np.random.default_rng(0)
    files = sorted(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
    for number, path in enumerate(files[::3]):
        size = ((90, 41), (33, 200), (64, 64))[number % 3]
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    Image.open(files[1]).convert("L").save(files[1])
    return root


@pytest.fixture
def root(benchmark, tmp_path) -> Path:
    shutil.copytree(benchmark, tmp_path / "data")
    return tmp_path / "data"


def make(name: str, root: Path, **options):
    return find_task(name)(root=root, **OPTIONS.get(name, {}), **options)


def pictures_of(name: str, root: Path) -> list[Picture]:
    return list(collect_pictures(make(name, root), "train", "eval").values())


def prepare(root: Path, *names: str, resizing: Resizing = SMALL, verify: bool = False):
    pictures = [picture for name in names or TASKS for picture in pictures_of(name, root)]
    work = plan_work(root, pictures, resizing, verify)
    return work, do_work(work, jobs=1)


def batch_of(name: str, root: Path, split: str = "train") -> dict:
    task = make(name, root)
    examples = task.examples(split)
    return task.collate([examples[place] for place in range(len(examples))], small_processor())


def assert_same(batch: dict, other: dict) -> None:
    assert batch.keys() == other.keys()
    assert [key for key in batch if not torch.equal(batch[key], other[key])] == []


def spoil_sources(pictures: list[Picture]) -> None:
    """Other bytes, the same size and time: only a reader of the cache does not notice."""
    for path in {picture.path for picture in pictures}:
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- the arithmetic


@pytest.mark.parametrize("settings_of", [(384, 32), (32, 16), (40, 8)])
def test_sizes_are_those_of_the_processor(settings_of):
    shorter, divisor = settings_of
    resizing = Resizing(shorter, divisor)
    rng = np.random.default_rng(1)
    sizes = [
        (1, 1),
        (640, 480),
        (480, 640),
        (500, 375),
        (333, 500),
        (384, 384),
        (1920, 1080),
        (3000, 90),
        (639, 384),
    ]
    sizes += rng.integers(1, 2000, (2000, 2)).tolist()
    for width, height in sizes:
        shape = np.broadcast_to(np.uint8(0), (3, height, width))
        expected = get_resize_output_image_size(
            shape, shorter, int(1333 / 800 * shorter), divisor, "channels_first"
        )
        tall, wide = (
            max(side, divisor) for side in expected
        )  # the processor would make a side of nothing
        assert resizing.fit(width, height) == (wide, tall), (width, height)


def test_pixels_are_those_of_the_processor():
    rng = np.random.default_rng(2)
    processor = ViltImageProcessorPil(do_rescale=False, do_normalize=False, do_pad=False)
    for height, width in ((480, 640), (400, 333), (50, 70)):
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        expected = np.asarray(processor(image, return_tensors="np")["pixel_values"][0]).transpose(
            1, 2, 0
        )
        assert np.array_equal(Resizing().read(image), expected)


@settings(deadline=None, max_examples=40)
@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
def test_what_is_packed_is_unpacked_bit_for_bit(pixels):
    assert np.array_equal(unpack(pack(pixels), *pixels.shape[:2]), pixels)


def test_photographs_are_packed_into_less_space():
    y, x = np.mgrid[0:200, 0:300]
    smooth = np.stack([x + y, x, y], axis=2).astype(np.uint8)
    assert len(pack(smooth)) < smooth.nbytes / 4


def test_a_resizing_is_known_by_its_name():
    assert Resizing().name == "384-32-bicubic"
    assert Resizing.from_name(SMALL.name) == SMALL
    assert [
        Resizing.from_name(name)
        for name in ("", "384", "384-32-cubic", "a-b-bicubic", "0-1-bicubic")
    ] == [None] * 5


# --- training from the cache


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_batch_from_the_cache_has_the_same_bits(root, name, split):
    before = batch_of(name, root, split)
    work, done = prepare(root, name)
    assert (work.kept, done.pictures, done.problems) == (0, len(work.pictures), {})
    assert_same(batch_of(name, root, split), before)
    spoil_sources(work.pictures)
    assert_same(batch_of(name, root, split), before)  # it did come from the cache


def test_a_batch_comes_through_loader_workers_too(root):
    before = batch_of("vcr", root)
    work, _ = prepare(root, "vcr")
    spoil_sources(work.pictures)
    task, processor = make("vcr", root), small_processor()
    examples = pickle.loads(pickle.dumps(task.examples("train")))
    (batch,) = DataLoader(
        examples, batch_size=99, num_workers=1, collate_fn=lambda e: task.collate(e, processor)
    )
    assert_same(batch, before)


def test_questions_about_the_same_objects_of_an_image_share_a_picture(root):
    task = make("vcr", root)
    table, images = task.split("train").table, task.split("train").images
    row = table[0]
    other = {**row, "question": "another", "id": "x"}
    fewer = {**row, "mentioned": row["mentioned"][1:]}
    (picture,), (same,), (different,) = (task.pictures(r, images) for r in (row, other, fewer))
    assert picture == same
    assert different.name != picture.name


def test_a_run_is_told_where_its_images_come_from(root):
    task, processor = make("snli-ve", root), small_processor()
    assert task.data_notes(processor) == []
    work, _ = prepare(root, "snli-ve")
    (line,) = task.data_notes(processor)
    assert line == f"snli-ve: images come resized from {work.folder} ({len(work.pictures)} held)"


def test_another_size_is_not_taken_from_the_cache_and_has_a_place_of_its_own(root):
    before = batch_of("snli-ve", root)
    prepare(root, "snli-ve", resizing=Resizing(shorter=48, divisor=16))
    assert_same(batch_of("snli-ve", root), before)
    (line,) = make("snli-ve", root).data_notes(small_processor())
    assert line.endswith("is not used: it holds 48-16-bicubic, and the model needs 32-16-bicubic")
    prepare(root, "snli-ve")
    assert "come resized from" in make("snli-ve", root).data_notes(small_processor())[0]
    assert_same(batch_of("snli-ve", root), before)


# --- what changes, breaks or is killed


def test_a_changed_source_is_read_again_and_said(root, capsys):
    work, _ = prepare(root, "snli-ve")
    write_image(work.pictures[0].path, (200, 0, 0), (80, 70))
    changed = batch_of("snli-ve", root)
    assert (
        "has changed since `mcit prepare`; it is read from its source (1 so far here)"
        in capsys.readouterr().err
    )
    again, done = prepare(root, "snli-ve")
    assert done.pictures == len(again.pictures) > 0
    assert_same(batch_of("snli-ve", root), changed)
    assert capsys.readouterr().err == ""
    shutil.rmtree(root / ".mcit")
    assert_same(batch_of("snli-ve", root), changed)


def test_changed_boxes_are_drawn_again(root, capsys):
    work, _ = prepare(root, "vcr")
    before = batch_of("vcr", root)
    for picture in work.pictures:
        text = picture.metadata.read_text().replace(
            '"boxes": [[', '"boxes": [[1'
        )  # the first box begins elsewhere
        picture.metadata.write_text(text)
    after = batch_of("vcr", root)
    assert "has changed" in capsys.readouterr().err
    shutil.rmtree(root / ".mcit")
    assert_same(batch_of("vcr", root), after)
    assert not torch.equal(before["pixels"], after["pixels"])


def test_a_flipped_byte_is_found_said_and_fixed(root, capsys):
    before = batch_of("snli-ve", root)
    work, _ = prepare(root, "snli-ve")
    (shard,) = work.folder.glob("*.shard")
    data = bytearray(shard.read_bytes())
    entry = read_table(shard)[0]
    data[int(entry["start"]) + 5] ^= 1
    shard.write_bytes(data)
    assert_same(batch_of("snli-ve", root), before)
    assert_same(batch_of("snli-ve", root, "eval"), batch_of("snli-ve", root, "eval"))
    assert "is damaged in" in capsys.readouterr().err
    assert prepare(root, "snli-ve")[1].pictures == 0  # a quick look does not see it
    assert prepare(root, "snli-ve", verify=True)[1].pictures == len(work.pictures)
    assert_same(batch_of("snli-ve", root), before)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["cut", "empty", "table", "other"])
def test_a_shard_that_is_not_whole_is_not_used_and_made_again(root, damage):
    before = batch_of("nlvr2", root)
    work, _ = prepare(root, "nlvr2")
    (shard,) = work.folder.glob("*.shard")
    data = shard.read_bytes()
    flipped = bytearray(data)
    flipped[-40] ^= 255
    broken = {"cut": data[:-9], "empty": b"", "table": bytes(flipped), "other": b"x" * 300}[damage]
    shard.write_bytes(broken)
    with pytest.raises(DamagedShard):
        read_table(shard)
    assert_same(batch_of("nlvr2", root), before)
    again, done = prepare(root, "nlvr2")
    assert again.outdated == [shard]
    assert done.pictures == len(work.pictures)
    assert not shard.exists()
    assert_same(batch_of("nlvr2", root), before)


def test_what_the_sources_no_longer_give_is_refused_before_a_run(root):
    """As after a change of Pillow: the entry fits its source, the pixels do not."""
    (picture,) = pictures_of("snli-ve", root)[:1]
    folder = root / ".mcit" / "images" / SMALL.name
    folder.mkdir(parents=True)
    write_shard(folder, [(picture.name, picture.stamp(), np.zeros((32, 32, 3), np.uint8))])
    with pytest.raises(
        DataError, match=r"holds pixels of .* that differ from those its source gives now"
    ):
        make("snli-ve", root).check()


@dataclass(frozen=True)
class SlowPicture(Picture):
    """Takes so long that a process can be killed while it is resized."""

    def open(self) -> Image.Image:
        time.sleep(0.1)
        return super().open()


def test_a_killed_preparation_leaves_nothing_half_done_and_goes_on(root, monkeypatch):
    monkeypatch.setattr(preparing, "_PIECE", 2)
    monkeypatch.setattr(preparing, "_TRIED", 1)
    pictures = [SlowPicture(picture.path, picture.name) for picture in pictures_of("snli-ve", root)]
    work = plan_work(root, pictures, SMALL)
    child = os.fork()
    if child == 0:
        do_work(work, jobs=1)
        os._exit(0)
    end = time.monotonic() + 20
    while len(list(work.folder.glob("*.shard"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kept = len(load_index(work.folder))
    assert 4 <= kept < len(pictures)
    again = plan_work(root, pictures, SMALL)
    assert (again.kept, len(again.pictures)) == (kept, len(pictures) - kept)
    before = batch_of("snli-ve", root)
    do_work(again, jobs=1)
    assert not list(work.folder.glob("*.draft"))
    index = load_index(work.folder)
    for picture in pictures:
        assert np.array_equal(
            index.read(index.find(picture.name)), SMALL.read(Picture.open(picture))
        )
    assert_same(batch_of("snli-ve", root), before)


def test_several_processes_write_what_one_writes(root, monkeypatch):
    monkeypatch.setattr(preparing, "_PIECE", 3)
    pictures = pictures_of("vqa", root)
    do_work(plan_work(root, pictures, SMALL), jobs=2)
    index = load_index(root / ".mcit" / "images" / SMALL.name)
    assert len(index) == len(pictures)
    assert len(index.paths) > 1
    for picture in pictures:
        assert np.array_equal(index.read(index.find(picture.name)), SMALL.read(picture.open()))


def test_only_one_preparation_at_a_time_fills_a_folder(root):
    work = plan_work(root, pictures_of("snli-ve", root), SMALL)
    work.folder.mkdir(parents=True)
    refusal = pytest.raises(DataError, match="another `mcit prepare` is filling")
    with hold_lock(work.folder / ".lock"), refusal:
        do_work(work, jobs=1)


def test_data_sets_are_kept_apart_so_that_one_can_be_made_again_without_the_other(root):
    prepare(root)
    write_image(pictures_of("snli-ve", root)[0].path, (200, 0, 0), (80, 70))
    prepare(root, "snli-ve")
    work = plan_work(
        root, [picture for name in TASKS for picture in pictures_of(name, root)], SMALL
    )
    assert (work.pictures, work.outdated) == ([], [])


@pytest.mark.parametrize("prepared", [False, True])
def test_an_image_that_breaks_during_a_run_is_named_with_its_record(root, prepared):
    if prepared:
        prepare(root, "snli-ve")
    task = make("snli-ve", root)
    examples = task.examples("train")
    task.pictures(task.split("train").table[4], task.split("train").images)[0].path.write_bytes(
        b"broken"
    )
    with pytest.raises(
        DataError, match=r"snli_ve_train\.jsonl, record 5: .*\.jpg is not a readable image"
    ):
        task.collate([examples[4]], small_processor())


def test_a_disk_that_is_too_small_is_known_beforehand(root, monkeypatch):
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        DataError, match=r"11 pictures would take about .* GB in .*, where 0\.0 GB are free"
    ):
        prepare(root, "snli-ve")
    assert not list((root / ".mcit" / "images" / SMALL.name).glob("*.shard"))


def test_a_root_that_cannot_be_written_has_its_cache_elsewhere(root, tmp_path, monkeypatch):
    before = batch_of("snli-ve", root)
    with monkeypatch.context() as patch:
        access = os.access
        patch.setattr(os, "access", lambda path, mode: path != root and access(path, mode))
        work, _ = prepare(root, "snli-ve")
    assert work.folder.is_relative_to(tmp_path / "cache" / "images")
    assert ImageCache.find(root).folder == work.folder.parent
    spoil_sources(work.pictures)
    assert_same(batch_of("snli-ve", root), before)


# --- the command


def test_the_command_says_what_it_does_and_does_it_once(root, capsys):
    argv = [
        "prepare",
        "--data-root",
        str(root),
        "--order",
        "snli-ve,vqa",
        "--jobs",
        "1",
        "--set",
        "tasks.vqa.minimum=1",
    ]
    assert main(argv) == 0
    first = capsys.readouterr().out
    assert "0 images are there, 22 to do" in first
    assert "22 images written" in first
    assert main(argv) == 0
    assert capsys.readouterr().out.strip().endswith("22 images are there, 0 to do")


def test_images_that_cannot_be_read_are_listed_and_the_others_done(root, capsys):
    broken = pictures_of("snli-ve", root)[3].path
    broken.write_bytes(broken.read_bytes()[:100])
    assert main(["prepare", "--data-root", str(root), "--order", "snli-ve", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert f"cannot be read: flickr30k/flickr30k_images/{broken.name}" in printed
    assert "10 images written" in printed


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--data-root", "nowhere"], "--data-root 'nowhere' is not a directory"),
        (["--data-root", ".", "--jobs", "0"], "--jobs must be at least 1, found 0"),
        (["--data-root", ".", "--order", "nlvr"], "unknown task 'nlvr'; did you mean 'nlvr2'?"),
        (["--data-root", ".", "--order", "nlvr2"], "nlvr2/data/train.json is missing"),
        (
            ["--data-root", "."],
            "no images to prepare in .; `mcit doctor --data-root .` says what is missing",
        ),
        (["--data-root", ".", "--set", "seed=1"], "only options of tasks matter here"),
    ],
)
def test_what_cannot_be_prepared_is_refused(capsys, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *argv]) == 2
    assert words in capsys.readouterr().err


def test_the_loading_bench_measures_all_ways_and_finds_the_same_input(monkeypatch, capsys):
    from mcit.bench import loading

    monkeypatch.setattr(loading, "SIZE", (64, 48))
    result = loading.measure(quick=True)
    rates = result["images_per_second"]
    assert set(rates) == set(loading.LABELS)
    assert result["loading_speedup"] == pytest.approx(rates["cache"] / rates["source"])
    assert result["processor_speedup"] == pytest.approx(rates["source"] / rates["processor"])
    # three bytes of a pixel, against three numbers of four bytes and a mask of eight
    assert result["processor_batch_megabytes"] > 6 * result["batch_megabytes"]
    assert set(result["packings"]) == {"as mcit does", "raw", "PNG"}
    loading.print_result(result)
    assert "(goal: at least 5, " in capsys.readouterr().out
