"""Operations of augmentation policies on a batch of images, with Pillow's arithmetic to the bit.

Each takes uint8 images [batch, 3, height, width] and a number for each of them, and returns uint8
images. They are checked against ImageOps, ImageEnhance and Image.transform of Pillow, level by
level. Nothing is drawn here, see mcit/data/policies.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# images, a number for each, the value of pixels that come from outside
Operation = Callable[[Tensor, Tensor, int], Tensor]

# coordinates are whole multiples of 2^-16, as in Pillow
_SHIFT = 16
# red, green and blue in a gray value, in units of 2^-16
_GRAY = (19595, 38470, 7471)


def shear_x(images: Tensor, slopes: Tensor, fill: int) -> Tensor:
    """Return images whose rows are shifted in proportion to their height; nearest pixels."""
    zeros = torch.zeros_like(slopes)
    return _transform(images, _stack(1 + zeros, slopes, zeros, zeros, 1 + zeros, zeros), fill)


def shear_y(images: Tensor, slopes: Tensor, fill: int) -> Tensor:
    """Return images whose columns are shifted in proportion to their place; nearest pixels."""
    zeros = torch.zeros_like(slopes)
    return _transform(images, _stack(1 + zeros, zeros, zeros, slopes, 1 + zeros, zeros), fill)


def shear_x_smoothly(images: Tensor, slopes: Tensor, fill: int) -> Tensor:
    """Return images whose rows are shifted in proportion to their height; bicubic."""
    return _shift_rows(images, slopes, fill)


def shear_y_smoothly(images: Tensor, slopes: Tensor, fill: int) -> Tensor:
    """Return images whose columns are shifted in proportion to their place; bicubic."""
    return _shift_rows(images.mT, slopes, fill).mT


def translate_x(images: Tensor, pixels: Tensor, fill: int) -> Tensor:
    """Return images moved to the left by so many pixels."""
    zeros = torch.zeros_like(pixels)
    return _transform(images, _stack(1 + zeros, zeros, pixels, zeros, 1 + zeros, zeros), fill)


def translate_y(images: Tensor, pixels: Tensor, fill: int) -> Tensor:
    """Return images moved up by so many pixels."""
    zeros = torch.zeros_like(pixels)
    return _transform(images, _stack(1 + zeros, zeros, zeros, zeros, 1 + zeros, pixels), fill)


def rotate(images: Tensor, degrees: Tensor, fill: int) -> Tensor:
    """Return images turned about their center, counterclockwise; nearest pixels."""
    height, width = images.shape[-2:]
    angles = torch.deg2rad(degrees)
    cosine = angles.cos()
    sine = angles.sin()
    # a point of the result comes from where the opposite turn takes it
    right = width / 2 - cosine * (width / 2) + sine * (height / 2)
    down = height / 2 - sine * (width / 2) - cosine * (height / 2)
    return _transform(images, _stack(cosine, -sine, right, sine, cosine, down), fill)


def change_brightness(images: Tensor, factors: Tensor, fill: int = 0) -> Tensor:
    """Return images times their factors."""
    return _blend(torch.zeros_like(images), images, factors)


def change_color(images: Tensor, factors: Tensor, fill: int = 0) -> Tensor:
    """Return images at so many times their distance from gray."""
    return _blend(to_gray(images).expand_as(images), images, factors)


def change_contrast(images: Tensor, factors: Tensor, fill: int = 0) -> Tensor:
    """Return images at so many times their distance from their own mean gray."""
    mean = to_gray(images).double().mean(dim=(1, 2, 3), keepdim=True)
    level = (mean + 0.5).floor().to(torch.uint8)
    return _blend(level.expand_as(images), images, factors)


def change_sharpness(images: Tensor, factors: Tensor, fill: int = 0) -> Tensor:
    """Return images at so many times their distance from a smoothed copy."""
    return _blend(smooth(images), images, factors)


def invert(images: Tensor, levels: Tensor, fill: int = 0) -> Tensor:
    """Return negatives."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor, fill: int = 0) -> Tensor:
    """Return images with so many leading bits of every value."""
    dropped = 2 ** (8 - bits.round().long())
    mask = (256 - dropped).to(torch.uint8)
    return images & mask.view(-1, 1, 1, 1)


def solarize(images: Tensor, thresholds: Tensor, fill: int = 0) -> Tensor:
    """Return images with all values from the threshold on inverted."""
    return torch.where(images < thresholds.view(-1, 1, 1, 1), images, 255 - images)


def stretch_contrast(images: Tensor, levels: Tensor, fill: int = 0) -> Tensor:
    """Return images whose channels are stretched to 0..255 (autocontrast)."""
    flat = images.flatten(2)
    low = flat.amin(dim=2, keepdim=True).double()
    high = flat.amax(dim=2, keepdim=True).double()
    # a channel of one value stays as it is
    constant = high <= low
    # torch computes `255 / x` as 255 * (1 / x), whose last bit may differ
    scale = torch.full_like(high, 255).div_(torch.where(constant, 1.0, high - low))
    values = torch.arange(256, dtype=torch.float64)
    stretched = (values * scale - low * scale).trunc().clamp(0, 255)
    return _look_up(images, torch.where(constant, values, stretched))


def equalize(images: Tensor, levels: Tensor, fill: int = 0) -> Tensor:
    """Return images whose channels have about as many pixels of every value."""
    count, channels = images.shape[:2]
    flat = images.flatten(2).long()
    places = torch.arange(count * channels).view(count, channels, 1) * 256
    histogram = torch.bincount((flat + places).flatten(), minlength=count * channels * 256)
    histogram = histogram.view(count, channels, 256)
    last = flat.amax(dim=2, keepdim=True)
    step = (flat.shape[2] - histogram.gather(2, last)) // 255
    below = histogram.cumsum(dim=2) - histogram
    values = torch.arange(256)
    table = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    return _look_up(images, torch.where(step == 0, values, table))


def keep(images: Tensor, levels: Tensor, fill: int = 0) -> Tensor:
    """Return the images as they are."""
    return images


def cut_out(images: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    """Return images with a black square around (row, column), as far as it is inside (Cutout)."""
    height, width = images.shape[-2:]
    top = (rows - side // 2).view(-1, 1, 1, 1)
    left = (columns - side // 2).view(-1, 1, 1, 1)
    down = torch.arange(height).view(-1, 1)
    across = torch.arange(width)
    covered = (down >= top) & (down < top + side) & (across >= left) & (across < left + side)
    return images.masked_fill(covered, 0)


def to_gray(images: Tensor) -> Tensor:
    """Return gray values [batch, 1, height, width]."""
    weights = torch.tensor(_GRAY).view(1, 3, 1, 1)
    total = (images.long() * weights).sum(dim=1, keepdim=True)
    return ((total + 2**15) >> 16).to(torch.uint8)


def smooth(images: Tensor) -> Tensor:
    """Return images averaged over 3x3 pixels, the middle counted 5 times; the rim stays."""
    height, width = images.shape[-2:]
    smoothed = images.clone()
    if height < 3 or width < 3:
        return smoothed
    wide = images.to(torch.int32)
    columns = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    total += 4 * wide[..., 1:-1, 1:-1]
    # the nearest whole number to total / 13
    smoothed[..., 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)
    return smoothed


def _stack(*columns: Tensor) -> Tensor:
    return torch.stack(columns, dim=1).double()


def _transform(images: Tensor, matrices: Tensor, fill: int) -> Tensor:
    """Return images whose pixel (x, y) is that at (ax + by + c, dx + ey + f); nearest pixels.

    matrices: (a, b, c, d, e, f) of every image, [batch, 6].
    """
    count, channels, height, width = images.shape
    a, b, c, d, e, f = matrices.unbind(1)
    # pixels are looked at in their middle
    start_x = c + a * 0.5 + b * 0.5
    start_y = f + d * 0.5 + e * 0.5
    x = _place(start_x, a, b, height, width)
    y = _place(start_y, d, e, height, width)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)  # [batch, height, width]
    places = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).view(count, 1, -1)
    found = images.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(images)
    return torch.where(inside.unsqueeze(1), found, fill)


def _place(start: Tensor, across: Tensor, down: Tensor, height: int, width: int) -> Tensor:
    """Return whole coordinates [batch, height, width] in fixed-point arithmetic."""
    start, across, down = (
        (value * 2**_SHIFT + 0.5).floor().long().view(-1, 1, 1) for value in (start, across, down)
    )
    columns = torch.arange(width).view(1, 1, -1)
    rows = torch.arange(height).view(1, -1, 1)
    return (start + across * columns + down * rows) >> _SHIFT


def _shift_rows(images: Tensor, slopes: Tensor, fill: int) -> Tensor:
    """Return images whose row y is read from y * slope further to the right, bicubic."""
    width = images.shape[-1]
    height = images.shape[-2]
    columns = torch.arange(width, dtype=torch.float64) + 0.5
    rows = torch.arange(height, dtype=torch.float64).view(-1, 1) + 0.5
    x = columns + slopes.double().view(-1, 1, 1) * rows  # [batch, height, width]
    inside = (x >= 0) & (x < width)
    x = x - 0.5
    left = x.floor()
    part = (x - left).unsqueeze(1)
    neighbors = []
    for offset in range(-1, 3):
        place = (left.long() + offset).clamp(0, width - 1).unsqueeze(1)
        found = images.gather(3, place.expand(-1, images.shape[1], -1, -1))
        neighbors.append(found.double())
    one, two, three, four = neighbors
    second = three - one
    third = 2 * (one - two) + three - four
    fourth = two - one + four - three
    value = two + part * (second + part * (third + part * fourth))
    return torch.where(inside.unsqueeze(1), value.clamp(0, 255).to(torch.uint8), fill)


def _blend(first: Tensor, second: Tensor, factors: Tensor) -> Tensor:
    """Return first + factor * (second - first), cut to 0..255 and rounded down."""
    start = first.float()
    factors = factors.float().view(-1, 1, 1, 1)
    return (start + factors * (second.float() - start)).clamp_(0, 255).to(torch.uint8)


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Return images with every value replaced by a table's [batch, 3, 256] of its channel."""
    tables = tables.to(torch.uint8).expand(*images.shape[:2], 256)
    return tables.gather(2, images.flatten(2).long()).view_as(images)
