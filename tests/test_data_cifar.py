"""CIFAR-100 in its three forms gives the same images, and a pickle that is more than data is refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from mcit.data.cifar import CLASS_NAMES, ArrayUnpickler, read_cifar100
from mcit.task import DataError

LABELS = [68, 3, 3, 56, 68, 99]
KEPT = [3, 56, 68]


def make_pixels(part: str) -> numpy.ndarray:
    """[images, 3, 32, 32]"""
    shape = (len(LABELS), 3, 32, 32)
    return numpy.random.default_rng(len(part)).integers(0, 256, shape, dtype=numpy.uint8)


def encode_png(pixels: numpy.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(folder: Path, image_column: str = "img", suffix: str = "") -> None:
    for part in ("train", "test"):
        cells = [{"bytes": encode_png(image), "path": None} for image in make_pixels(part)]
        table = pyarrow.table({image_column: cells, "fine_label": LABELS, "coarse_label": [0] * len(LABELS)})
        pyarrow.parquet.write_table(table, folder / f"{part}{suffix}.parquet")


def write_folders(folder: Path, numbered: bool) -> None:
    for part in ("train", "test"):
        for row, (image, label) in enumerate(zip(make_pixels(part), LABELS, strict=True)):
            home = folder / part / (str(label) if numbered else CLASS_NAMES[label])
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{row:02}.png").write_bytes(encode_png(image))


def old_string(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def old_integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def old_pickle(pixels: numpy.ndarray, labels: list[int]) -> bytes:
    """The bytes that Python 2 wrote (protocol 2): strings without an encoding, numpy's old module names."""
    rows = len(pixels)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + old_integer(0) + b"\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1" + old_integer(0) + old_integer(1) + b"\x87R"
    kind += b"(" + old_integer(3) + b"U\x01|NNN" + old_integer(-1) * 2 + old_integer(0) + b"tb"
    shape = old_integer(rows) + old_integer(3072) + b"\x86"
    state = b"(" + old_integer(1) + shape + kind + b"\x89" + old_string(pixels.tobytes()) + b"tb"
    names = b"](" + b"".join(old_string(b"some_file.png") for _ in range(rows)) + b"e"
    fine = b"](" + b"".join(map(old_integer, labels)) + b"e"
    items = [(b"filenames", names), (b"fine_labels", fine), (b"data", array + state)]
    return b"\x80\x02}(" + b"".join(old_string(key) + value for key, value in items) + b"u."


def write_extracted(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        (folder / part).write_bytes(old_pickle(make_pixels(part), LABELS))


def write_archive(folder: Path) -> None:
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:
        for part in ("train", "test"):
            data = old_pickle(make_pixels(part), LABELS)
            member = tarfile.TarInfo(f"cifar-100-python/{part}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


WRITERS = {
    "parquet": write_parquet,
    "parquet-image": lambda folder: write_parquet(folder, "image", "-00000-of-00001"),
    "named folders": lambda folder: write_folders(folder, numbered=False),
    "numbered folders": lambda folder: write_folders(folder, numbered=True),
    "archive": write_archive,
    "extracted": lambda folder: write_extracted(folder / "cifar-100-python"),
}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_form_gives_the_same_images_and_labels(tmp_path, form, split):
    WRITERS[form](tmp_path)
    images = read_cifar100(tmp_path, split, KEPT)
    expected = torch.from_numpy(make_pixels("train" if split == "train" else "test")[:5])  # the sixth is not kept
    labels = torch.tensor(LABELS[:5])
    if "folders" in form:  # these come class by class
        key = (lambda row: str(LABELS[row])) if form == "numbered folders" else (lambda row: CLASS_NAMES[LABELS[row]])
        rows = sorted(range(5), key=key)
        expected, labels = expected[rows], labels[rows]
    assert images.pixels.dtype == torch.uint8
    assert_close(images.pixels, expected)
    assert_close(images.labels, labels)


def test_the_data_may_lie_in_a_folder_of_their_own(tmp_path):
    (tmp_path / "cifar100").mkdir()
    write_parquet(tmp_path / "cifar100")
    assert len(read_cifar100(tmp_path, "train", KEPT).labels) == 5


def test_the_class_names_are_in_the_order_of_the_labels():
    assert len(CLASS_NAMES) == 100
    assert list(CLASS_NAMES) == sorted(set(CLASS_NAMES))


def test_a_class_that_is_not_there_is_named(tmp_path):
    write_parquet(tmp_path)
    with pytest.raises(DataError, match=r"holds 4 classes in 'train' and lacks 1 .* label 8 \(bicycle\).*classes"):
        read_cifar100(tmp_path, "train", [3, 8])


def test_a_root_without_the_data_is_told_what_would_do(tmp_path):
    with pytest.raises(DataError, match=r"does not hold the data: .*cifar-100-python.tar.gz"):
        read_cifar100(tmp_path, "train", KEPT)
    with pytest.raises(DataError, match="no data root given"):
        read_cifar100(None, "train", KEPT)


def test_a_parquet_file_without_fine_labels_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"img": [b""], "label": [1]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet needs the columns img .* found img, label"):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_broken_image_is_named_with_its_row(tmp_path):
    cells = [{"bytes": encode_png(make_pixels("train")[0])}, {"bytes": b"no image"}]
    pyarrow.parquet.write_table(pyarrow.table({"img": cells, "fine_label": [3, 3]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet, row 1 is no readable image"):
        read_cifar100(tmp_path, "train", [3])


def test_a_broken_parquet_file_or_archive_is_named(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"train.parquet is not a readable Parquet file"):
        read_cifar100(tmp_path, "train", KEPT)
    (tmp_path / "train.parquet").unlink()
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"tar.gz is not a readable archive"):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_label_out_of_range_is_named_with_its_row(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(old_pickle(make_pixels("train"), [3, 3, 100, 3, 3, 3]))
    with pytest.raises(DataError, match=r"row 2: fine label 100 is not one of 0\.\.99"):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_folder_that_is_no_class_is_refused(tmp_path):
    write_folders(tmp_path, numbered=False)
    (tmp_path / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="zebra is no class of CIFAR-100"):
        read_cifar100(tmp_path, "train", KEPT)


class Command:
    """Pickles as a call of whatever it is given."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


MALICIOUS = {
    "a shell": lambda mark: pickle.dumps(Command(os.system, f"touch {mark}"), protocol=2),
    "a file": lambda mark: pickle.dumps({b"data": Command(open, str(mark), "w")}, protocol=2),
    "eval": lambda mark: pickle.dumps([Command(eval, f"open({str(mark)!r}, 'w')")], protocol=4),
    "numpy's own": lambda mark: b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
    "a dotted name": lambda mark: b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
    "an array by call": lambda mark: b"\x80\x02cnumpy\nndarray\nK\x02\x85\x85R.",
    "an array of objects": lambda mark: b"\x80\x02cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
    "an odd array": lambda mark: (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x05\x85U\x01O\x87R."
    ),
    "an object outside": lambda mark: b"\x80\x02U\x01xQ.",
    "no pickle": lambda mark: b"hello",
    "nothing": lambda mark: b"",
    "a number beyond all": lambda mark: b"\x80\x02}r\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_pickle_that_is_more_than_data_is_refused_and_does_nothing(tmp_path, kind):
    mark = tmp_path / "mark"
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(MALICIOUS[kind](mark))
    with pytest.raises(DataError, match="is not a file of the official CIFAR-100 archive"):
        read_cifar100(tmp_path, "train", KEPT)
    assert not mark.exists()


def test_harmless_pickles_of_something_else_are_refused(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    file = tmp_path / "cifar-100-python" / "train"
    file.write_bytes(pickle.dumps([1, 2], protocol=2))
    with pytest.raises(DataError, match="lacks the entries 'data' and 'fine_labels'"):
        read_cifar100(tmp_path, "train", KEPT)
    file.write_bytes(old_pickle(make_pixels("train"), [3, 3]))
    with pytest.raises(DataError, match=r"must be a uint8 array of shape \(2, 3072\), found uint8 \(6, 3072\)"):
        read_cifar100(tmp_path, "train", KEPT)


def test_the_unpickler_agrees_with_numpy_about_arrays():
    for kind in ("u1", "i4", "<i8"):
        array = numpy.arange(12).reshape(3, 4).astype(kind)
        found = ArrayUnpickler(io.BytesIO(pickle.dumps(array, protocol=3))).load()
        assert found.dtype == array.dtype
        assert (found == array).all()
