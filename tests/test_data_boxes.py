"""VCR's objects in words and in the image."""

from __future__ import annotations

import numpy as np
from PIL import Image

from mcit.data.boxes import GRAY, NAMES, color_of, draw_boxes, speak

OBJECTS = ["person", "person", "dog"]


def paint(indices, size=(100, 80), boxes=None, stated=None):
    boxes = boxes or [[10, 10, 60, 50, 0.9], [30, 30, 90, 70, 0.8], [0, 0, 20, 20, 0.7]]
    image = Image.new("RGB", size, (0, 0, 0))
    return np.asarray(draw_boxes(image, boxes, OBJECTS, indices, stated or size)).astype(int)


def test_every_object_of_a_tag_is_named():
    assert (
        speak(["Why", "are", [0, 1], "near", [2], "?"], OBJECTS)
        == "Why are Alex and Robin near the gray dog ?"
    )
    assert speak([[0, 2, 1]], OBJECTS) == "Alex and the gray dog and Robin"


def test_a_person_beyond_the_table_of_names_still_has_one():
    crowd = ["person"] * 100
    assert speak([[99]], crowd) == NAMES[99 % len(NAMES)]
    assert len(set(NAMES)) == len(NAMES)


def test_persons_differ_in_color_and_things_are_gray():
    assert len({color_of(i, "person") for i in range(30)}) == 30
    assert GRAY not in {color_of(i, "person") for i in range(100)}
    assert color_of(3, "dog") == (145, 145, 145)


def test_a_box_is_outlined_in_full_and_filled_at_fifteen_percent():
    pixels = paint([1])
    color = np.array(color_of(1, "person"))
    assert (pixels[30, 30] == color).all()
    assert (pixels[70, 90] == color).all()
    assert (abs(pixels[50, 60] - 0.15 * color) <= 1.5).all()
    assert (pixels[29, 29] == 0).all()
    assert (pixels[71, 91] == 0).all()


def test_only_the_objects_asked_for_are_drawn_and_the_image_is_left_alone():
    image = Image.new("RGB", (100, 80))
    drawn = draw_boxes(image, [[1, 1, 9, 9]] * 3, OBJECTS, [], (100, 80))
    assert drawn is not image
    assert np.asarray(drawn).max() == 0
    assert (paint([2])[60, 60] == 0).all()
    draw_boxes(image, [[1, 1, 9, 9]] * 3, OBJECTS, [0], (100, 80))
    assert np.asarray(image).max() == 0


def thickness(size):
    pixels = paint([2], size, boxes=[[0, 0, 1, 1]] * 2 + [[0, 0, size[0] - 1, size[1] - 1]])
    return int((pixels[size[1] // 2, : size[0] // 2] == 145).all(axis=-1).sum())


def test_the_outline_has_seven_pixels_at_full_size_and_shrinks_with_the_image():
    assert thickness((1920, 1080)) == 7
    assert thickness((1280, 720)) == 7
    assert thickness((640, 360)) in (3, 4)
    assert thickness((48, 48)) == 1


def test_boxes_follow_an_image_that_was_made_smaller():
    large = [[20, 20, 120, 100], [60, 60, 180, 140], [0, 0, 40, 40]]
    assert (paint([0, 1, 2], boxes=large, stated=(200, 160)) == paint([0, 1, 2])).all()


def test_a_box_beyond_the_edge_or_the_wrong_way_round_is_clipped():
    pixels = paint([0], boxes=[[150, 90, -20, -5], [0, 0, 1, 1], [0, 0, 1, 1]])
    color = color_of(0, "person")
    assert (pixels[0, 0] == color).all()
    assert (pixels[79, 99] == color).all()
