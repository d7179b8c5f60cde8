"""CIFAR-100 in its three forms gives the same images, and a pickle that is more than data is
refused."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from mcit.data.cifar import CLASS_NAMES, read_cifar100
from mcit.errors import DataError

LABELS = [68, 3, 3, 56, 68, 99]
KEPT = [3, 56, 68]


def make_pixels(part: str) -> np.ndarray:
    """[images, 3, 32, 32]"""
    shape = (len(LABELS), 3, 32, 32)
    return np.random.default_rng(len(part)).integers(0, 256, shape, dtype=np.uint8)


def encode_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(folder: Path, image_column: str = "img", suffix: str = "") -> None:
    for part in ("train", "test"):
        cells = [{"bytes": encode_png(image), "path": None} for image in make_pixels(part)]
        table = pyarrow.table(
            {image_column: cells, "fine_label": LABELS, "coarse_label": [0] * len(LABELS)}
        )
        pyarrow.parquet.write_table(table, folder / f"{part}{suffix}.parquet")


def write_folders(folder: Path, numbered: bool) -> None:
    for part in ("train", "test"):
        for row, (image, label) in enumerate(zip(make_pixels(part), LABELS, strict=True)):
            home = folder / part / (str(label) if numbered else CLASS_NAMES[label])
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{row:02}.png").write_bytes(encode_png(image))


def old_string(text: bytes) -> bytes:
    return (
        b"U" + bytes([len(text)]) + text
        if len(text) < 256
        else b"T" + struct.pack("<i", len(text)) + text
    )


def old_integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def old_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The bytes that Python 2 wrote (protocol 2): strings without an encoding, numpy's old module
    names."""
    rows = len(pixels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + old_integer(0)
        + b"\x85U\x01b\x87R"
    )
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
    expected = torch.from_numpy(
        make_pixels("train" if split == "train" else "test")[:5]
    )  # the sixth is not kept
    labels = torch.tensor(LABELS[:5])
    if "folders" in form:  # these come class by class
        key = (
            (lambda row: str(LABELS[row]))
            if form == "numbered folders"
            else (lambda row: CLASS_NAMES[LABELS[row]])
        )
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
    with pytest.raises(
        DataError, match=r"holds 4 classes in 'train' and lacks 1 .* label 8 \(bicycle\).*classes"
    ):
        read_cifar100(tmp_path, "train", [3, 8])


def test_a_root_without_the_data_is_told_what_would_do(tmp_path):
    with pytest.raises(DataError, match=r"does not hold the data: .*cifar-100-python.tar.gz"):
        read_cifar100(tmp_path, "train", KEPT)
    with pytest.raises(DataError, match="no data root given"):
        read_cifar100(None, "train", KEPT)


def test_a_parquet_file_without_fine_labels_is_refused(tmp_path):
    pyarrow.parquet.write_table(
        pyarrow.table({"img": [b""], "label": [1]}), tmp_path / "train.parquet"
    )
    with pytest.raises(DataError, match=r"train.parquet needs the columns img .* found img, label"):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_broken_image_is_named_with_its_row(tmp_path):
    cells = [{"bytes": encode_png(make_pixels("train")[0])}, {"bytes": b"no image"}]
    pyarrow.parquet.write_table(
        pyarrow.table({"img": cells, "fine_label": [3, 3]}), tmp_path / "train.parquet"
    )
    with pytest.raises(DataError, match=r"train.parquet, row 1 is not a readable image"):
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
    (tmp_path / "cifar-100-python" / "train").write_bytes(
        old_pickle(make_pixels("train"), [3, 3, 100, 3, 3, 3])
    )
    with pytest.raises(DataError, match=r"row 2: fine label 100 is not one of 0\.\.99"):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_folder_that_is_no_class_is_refused(tmp_path):
    write_folders(tmp_path, numbered=False)
    (tmp_path / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="zebra is not a class of CIFAR-100"):
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
    "a number of many digits": lambda mark: (
        b"\x80\x02}U\x0bfine_labels](\x8b" + struct.pack("<i", 9000) + b"\x01" * 9000 + b"es."
    ),
    "a key that takes for ever": lambda mark: (
        b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"K\x01s."
    ),
    "a list of lists that grow": lambda mark: b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 60 + b".",
    "another type set upon a name": lambda mark: (
        b"\x80\x02cnumpy\ndtype\nN}U\x0c__defaults__)s\x86b."
    ),
    "an array without its bytes": lambda mark: (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rs."
    ),
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
    with pytest.raises(
        DataError, match=r"must be a uint8 array of shape \(2, 3072\), found uint8 \(6, 3072\)"
    ):
        read_cifar100(tmp_path, "train", KEPT)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_that_a_later_python_saved_is_read_too(tmp_path, protocol, order):
    pixels = make_pixels("train").reshape(len(LABELS), 3072)
    content = {b"data": np.asarray(pixels, order=order), b"fine_labels": LABELS}
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(dump_old_bytes(content, protocol))
    assert_close(
        read_cifar100(tmp_path, "train", [3, 56, 68, 99]).pixels,
        torch.from_numpy(make_pixels("train")),
    )


def dump_old_bytes(content: dict, protocol: int) -> bytes:
    """A pickle in which bytes are strings of Python 2, where the protocol has no bytes of its
    own."""
    data = pickle.dumps(content, protocol=max(protocol, 3))
    if protocol >= 3:
        return data
    parts = [(opcode, argument, place) for opcode, argument, place in pickletools.genops(data)]
    ends = [place for _, _, place in parts[1:]] + [len(data)]
    written = []
    for (opcode, argument, place), end in zip(parts, ends, strict=True):
        is_bytes = opcode.name in ("BINBYTES", "SHORT_BINBYTES")
        written.append(old_string(argument) if is_bytes else data[place:end])
    return b"\x80\x02" + b"".join(written[1:])


def make_state(**changes: bytes) -> bytes:
    """The official file with a part of what it says about its array replaced."""
    whole = old_pickle(make_pixels("train"), LABELS)
    for old, new in changes.values():
        assert whole.count(old) == 1
        whole = whole.replace(old, new)
    return whole


DESCRIPTION = b"(" + old_integer(3) + b"U\x01|NNN" + old_integer(-1) * 2 + old_integer(0) + b"tb"
ODD_ARRAYS = {
    "a list for a dictionary": (DESCRIPTION, b"(\x88U\x01|NN(l" + old_integer(-1) * 2 + b"tb"),
    "texts for fields": (
        DESCRIPTION,
        b"("
        + old_integer(3)
        + b"U\x01<NU\x01a\x85}X\x01\0\0\0aK\x01K\x02\x86s"
        + old_integer(-1) * 2
        + b"tbb",
    ),
    "items that are references": (
        b"U\x01|NNN" + old_integer(-1) * 2 + old_integer(0),
        b"U\x01|NNN" + old_integer(-1) * 2 + old_integer(1),
    ),
    "another byte order": (b"U\x01|NNN", b"U\x01xNNN"),
    "fields": (b"U\x01|NNN", b"U\x01|}NN"),
    "another version of types": (
        b"(" + old_integer(3) + b"U\x01|",
        b"(" + old_integer(4) + b"U\x01|",
    ),
    "an item of no size": (b"NNN" + old_integer(-1), b"NNN" + old_integer(0)),
    "another version of arrays": (
        b"(" + old_integer(1) + old_integer(6),
        b"(" + old_integer(7) + old_integer(6),
    ),
    "more rows than bytes": (
        old_integer(6) + old_integer(3072),
        old_integer(7) + old_integer(3072),
    ),
    "negative sides": (old_integer(6) + old_integer(3072), old_integer(-6) + old_integer(-3072)),
    "sides that are too many": (
        old_integer(6) + old_integer(3072) + b"\x86",
        b"(" + old_integer(1) * 40 + b"t",
    ),
    "a shape of text": (old_integer(6) + old_integer(3072) + b"\x86", b"U\x01x"),
    "no order": (b"\x89T", b"}T"),
    "types of objects": (b"U\x02u1", b"U\x02O8"),
    "longer numbers": (b"U\x02u1", b"U\x02u8"),
}


@pytest.mark.parametrize("kind", ODD_ARRAYS)
def test_an_array_is_made_only_of_what_numpy_writes(tmp_path, kind):
    """numpy's own reader answers the first two by a SystemError, and believes others."""
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(make_state(change=ODD_ARRAYS[kind]))
    with pytest.raises(DataError, match="is not a file of the official CIFAR-100 archive: it "):
        read_cifar100(tmp_path, "train", KEPT)


def test_a_pickle_that_gives_an_object_an_enormous_number_takes_no_memory(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    tracemalloc.start()
    with pytest.raises(DataError, match="lacks the entries"):
        read_cifar100(tmp_path, "train", KEPT)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


# --- archives


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    """Headers as they are given, true or not, and whatever follows each."""
    blocks = [
        member.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)
        for member, data in members
    ]
    path.write_bytes(gzip.compress(b"".join(blocks) + bytes(1024)))


def make_member(name: str, size: int = 0, **fields) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"cifar-100-python/{name}")
    member.size = size
    for field, value in fields.items():
        setattr(member, field, value)
    return member


ARCHIVES = {
    "links in a loop": [
        (make_member("train", type=tarfile.SYMTYPE, linkname="other"), b""),
        (make_member("other", type=tarfile.SYMTYPE, linkname="train"), b""),
    ],
    "a link to itself": [
        (make_member("train", type=tarfile.LNKTYPE, linkname="cifar-100-python/train"), b"")
    ],
    "a folder": [(make_member("train", type=tarfile.DIRTYPE), b"")],
    "a pipe": [(make_member("train", type=tarfile.FIFOTYPE), b"")],
    "no such member": [(make_member("meta", size=3), b"abc")],
    "a size that is not there": [(make_member("train", size=1 << 20), b"abc")],
    "two gigabytes": [(make_member("train", size=2 << 30), b"abc")],
    "two gigabytes before it": [
        (make_member("other", size=2 << 30), b"abc"),
        (make_member("train"), b""),
    ],
    "headers of headers": [
        (make_member(f"{n}", size=12, type=tarfile.XHDTYPE), b"12 path=abc\n") for n in range(2000)
    ],
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_that_is_not_the_official_one_is_refused_by_name(tmp_path, kind):
    write_tar(tmp_path / "cifar-100-python.tar.gz", *ARCHIVES[kind])
    tracemalloc.start()
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz"):
        read_cifar100(tmp_path, "train", KEPT)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_an_archive_that_unpacks_to_far_more_than_the_official_one_is_not_unpacked(tmp_path):
    """Files of 100 MB of zeros each, 100 kB in the archive."""
    packed = zlib.compressobj(1, wbits=31)
    parts = []
    for number in range(4):
        parts.append(
            packed.compress(make_member(f"{number}", size=100 << 20).tobuf(tarfile.GNU_FORMAT))
        )
        parts += [packed.compress(bytes(1 << 20)) for _ in range(100)]
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"".join([*parts, packed.flush()]))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"unpacks to more than 268,435,456 bytes"):
        read_cifar100(tmp_path, "train", KEPT)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
