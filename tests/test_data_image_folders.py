"""Tiny-ImageNet and ImageNet-Subset are read from the layouts they come in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from mcit.data import image_folders
from mcit.data.image_folders import read_imagenet_subset, read_tiny_imagenet
from mcit.data.images import open_image
from mcit.errors import DataError

TINY_NAMES = [f"n{number:08}" for number in range(200)]


def write_image(
    path: Path, color: int, size: tuple[int, int] = (64, 64), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color if mode == "L" else (color, 0, 0)).save(
        path, "PNG"
    )  # exact, whatever the suffix


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Class i is drawn in shade i; its validation image is listed in another order than the
    alphabet's."""
    root = tmp_path_factory.mktemp("tiny")
    folder = root / "tiny-imagenet-200"
    lines = []
    for shade, name in enumerate(TINY_NAMES):
        for row in range(2):
            write_image(folder / "train" / name / "images" / f"{name}_{row}.JPEG", shade)
        (folder / "train" / name / f"{name}_boxes.txt").write_text("a box")
        write_image(folder / "val" / "images" / f"val_{199 - shade}.JPEG", shade, mode="L")
        lines.append(f"val_{199 - shade}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    return root


@pytest.mark.parametrize("split", ["train", "eval"])
def test_tiny_imagenet_is_read_as_it_is_unpacked(tiny, split):
    images = read_tiny_imagenet(tiny, split, kept=range(200))
    assert images.pixels.shape == (400 if split == "train" else 200, 3, 64, 64)
    assert_close(images.pixels[:, 0, 5, 5].long(), images.labels)  # shade i is label i
    assert images.labels.unique().tolist() == list(range(200))


def test_only_the_wanted_classes_are_decoded(tiny):
    for split, count in (("train", 4), ("eval", 2)):
        images = read_tiny_imagenet(tiny / "tiny-imagenet-200", split, kept=[7, 150])
        assert sorted(images.labels.tolist()) == sorted([7, 150] * (count // 2))
        assert_close(images.pixels[:, 0, 0, 0].long(), images.labels)


def test_batches_are_loaded_by_row(tiny):
    images = read_tiny_imagenet(tiny, "eval", kept=range(200))
    rows = torch.tensor([5, 3, 5])
    assert_close(images.load_rows(rows), images.pixels[rows])


@pytest.mark.parametrize("file", ["../../secret.png", "/etc/passwd", "sub/val_0.JPEG", "..", ""])
def test_an_annotation_cannot_lead_out_of_the_image_folder(tmp_path, file):
    for name in TINY_NAMES:
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val_annotations.txt").write_text(f"{file}\tn00000000\t0\n")
    with pytest.raises(DataError, match=r"line 1: .* is not the name of a file in"):
        read_tiny_imagenet(tmp_path, "eval", kept=[0])


def test_a_class_of_an_annotation_must_be_known(tmp_path):
    for name in TINY_NAMES:
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match=r"val_annotations.txt is missing"):
        read_tiny_imagenet(tmp_path, "eval", kept=[0])
    (tmp_path / "val" / "val_annotations.txt").write_text("\nval_0.JPEG\tn123\t0\n")
    with pytest.raises(DataError, match="line 2: class 'n123' has no folder"):
        read_tiny_imagenet(tmp_path, "eval", kept=[0])
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn00000000\t0\n")
    with pytest.raises(DataError, match=r"no image .*val_0.JPEG"):
        read_tiny_imagenet(tmp_path, "eval", kept=[0])


def test_a_wrong_number_of_classes_is_refused(tmp_path):
    (tmp_path / "train" / "n0").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="holds 1 class folders where Tiny-ImageNet has 200"):
        read_tiny_imagenet(tmp_path, "train", kept=[0])
    with pytest.raises(
        DataError, match="does not hold the data: Tiny-ImageNet is the folder 'tiny-imagenet-200'"
    ):
        read_tiny_imagenet(tmp_path / "train", "train", kept=[0])


def test_an_image_of_another_size_is_named(tmp_path):
    write_image(tmp_path / "odd.png", 1, size=(64, 63))
    images = [("odd.png", lambda: Image.open(tmp_path / "odd.png"))]
    with pytest.raises(DataError, match=r"odd.png has 64x63 pixels where 64x64 are needed"):
        image_folders.store_images(images, [0], side=64)


def write_imagenet(root: Path, names: list[str]) -> None:
    for part in ("train", "val"):
        for shade, name in enumerate(names):
            write_image(root / part / name / "one.JPEG", shade, size=(20, 14))


def test_a_hundred_folders_are_taken_as_they_are(tmp_path):
    names = [f"n{number:08}" for number in range(100)]
    write_imagenet(tmp_path / "imagenet_subset", names)
    images = read_imagenet_subset(tmp_path, "eval", kept=[4, 2], class_list=None)
    assert images.labels.tolist() == [4, 2]
    paths = images.load_rows(torch.tensor([0, 1]))
    centers = image_folders.cut_centers(map(open_image, paths), resize=10, size=8)
    assert centers[:, 0, 0, 0].tolist() == [4, 2]
    assert image_folders.open_random_boxes(paths[1:], size=8).shape == (1, 3, 8, 8)


def test_the_whole_of_imagenet_needs_a_list(tmp_path):
    names = sorted({name for names in image_folders.class_lists().values() for name in names})
    assert len(names) == 188  # the two lists have 12 classes in common
    write_imagenet(tmp_path, names)
    with pytest.raises(
        DataError, match=r"holds 188 class folders .*class_list \(lists: s1993, permutation\)"
    ):
        read_imagenet_subset(tmp_path, "train", [0], class_list=None)
    for list_name, listed in image_folders.class_lists().items():
        images = read_imagenet_subset(tmp_path, "train", range(100), class_list=list_name)
        assert [path.parent.name for path in images.paths] == sorted(listed)
        assert images.labels.tolist() == list(range(100))


def test_a_class_that_is_missing_from_the_list_is_named(tmp_path):
    write_imagenet(tmp_path, ["n01440764"])
    with pytest.raises(
        DataError, match="lacks 100 of the 100 classes of list 's1993', n01558993 first"
    ):
        read_imagenet_subset(tmp_path, "train", [0], class_list="s1993")


def test_both_lists_have_a_hundred_classes():
    for listed in image_folders.class_lists().values():
        assert len(set(listed)) == 100
        assert all(name.startswith("n") and len(name) == 9 for name in listed)


def make_photograph(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("size", "resized"), [((500, 375), (341, 256)), ((333, 500), (256, 384)), ((256, 256), None)]
)
def test_the_shorter_side_is_resized_and_the_center_cut(size, resized):
    image = make_photograph(*size)
    found = image_folders.cut_center(image_folders.resize_shorter_side(image, 256), 224)
    expected = image.resize(resized, Image.Resampling.BILINEAR) if resized else image
    left, top = round((expected.width - 224) / 2), round((expected.height - 224) / 2)
    assert found.size == (224, 224)
    assert (np.array(found) == np.array(expected)[top : top + 224, left : left + 224]).all()


def test_random_boxes_are_repeated_by_their_seed_and_differ_otherwise(tmp_path):
    make_photograph(50, 40).save(tmp_path / "a.png")
    paths = [tmp_path / "a.png"] * 2
    torch.manual_seed(3)
    first, second = image_folders.open_random_boxes(paths, size=16)
    torch.manual_seed(3)
    assert_close(image_folders.open_random_boxes(paths[:1], size=16)[0], first)
    assert not torch.equal(first, second)


def test_a_folder_without_images_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("none here")
    with pytest.raises(DataError, match="holds no image"):
        image_folders.list_images(tmp_path)
    with pytest.raises(DataError, match="absent is missing"):
        image_folders.list_images(tmp_path / "absent")
