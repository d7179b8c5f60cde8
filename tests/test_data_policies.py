"""Augmentation policies: every operation is Pillow's to the bit, and so is what a batch becomes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from test_data_augment import from_pillow, make_images, to_pillow

from mcit.data import image_operations as ops
from mcit.data import policies
from mcit.parallel.global_batch import global_batch_rows, rows_of_process

NEAREST, BICUBIC = Image.Resampling.NEAREST, Image.Resampling.BICUBIC


def transform(matrix, kind, image, level, fill):
    coefficients = [level if number is None else number for number in matrix]
    return image.transform(
        image.size, Image.Transform.AFFINE, coefficients, kind, fillcolor=(fill,) * 3
    )


def enhance(kind, image, level, fill):
    return kind(image).enhance(level)


def turn(image, level, fill):
    return image.rotate(level, fillcolor=(fill,) * 3)


SHEAR_X, SHEAR_Y = (1, None, 0, 0, 1, 0), (1, 0, 0, None, 1, 0)
MOVE_X, MOVE_Y = (1, 0, None, 0, 1, 0), (1, 0, 0, 0, 1, None)
# what Pillow does, and the range of levels
PILLOW = {
    ops.shear_x: (partial(transform, SHEAR_X, NEAREST), -1, 1),
    ops.shear_y: (partial(transform, SHEAR_Y, NEAREST), -1, 1),
    ops.shear_x_smoothly: (partial(transform, SHEAR_X, BICUBIC), -0.3, 0.3),
    ops.shear_y_smoothly: (partial(transform, SHEAR_Y, BICUBIC), -0.3, 0.3),
    ops.translate_x: (partial(transform, MOVE_X, NEAREST), -33, 33),
    ops.translate_y: (partial(transform, MOVE_Y, NEAREST), -33, 33),
    ops.rotate: (turn, -135, 135),
    ops.change_brightness: (partial(enhance, ImageEnhance.Brightness), 0, 2),
    ops.change_color: (partial(enhance, ImageEnhance.Color), 0, 2),
    ops.change_contrast: (partial(enhance, ImageEnhance.Contrast), 0, 2),
    ops.change_sharpness: (partial(enhance, ImageEnhance.Sharpness), 0, 2),
    ops.invert: (lambda image, level, fill: ImageOps.invert(image), 0, 1),
    ops.posterize: (lambda image, level, fill: ImageOps.posterize(image, round(level)), 1, 8),
    ops.solarize: (lambda image, level, fill: ImageOps.solarize(image, level), 0, 256),
    ops.stretch_contrast: (lambda image, level, fill: ImageOps.autocontrast(image), 0, 1),
    ops.equalize: (lambda image, level, fill: ImageOps.equalize(image), 0, 1),
    ops.keep: (lambda image, level, fill: image, 0, 1),
}


def make_varied(count: int) -> torch.Tensor:
    """Noise, pale and dark images, smooth ones, and one of a single color."""
    images = make_images(count)
    third = count // 3
    images[:third] = (images[:third] * 0.3 + 60).to(torch.uint8)
    images[third : 2 * third] = images[third : 2 * third].sort(dim=3).values
    images[-1] = images[-1, :, :1, :1]
    return images


@pytest.mark.parametrize("operation", PILLOW, ids=lambda operation: operation.__name__)
def test_an_operation_is_pillow_s_to_the_bit(operation):
    reference, least, most = PILLOW[operation]
    images = make_varied(33)
    levels = torch.linspace(least, most, 33, dtype=torch.float64)
    for fill in (policies.BLACK, policies.GRAY):
        found = operation(images, levels, fill)
        for image, level, changed in zip(images, levels.tolist(), found, strict=True):
            expected = from_pillow(reference(to_pillow(image), level, fill))
            assert torch.equal(changed, expected), level


def test_the_policies_have_every_operation_of_their_papers():
    assert len(policies.CIFAR_POLICY) == 25
    named = {name for pair in policies.CIFAR_POLICY for name, _, _ in pair}
    assert named | {"shear_x"} == set(policies.AUTO)
    assert len(policies.TRIVIAL) == 14
    used = {
        strength.operation for strength in (*policies.AUTO.values(), *policies.TRIVIAL.values())
    }
    assert used == set(PILLOW)


def apply_slowly(strengths, name, image, level, sign, fill):
    """One operation on one image, by Pillow."""
    made = strengths[name]
    value = made.least + (made.most - made.least) * level
    value *= image.width if made.relative else 1
    value = made.around + value * (sign if made.signed else 1)
    reference, _, _ = PILLOW[made.operation]
    return reference(image, value, fill)


def test_autoaugment_does_to_a_batch_what_pillow_does_to_each_image():
    images = make_varied(90)
    torch.manual_seed(5)
    found = policies.augment_auto(images)
    torch.manual_seed(5)
    numbers = torch.rand(90, 5).double().tolist()
    for image, (pair, *pairs), changed in zip(images, numbers, found, strict=True):
        expected = to_pillow(image)
        steps = policies.CIFAR_POLICY[int(pair * 25)]
        draws = (pairs[:2], pairs[2:])
        for (name, chance, level), (chosen, side) in zip(steps, draws, strict=True):
            if chosen < chance:
                sign = -1 if side < 0.5 else 1
                expected = apply_slowly(policies.AUTO, name, expected, level / 9, sign, 128)
        assert torch.equal(changed, from_pillow(expected))


def test_trivialaugment_does_to_a_batch_what_pillow_does_to_each_image():
    images = make_varied(90)
    torch.manual_seed(5)
    found = policies.augment_trivially(images)
    torch.manual_seed(5)
    numbers = torch.rand(90, 3).double().tolist()
    for image, (kind, level, side), changed in zip(images, numbers, found, strict=True):
        name = list(policies.TRIVIAL)[int(kind * 14)]
        sign = -1 if side < 0.5 else 1
        level = int(level * 31) / 30
        expected = apply_slowly(policies.TRIVIAL, name, to_pillow(image), level, sign, 0)
        assert torch.equal(changed, from_pillow(expected)), name


def test_cutout_blackens_a_square_as_far_as_it_is_inside():
    images = torch.full((3, 3, 10, 12), 7, dtype=torch.uint8)
    cut = ops.cut_out(images, torch.tensor([5, 0, 9]), torch.tensor([6, 0, 11]), side=4)
    expected = images.clone()
    expected[0, :, 3:7, 4:8] = 0
    expected[1, :, :2, :2] = 0
    expected[2, :, 7:, 9:] = 0
    assert torch.equal(cut, expected)


@pytest.mark.parametrize(
    "augment", [*policies.POLICIES.values(), partial(policies.cut_out_squares, side=8)]
)
def test_what_is_drawn_does_not_depend_on_the_number_of_processes(augment):
    images = make_images(11)
    torch.manual_seed(2)
    whole = augment(images)
    for rank in range(2):
        rows = rows_of_process(11, rank, 2)
        torch.manual_seed(2)
        with global_batch_rows(rows):
            mine = augment(images[list(rows.places)])
        assert torch.equal(mine, whole[list(rows.places)])
