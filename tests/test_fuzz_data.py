"""Several thousand damaged and hostile inputs: each ends in the right data or in one clean error,
soon and in little
memory.

Seeds are fixed, and a failure names the one that repeats it.
"""

from __future__ import annotations

import copy
import io
import json
import math
import os
import pickle
import random
import resource
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from test_data_cifar import old_integer, old_pickle, old_string
from tiny_official import make_png, small_processor, write_image

from mcit.data.answers import read_vocabulary
from mcit.data.cifar import read_cifar100
from mcit.data.image_cache import ImageCache
from mcit.data.image_folders import (
    open_random_boxes,
    read_imagenet_subset,
    read_tiny_imagenet,
)
from mcit.data.images import decode_image, verify_image
from mcit.data.preparing import collect_pictures, do_work, plan_work
from mcit.data.problems import BadRecords
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import ConfigError, DataError
from mcit.registry import find_task

CLEAN = (DataError, ConfigError)
PROCESSOR = small_processor()
MOST_SECONDS = 5  # of processor time, for one input
MOST_MEMORY = 600 << 20  # bytes that all inputs of a test may add to the peak of this process
DEEP = json.loads("[" * 60 + "]" * 60)
HOSTILE = [
    None, True, False, 0, -1, 3, 10**6, 2**63, 10**40, 1.5, -0.0, 1e308, float("inf"), float("nan"), "", " ", "a", "-",
    "True", "\ud800", "é" * 3, "\0", "\x1b[2J", "../../etc/passwd", "/etc/passwd", "..\\up", "a/b", ".", "x" * 5000, [],
    {}, [[]], [None], [-1], [0, 1, 99], [True], {"a": 1}, DEEP, "neutral", "dev-1-1-0", [1, 2, 3, 4], ["a", ["b"]],
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=6, evaluation=3))
    return root


@pytest.fixture
def root(benchmark, tmp_path) -> Path:
    shutil.copytree(benchmark, tmp_path / "data")
    return tmp_path / "data"


def try_it(work: Callable[[], Any], what: str) -> Any:
    """What the work gives, None where it ends in a clean error; anything else is a failure that can
    be repeated."""
    start, message = time.process_time(), ""
    try:
        found = work()
    except CLEAN as error:
        found, message = None, str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    spent = time.process_time() - start
    assert spent < MOST_SECONDS, f"{what}: took {spent:.1f} s"
    assert all(line.isprintable() for line in message.split("\n")), f"{what}: {message!a}"
    assert len(message) < 20_000, f"{what}: {message[:200]}"
    return found


# --- mutations, always the same for a seed


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The way to every value in a JSON document."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def mutate_document(document: Any, rng: random.Random) -> Any:
    """One to three values replaced, removed, repeated or renamed."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(places(document)))
        if not path:
            return copy.deepcopy(rng.choice(HOSTILE))
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        kind = rng.random()
        if kind < 0.6:
            parent[path[-1]] = copy.deepcopy(rng.choice(HOSTILE))
        elif kind < 0.75:
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
        else:
            parent[str(rng.choice(HOSTILE))[:50]] = parent.pop(path[-1])
    return document


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, cut out, repeated or put in."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not data:
            break
        at, length = rng.randrange(len(data)), rng.choice((1, 4, 50))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            data[at:at] = rng.randbytes(length)
        else:
            data[at : at + length] = rng.choice((b"\xff", b"\0", b"[", b'"', b"}", b"9")) * length
    return bytes(data)


# --- the four annotation formats


QUESTIONS = "vqav2/v2_OpenEnded_mscoco_train2014_questions.json"
FILES = {
    "vqa": "vqav2/v2_mscoco_train2014_annotations.json",
    "nlvr2": "nlvr2/data/train.json",
    "snli-ve": "snli-ve/snli_ve_train.jsonl",
    "vcr": "vcr/annotation/train.jsonl",
}
OPTIONS: dict[str, dict[str, Any]] = {"vqa": {"minimum": 1}}
IDS = {"vqa": "question_id", "nlvr2": "identifier", "snli-ve": "pairID", "vcr": "annot_id"}
RECORDS = 300  # of each format that are mutated one by one
WHOLE_FILES = 60  # of each format that are mutated as bytes or as one document


def make(name: str, root: Path, policy: str = "fail") -> Any:
    return find_task(name)(root=root, on_bad_record=policy, **OPTIONS.get(name, {}))


def read_documents(name: str, root: Path) -> list[Any]:
    """The records of a format; of VQAv2 each with its question."""
    text = (root / FILES[name]).read_text()
    if name != "vqa":
        return [json.loads(line) for line in text.splitlines()]
    questions = json.loads((root / QUESTIONS).read_text())["questions"]
    return [list(pair) for pair in zip(questions, json.loads(text)["annotations"], strict=True)]


def write_documents(name: str, root: Path, documents: list[Any]) -> None:
    if name == "vqa":
        pairs = [
            each if isinstance(each, list) and len(each) == 2 else [each, each]
            for each in documents
        ]
        (root / QUESTIONS).write_text(
            json.dumps({"questions": [question for question, _ in pairs]})
        )
        (root / FILES[name]).write_text(
            json.dumps({"annotations": [annotation for _, annotation in pairs]})
        )
    else:
        (root / FILES[name]).write_text("".join(json.dumps(each) + "\n" for each in documents))


def renumber(name: str, root: Path, document: Any, number: int) -> Any:
    """A copy with an id of its own, so that it is not refused for that."""
    document = copy.deepcopy(document)
    fresh = {"vqa": 10**6 + number, "nlvr2": f"train-{number + 100}-0-0"}.get(
        name, f"fresh-{number}"
    )
    for record in document if name == "vqa" else [document]:
        record[IDS[name]] = fresh
    if name == "nlvr2":
        # whose images have its name
        for image in ("img0", "img1"):
            write_image(root / "nlvr2" / "images" / "train" / f"train-{number + 100}-0-{image}.png")
    return document


def use(task: Any) -> Any:
    """What a run does with a task's data."""
    task.check()
    _ = task.head
    for split in ("train", "eval"):
        examples = task.examples(split)
        task.collate(examples.__getitems__(list(range(len(examples)))), PROCESSOR)
    task.data_notes(PROCESSOR)
    json.dumps(task.describe_data(), allow_nan=False).encode()
    task.fingerprint()
    return task


@pytest.mark.parametrize("name", FILES)
def test_a_mutated_record_is_read_or_left_out_and_its_neighbors_stay_right(root, name):
    """Many to a file: whatever is wrong with one must not touch another."""
    whole = read_documents(name, root)
    expected = {row["id"]: row for row in make(name, root).split("train").table}
    seen, left_out = 0, 0
    for start in range(0, RECORDS, 50):
        rng = random.Random(f"{name} {start}")
        fresh = [renumber(name, root, rng.choice(whole), start + number) for number in range(50)]
        mutated = [mutate_document(document, rng) for document in fresh]
        write_documents(name, root, [*whole, *mutated])
        what = f"{name}, records from {start}"
        task = try_it(lambda: use(make(name, root, "skip")), what)
        assert task is not None, f"{what}: records that are wrong were not left out"
        rows = {row["id"]: row for row in task.split("train").table}
        assert {key: rows[key] for key in expected} == expected, what
        bad, about = task.split("train").skipped, task.describe_data()["train"]
        assert (
            len(rows) + len(task.split("train").skipped_records) + about["dropped"]
            == about["records"]
        ), what
        assert len(task.examples("train")) + len(bad) + about["dropped"] == about["records"], what
        for reason, message in bad.first.items():
            assert (reason + message).isprintable(), what
        seen += about["records"] - len(whole)
        left_out += len(bad)
        try_it(lambda: make(name, root).split("train").table, f"{what}, none left out")
    assert 0 < left_out < seen
    assert seen >= RECORDS * 0.9  # a question and its annotation may both be wrong, or both be gone


@pytest.mark.parametrize("name", FILES)
def test_a_mutated_file_is_read_or_refused(root, name):
    path, whole = root / FILES[name], (root / FILES[name]).read_bytes()
    went_well = 0
    for seed in range(WHOLE_FILES):
        rng = random.Random(f"{name} file {seed}")
        if name == "vqa" and seed % 3 == 0:
            path.write_bytes(json.dumps(mutate_document(json.loads(whole), rng)).encode())
        else:
            path.write_bytes(mutate_bytes(whole, rng))
        task = make(name, root, ("fail", "skip")[seed % 2])
        work = (
            (lambda task=task: use(task))
            if seed % 4 == 0
            else (lambda task=task: task.split("train").table)
        )
        went_well += try_it(work, f"{name}, file, seed {seed}") is not None
    assert 0 < went_well < WHOLE_FILES  # some mutations do no harm, others do


def test_mutated_boxes_are_drawn_or_refused(root):
    task = make("vcr", root)
    (picture,) = task.pictures(task.split("train").table[0], task.split("train").images)
    whole = picture.metadata.read_bytes()
    size = picture.open().size
    for seed in range(150):
        rng = random.Random(f"boxes {seed}")
        document = json.dumps(mutate_document(json.loads(whole), rng)).encode()
        picture.metadata.write_bytes(document if seed % 2 else mutate_bytes(whole, rng))
        image = try_it(picture.open, f"boxes, seed {seed}")
        assert image is None or image.size == size


def test_mutated_vocabularies_are_read_or_refused(tmp_path):
    path = tmp_path / "answers.json"
    for seed in range(150):
        rng = random.Random(f"vocabulary {seed}")
        whole = rng.choice([["a", "b"], {"answers": ["a", "b"]}, {"a": 0, "b": 1}])
        mutated = json.dumps(mutate_document(whole, rng)).encode()
        path.write_bytes(mutated if seed % 2 else mutate_bytes(json.dumps(whole).encode(), rng))
        found = try_it(lambda: read_vocabulary(path), f"vocabulary, seed {seed}")
        assert found is None or all(isinstance(answer, str) for answer in found)


# --- images


def encode(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["L", "RGB", "CMYK"],
    "GIF": ["L", "P"],
    "BMP": ["1", "L", "P", "RGB"],
    "TIFF": ["1", "L", "LA", "RGB", "CMYK", "I;16", "I", "F"],
    "WEBP": ["RGB", "RGBA"],
}
IMAGES = 25  # of every format and mode


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("form", MODES)
def test_mutated_images_are_read_or_refused(form, tmp_path):
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (19, 23, 3), dtype=np.uint8))
    for mode in MODES[form]:
        image = (
            pixels.convert("L").convert(mode)
            if mode in ("I;16", "I", "F")
            else pixels.convert(mode)
        )
        whole = encode(image, form)
        for seed in range(IMAGES):
            data = mutate_bytes(whole, random.Random(f"{form} {mode} {seed}"))
            what = f"{form}, {mode}, seed {seed}"
            found = try_it(lambda data=data: decode_image(data, "it"), what)
            assert found is None or (found.mode == "RGB" and math.prod(found.size) > 0), what
            path = tmp_path / f"{mode}-{seed}"
            path.write_bytes(data)
            try_it(lambda path=path: verify_image(path), f"{what}, quickly")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_of_any_size_and_depth_are_read_or_refused(tmp_path):
    """Through the reader that scales by the shorter side and through the one of the vision-language
    tasks."""
    for part in ("train", "val"):
        for number in range(100):
            (tmp_path / part / f"n{number:08}").mkdir(parents=True)
    path = write_image(tmp_path / "val" / "n00000000" / "a.png")
    images = read_imagenet_subset(tmp_path, "eval", [0], None)
    resize = PROCESSOR.resizing
    for seed in range(100):
        rng = random.Random(f"size {seed}")
        sides = [
            rng.choice((0, 1, 2, 3, 9, 200, 201, 700, 3000, 60_000, 2**31 - 1)) for _ in range(2)
        ]
        depth, color = rng.choice((1, 2, 4, 8, 16)), rng.choice((0, 2, 3, 4, 6))
        path.write_bytes(
            make_png(*sides, depth, color, data=bytes(rng.choice((0, 99, 9000, 600_000))))
        )
        what = f"seed {seed}: {sides}, depth {depth}, color {color}"
        paths = images.load_rows(torch.tensor([0]))
        if rng.random() < 0.5:
            read = partial(open_random_boxes, paths, size=224)
        else:
            read = partial(find_task("imagenet_subset")().eval_transform, paths)
        found = try_it(read, what)
        assert found is None or found.shape == (1, 3, 224, 224), what
        try_it(lambda: resize.read(decode_image(path.read_bytes(), "it")), what)


# --- CIFAR-100


KEPT = [3, 8]
LABELS = [3, 3, 8, 8]
PIXELS = np.random.default_rng(1).integers(0, 256, (4, 3072), dtype=np.uint8)


def make_parquet() -> bytes:
    images = [Image.fromarray(row.reshape(3, 32, 32).transpose(1, 2, 0)) for row in PIXELS]
    cells = [{"bytes": encode(image, "PNG"), "path": None} for image in images]
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"img": cells, "fine_label": LABELS}), sink)
    return sink.getvalue()


def make_archive() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        for name in ("meta", "train"):
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(old_pickle(PIXELS, LABELS))
            archive.addfile(member, io.BytesIO(old_pickle(PIXELS, LABELS)))
    return sink.getvalue()


CIFAR: dict[str, Callable[[], bytes]] = {
    "train.parquet": make_parquet,
    "cifar-100-python/train": lambda: old_pickle(PIXELS, LABELS),
    "cifar-100-python.tar.gz": make_archive,
}


def check_cifar(root: Path, what: str, seed: int) -> bool:
    bad = BadRecords()
    on_bad = {"on_bad": bad.add} if seed % 2 else {}
    images = try_it(lambda: read_cifar100(root, "train", KEPT, **on_bad), what)
    if images is not None:
        assert set(images.labels.tolist()) <= set(KEPT), what
        assert images.pixels.shape == (len(images.labels), 3, 32, 32), what
    assert all((reason + message).isprintable() for reason, message in bad.first.items()), what
    return images is not None


@pytest.mark.parametrize("name", CIFAR)
def test_mutated_files_of_cifar_are_read_or_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    whole = CIFAR[name]()
    path.write_bytes(whole)
    assert check_cifar(tmp_path, name, 0)
    for seed in range(160):
        path.write_bytes(mutate_bytes(whole, random.Random(f"{name} {seed}")))
        check_cifar(tmp_path, f"{name}, seed {seed}", seed)


def test_an_archive_with_mutated_headers_is_read_or_refused(tmp_path):
    """What is inside the compression: it would else be the checksum that refuses."""
    path = tmp_path / "cifar-100-python.tar.gz"
    whole = zlib.decompress(make_archive(), wbits=31)
    for seed in range(160):
        rng = random.Random(f"headers {seed}")
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            header = 512 * rng.choice((0, 0, len(whole) // 1024))
            at = header + rng.randrange(512)
            data[at : at + 8] = rng.choice(
                (b"\xff" * 8, b"7" * 8, b"\x80" + b"\xff" * 7, rng.randbytes(8), bytes(8))
            )
            if rng.random() < 0.7:  # a checksum that is right
                block = data[header : header + 512]
                block[148:156] = b" " * 8
                data[header + 148 : header + 156] = b"%06o\0 " % sum(block)
        packer = zlib.compressobj(1, wbits=31)
        path.write_bytes(packer.compress(bytes(data)) + packer.flush())
        check_cifar(tmp_path, f"headers, seed {seed}", seed)


CONSTANTS = [b"N", b"\x88", b"\x89", b"]", b"}", b")", b"(l", b"(d", b"h\x00"]
NUMBERS = [b"K\x00", b"K\x01", b"K\x03", b"K\x07", b"G?\xf0" + bytes(6), b"\x8a\x09" + b"\xff" * 9]
NUMBERS += [old_integer(value) for value in (-1, 2**31 - 1, -(2**31))]
STRINGS = [old_string(text) for text in (b"", b"b", b"|", b"<", b"u1", b"O8", b"i8", b"<u4")] + [
    b"X\x01\0\0\0b"
]
NAMES = [b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"]
NAMES += [b"numpy.core.multiarray\nscalar", b"builtins\neval"]
FIELDS = [
    b"U\x01a\x85",
    b"X\x01\0\0\0a\x85",
    b"}X\x01\0\0\0aK\x01K\x02\x86s",
    b"}U\x01aK\x01s",
    b"K\x04K\x02\x86",
]
ATOMS = [*CONSTANTS, *NUMBERS, *STRINGS, *FIELDS, *(b"c" + name + b"\n" for name in NAMES)]
SHAPES = [
    old_integer(4) + old_integer(3072) + b"\x86",
    old_integer(4) + b"\x85",
    old_integer(2**31 - 1) * 2 + b"\x86",
    old_integer(-4) + old_integer(3072) + b"\x86",
    b")",
]


def make_odd_pickle(rng: random.Random) -> bytes:
    """The official pickle with parts of what it says about its array replaced by anything at
    all."""

    def choose(usual: bytes, share: float = 0.15) -> bytes:
        return rng.choice(ATOMS) if rng.random() < share else usual

    kind = b"cnumpy\ndtype\n" + choose(b"U\x02u1") + choose(b"K\x00") + choose(b"K\x01") + b"\x87R"
    state = [
        b"K\x03",
        b"U\x01|",
        b"N",
        b"N",
        b"N",
        b"J\xff\xff\xff\xff",
        b"J\xff\xff\xff\xff",
        b"K\x00",
    ]
    state = [choose(item) for item in state][: rng.choice((8, 8, 8, 7, 5, 0))]
    kind += b"(" + b"".join(state) + b"t" + b"b" * rng.choice((1, 1, 1, 0, 2))
    array = choose(b"cnumpy.core.multiarray\n_reconstruct\n", 0.05) + choose(
        b"cnumpy\nndarray\n", 0.05
    )
    array += choose(b"K\x00\x85") + choose(b"U\x01b") + b"\x87R"
    shape = rng.choice(SHAPES) if rng.random() < 0.3 else SHAPES[0]
    data = old_string(PIXELS.tobytes()[: rng.choice((12288, 12288, 12288, 100, 12287))])
    parts = [
        choose(b"K\x01"),
        choose(shape, 0.1),
        choose(kind, 0.1),
        choose(b"\x89"),
        choose(data, 0.1),
    ]
    array += b"(" + b"".join(parts[: rng.choice((5, 5, 5, 4, 2))]) + b"tb"
    labels = b"](" + b"".join(choose(old_integer(label), 0.05) for label in LABELS) + b"e"
    content = old_string(b"fine_labels") + choose(labels, 0.05) + old_string(b"data") + array
    return b"\x80\x02}(" + choose(b"", 0.05) + content + b"u."


def test_pickles_that_say_anything_of_their_array_are_read_or_refused(tmp_path):
    """What is read is what numpy reads of it, and numpy is asked only then: to some it answers by a
    SystemError."""
    path = tmp_path / "cifar-100-python" / "train"
    path.parent.mkdir()
    went_well = 0
    for seed in range(600):
        data = make_odd_pickle(random.Random(f"pickle {seed}"))
        path.write_bytes(data)
        if check_cifar(tmp_path, f"pickle, seed {seed}", seed=0):
            went_well += 1
            expected = torch.from_numpy(pickle.loads(data, encoding="bytes")[b"data"].copy()).view(
                -1, 3, 32, 32
            )
            assert torch.equal(read_cifar100(tmp_path, "train", KEPT).pixels, expected), (
                f"pickle, seed {seed}"
            )
    assert 0 < went_well < 300


def test_pickles_of_later_protocols_are_read_or_refused(tmp_path):
    path = tmp_path / "cifar-100-python" / "train"
    path.parent.mkdir()
    for seed in range(120):
        rng = random.Random(f"protocol {seed}")
        content = {b"fine_labels": LABELS, b"data": PIXELS, b"more": [1, "a", b"b"]}
        whole = pickle.dumps(content, protocol=seed % 6)
        path.write_bytes(
            mutate_bytes(whole[:400], rng) + whole[400:] if seed % 2 else mutate_bytes(whole, rng)
        )
        check_cifar(tmp_path, f"protocol {seed % 6}, seed {seed}", seed)


# --- folders of classes


def test_mutated_lists_of_test_images_are_read_or_refused(tmp_path):
    names = [f"n{number:08}" for number in range(200)]
    for name in names:
        (tmp_path / "train" / name).mkdir(parents=True)
    for number in range(3):
        write_image(tmp_path / "val" / "images" / f"val_{number}.JPEG", size=(64, 64))
    path = tmp_path / "val" / "val_annotations.txt"
    whole = "".join(
        f"val_{number}.JPEG\t{names[number]}\t0\t0\t9\t9\n" for number in range(3)
    ).encode()
    for seed in range(100):
        path.write_bytes(mutate_bytes(whole, random.Random(f"list {seed}")))
        bad = BadRecords()
        on_bad = {"on_bad": bad.add} if seed % 2 else {}
        found = try_it(
            lambda on_bad=on_bad: read_tiny_imagenet(tmp_path, "eval", range(200), **on_bad),
            f"list {seed}",
        )
        assert found is None or set(found.labels.tolist()) <= set(range(200))


def damage_folder(folder: Path, rng: random.Random) -> None:
    """Something in a folder of images that should not be there, or not like that."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    odd = path.with_name(
        rng.choice(("b.png", "b.JPEG", "\x1b[2J.png", "x" * 200 + ".png", "é.jpg", ".png", " .png"))
    )
    actions = [
        lambda: path.unlink(),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(mutate_bytes(path.read_bytes(), rng)),
        lambda: path.rename(odd),
        lambda: odd.mkdir(exist_ok=True),
        lambda: os.mkfifo(odd),
        lambda: odd.symlink_to(odd.name),
        lambda: odd.symlink_to("/dev/zero"),
        lambda: shutil.rmtree(path.parent),
        lambda: path.parent.rename(path.parent.with_name(odd.stem)),
        lambda: path.write_bytes(encode(Image.new("RGB", (5, 7)), "PNG")),
    ]
    rng.choice(actions)()


def write_imagenet(root: Path) -> None:
    for part in ("train", "val"):
        for number in range(100):
            write_image(root / part / f"n{number:08}" / "a.png", size=(9, 9))


def write_tiny(root: Path) -> None:
    lines = []
    for number in range(200):
        (root / "train" / f"n{number:08}" / "images").mkdir(parents=True)
    for number in range(5):
        write_image(root / "train" / f"n{number:08}" / "images" / "a.png", size=(64, 64))
        write_image(root / "val" / "images" / f"{number}.png", size=(64, 64))
        lines.append(f"{number}.png\tn{number:08}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))


def read_imagenet(root: Path, **on_bad: Any) -> bool:
    for split in ("train", "eval"):
        images = read_imagenet_subset(root, split, range(4), None, **on_bad)
        paths = images.load_rows(torch.arange(len(images.labels)))
        if split == "train":
            pixels = open_random_boxes(paths, size=224)
        else:
            pixels = find_task("imagenet_subset")().eval_transform(paths)
        assert pixels.shape == (len(images.labels), 3, 224, 224)
    return True


def read_tiny(root: Path, **on_bad: Any) -> bool:
    for split in ("train", "eval"):
        images = read_tiny_imagenet(root, split, range(5), **on_bad)
        assert images.pixels.shape == (len(images.labels), 3, 64, 64)
    return True


FOLDERS = {"imagenet": (write_imagenet, read_imagenet), "tiny": (write_tiny, read_tiny)}


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_folders_of_classes_are_read_or_refused(tmp_path, name):
    write, read = FOLDERS[name]
    root, aside = tmp_path / "data", tmp_path / "aside"
    write(root)
    went_well = 0
    for seed in range(100):
        rng = random.Random(f"{name} {seed}")
        parts = ["train/n00000002", "val/images" if name == "tiny" else "val/n00000002"]
        before = {part: sorted((root / part).parent.iterdir()) for part in parts}
        for part in parts:
            shutil.copytree(root / part, aside / part)
        for part in rng.sample(parts, rng.randint(1, 2)):
            damage_folder(root / part, rng)
        on_bad = {"on_bad": BadRecords().add} if seed % 2 else {}
        went_well += try_it(partial(read, root, **on_bad), f"{name}, seed {seed}") is not None
        for part in parts:
            for path in [(root / part), *set((root / part).parent.iterdir()) - set(before[part])]:
                shutil.rmtree(path, ignore_errors=True)
            shutil.move(aside / part, root / part)
    assert 0 < went_well < 100


# --- the cache of resized images


def test_a_mutated_shard_gives_the_pixels_that_were_stored_or_none(root, capsys):
    task = make("snli-ve", root)
    pictures = list(collect_pictures(task, "train").values())
    resizing = PROCESSOR.resizing
    expected = [resizing.read(picture.open()) for picture in pictures]
    work = plan_work(root, pictures, resizing)
    do_work(work, jobs=1)
    (shard,) = work.folder.glob("*.shard")
    whole, used = shard.read_bytes(), 0
    for seed in range(150):
        shard.write_bytes(mutate_bytes(whole, random.Random(f"shard {seed}")))
        capsys.readouterr()
        read = partial(ImageCache.find(root).read, resizing=resizing)
        found = [try_it(partial(read, picture), f"shard, seed {seed}") for picture in pictures]
        for pixels, right in zip(found, expected, strict=True):
            assert pixels is None or np.array_equal(pixels, right), f"seed {seed}"
        used += sum(pixels is not None for pixels in found)
        if any(pixels is None for pixels in found):
            assert "it is read from its source (1 so far here)" in capsys.readouterr().err
    assert used > 0
