"""Augmentation: exact against Pillow and numpy where nothing is drawn, in distribution where
something is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.testing import assert_close

from mcit.data import augment


def make_images(count: int, height: int = 32, width: int = 32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def to_pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pillow(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_a_padded_crop_is_numpy_s_pad_and_slice():
    images = make_images(50, 32, 24)
    tops, lefts = augment.draw_corners(50, 4)
    cropped = augment.pad_crop(images, tops, lefts, 4)
    for image, top, left, found in zip(images, tops.tolist(), lefts.tolist(), cropped, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)))
        assert_close(found, torch.from_numpy(padded[:, top : top + 32, left : left + 24].copy()))


def test_a_crop_at_the_padding_is_the_image_itself():
    images, middle = make_images(3), torch.full((3,), 4)
    assert_close(augment.pad_crop(images, middle, middle, 4), images)


def test_a_flip_mirrors_the_chosen_images_only():
    images, chosen = make_images(20), torch.arange(20) % 3 == 0
    before = images.clone()
    flipped = augment.flip(images, chosen)
    for image, mirrored, found in zip(images, chosen.tolist(), flipped, strict=True):
        expected = (
            to_pillow(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            if mirrored
            else to_pillow(image)
        )
        assert_close(found, from_pillow(expected))
    assert_close(images, before)


def test_brightness_is_pillow_s_to_the_last_bit():
    images = make_images(60)
    factors = torch.cat([augment.draw_factors(56, 63 / 255), torch.tensor([0.0, 1.0, 0.5, 3.0])])
    found = augment.scale_brightness(images, factors)
    for image, factor, result in zip(images, factors.tolist(), found, strict=True):
        expected = ImageEnhance.Brightness(to_pillow(image)).enhance(factor)
        assert_close(result, from_pillow(expected).float(), rtol=0, atol=0)


@pytest.mark.parametrize("size", [20, 64, 80])
def test_a_box_is_cut_and_resized_as_pillow_does(size):
    images = make_images(60, 48, 64)
    boxes = augment.draw_boxes(torch.full((60,), 48), torch.full((60,), 64))
    found = augment.resize_boxes(images, boxes, size)
    for image, box, result in zip(images, boxes.tolist(), found, strict=True):
        top, left, height, width = box
        cropped = to_pillow(image).crop((left, top, left + width, top + height))
        assert_close(result, from_pillow(cropped.resize((size, size), Image.Resampling.BILINEAR)))


def test_the_center_is_cut_evenly():
    image = make_images(1, 64, 64)
    assert_close(augment.center_crop(image, 56), image[:, :, 4:60, 4:60])
    assert [augment.center_corner(length, 224) for length in (224, 256, 257, 259)] == [
        0,
        16,
        16,
        18,
    ]


def test_normalizing_is_what_it_says():
    images = make_images(4)
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    found = augment.normalize(images, mean, std)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(
        3, 1, 1
    )
    assert found.dtype == torch.float32
    assert_close(found, expected.float())
    assert_close(augment.normalize(images.float(), mean, std), found)


def test_normalizing_leaves_its_argument_alone():
    images = make_images(2).float()
    before = images.clone()
    augment.normalize(images, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert_close(images, before)


def test_corners_cover_all_places_evenly():
    torch.manual_seed(0)
    tops, lefts = augment.draw_corners(81_000, 4)
    counts = torch.bincount(tops * 9 + lefts, minlength=81)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert len(counts) == 81
    assert chi_square < 140  # 80 degrees of freedom; beyond it once in 30,000


def test_half_of_the_images_are_flipped():
    torch.manual_seed(0)
    assert abs(augment.draw_flips(40_000).float().mean().item() - 0.5) < 0.01


def test_brightness_factors_are_uniform_about_one():
    torch.manual_seed(0)
    factors = augment.draw_factors(40_000, 63 / 255)
    assert factors.min() >= 1 - 63 / 255
    assert factors.max() <= 1 + 63 / 255
    shares = (factors - (1 - 63 / 255)) / (2 * 63 / 255)
    assert_close(shares.sort().values, torch.linspace(0, 1, 40_000), atol=0.012, rtol=0)


def draw_one_box(height: int, width: int, random: np.random.Generator) -> tuple[float, float]:
    """The usual procedure, one image and one attempt at a time: share of the area and aspect ratio
    of the box."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            return tall * wide / (height * width), wide / tall
    raise AssertionError("ten attempts all but always suffice for a square")


def test_boxes_are_distributed_as_by_trial_and_error():
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    expected = torch.tensor(
        [draw_one_box(64, 64, random) for _ in range(20_000)], dtype=torch.float64
    )
    boxes = augment.draw_boxes(torch.full((20_000,), 64), torch.full((20_000,), 64))
    found = torch.stack(
        [boxes[:, 2] * boxes[:, 3] / 4096, boxes[:, 3] / boxes[:, 2]], dim=1
    ).double()
    assert_close(found.sort(dim=0).values, expected.sort(dim=0).values, atol=0.03, rtol=0.03)


def test_boxes_stay_inside_and_reach_every_edge():
    torch.manual_seed(0)
    heights, widths = torch.randint(20, 90, (2, 5000))
    top, left, tall, wide = augment.draw_boxes(heights, widths).unbind(1)
    assert min(top.min(), left.min()) == 0
    assert min(tall.min(), wide.min()) > 0
    assert (heights - top - tall).min() == 0
    assert (widths - left - wide).min() == 0


def test_a_box_that_never_fits_is_the_largest_centered_one():
    # a strip: no allowed aspect ratio fits with a tenth of its area or more
    numbers = augment.draw_box_numbers(2)
    numbers[:, 0] = 0.5
    boxes = augment.fit_boxes(torch.tensor([10, 1000]), torch.tensor([1000, 10]), numbers)
    assert boxes.tolist() == [[0, (1000 - 13) // 2, 10, 13], [(1000 - 13) // 2, 0, 13, 10]]


def test_the_global_generator_repeats_every_draw():
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(7)
        side = torch.full((16,), 64)
        corners = augment.draw_corners(16, 4)
        return [
            *corners,
            augment.draw_flips(16),
            augment.draw_factors(16, 0.2),
            augment.draw_boxes(side, side),
        ]

    for first, second in zip(draw(), draw(), strict=True):
        assert torch.equal(first, second)
