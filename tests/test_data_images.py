"""Image folders: listed once, whichever layout, and nothing outside them can be reached."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tiny_official import write_image

from mcit.data.images import (
    ImageFolder,
    KeptImages,
    Picture,
    coco_id,
    file_name,
    open_image,
    stays_inside,
    stem,
    whole_name,
)
from mcit.errors import DataError


def test_coco_names_of_both_years_give_the_id():
    assert coco_id("COCO_train2014_000000000009.jpg") == 9
    assert coco_id("val2014/COCO_val2014_000000581929.jpg") == 581929
    assert coco_id("000000000009.jpg") == 9
    assert coco_id("readme.txt") is None
    assert coco_id("thumbnail_of_9.jpg") is None


def test_sub_folders_are_looked_into_and_links_followed(tmp_path):
    write_image(tmp_path / "images" / "1.png")
    write_image(tmp_path / "images" / "sub" / "2.png")
    write_image(tmp_path / "elsewhere" / "3.png")
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "elsewhere")
    folder = ImageFolder.listed(tmp_path / "images", stem, "unpack them")
    assert set(folder.index) == {"1", "2", "3"}
    assert folder.find("2") == tmp_path / "images" / "sub" / "2.png"
    assert open_image(folder.find("3")).size == (40, 32)


def test_a_folder_that_links_to_itself_ends(tmp_path):
    write_image(tmp_path / "1.png")
    (tmp_path / "again").symlink_to(tmp_path)
    assert ImageFolder.listed(tmp_path, file_name, "").index == {"1.png": "1.png"}


def test_a_missing_folder_and_a_missing_image_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no image folder .*nowhere; unpack them"):
        ImageFolder.listed(tmp_path / "nowhere", stem, "unpack them")
    with pytest.raises(DataError, match="'7' is not in"):
        ImageFolder.listed(tmp_path, stem, "").find("7")


def test_no_name_leads_out_of_the_folder(tmp_path):
    write_image(tmp_path / "secret.png")
    write_image(tmp_path / "images" / "1.png")
    folder = ImageFolder.listed(tmp_path / "images", whole_name, "")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "1.png/../../secret.png"):
        assert not stays_inside(name)
        with pytest.raises(DataError):
            folder.find(name)
    assert stays_inside("movie/a..b@0.jpg")
    assert not stays_inside("")
    assert not stays_inside("..\\secret.png")


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "I;16"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    Image.new(mode, (5, 4)).save(path)
    image = open_image(path)
    assert (image.mode, image.size) == ("RGB", (5, 4))


def test_a_transparent_palette_is_opened_without_a_warning(tmp_path, recwarn):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50] + [0] * 762)
    image.save(tmp_path / "a.png", transparency=bytes([0, 255]))
    pixels = np.asarray(open_image(tmp_path / "a.png"))
    assert (pixels == (200, 100, 50)).all()
    assert not recwarn.list


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_image_is_named(tmp_path, damage):
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.jpg"
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "text": b"<html>not found</html>", "empty": b""}[damage]
    )
    with pytest.raises(DataError, match=r"bad\.jpg is not a readable image .* fetch it again"):
        open_image(path)


def test_a_name_is_looked_up_regardless_of_other_files(tmp_path):
    write_image(tmp_path / "0" / "train-1-0-img0.png")
    (tmp_path / "notes.txt").write_text("x")
    folder = ImageFolder.listed(tmp_path, file_name, "")
    assert folder.find("train-1-0-img0.png").is_file()


def test_small_images_are_decoded_once_and_large_ones_are_not_kept(tmp_path):
    Image.new("RGB", (48, 48), "red").save(tmp_path / "small.png")
    Image.new("RGB", (480, 480), "red").save(tmp_path / "large.png")
    small, large = (Picture(tmp_path / name, name) for name in ("small.png", "large.png"))
    kept = KeptImages()
    assert kept.open(small) is kept.open(small)
    assert kept.open(large) is not kept.open(large)
    assert kept.open(small).tobytes() == small.open().tobytes()


def test_no_more_images_are_kept_than_there_is_room_for(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    first, second = (Picture(tmp_path / "image.png", name) for name in ("first", "second"))
    kept = KeptImages(room=3 * 8 * 8)
    assert kept.open(first) is kept.open(first)
    assert kept.open(second) is not kept.open(second)
