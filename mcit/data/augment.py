"""Image augmentation as tensor operations on a whole batch, with Pillow's arithmetic.

Every operation comes in two halves: what is drawn (from the global torch generator, so that `torch.manual_seed`
repeats it, and for all of a batch that processes share) and what is done with the draw, which is deterministic. Images
are uint8 [batch, 3, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcit.parallel.global_batch import draw_rows

_COEFFICIENT_BITS = 22  # Pillow resamples 8-bit images with fixed-point weights of this many bits


def pad_crop(images: Tensor, tops: Tensor, lefts: Tensor, padding: int) -> Tensor:
    """Each image, framed by `padding` black pixels, cut to its old size with its upper left corner at (top, left)."""
    count, channels, height, width = images.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    padded = images.new_zeros(count, channels, tall, wide)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    # A row of a crop is `width` neighbours in memory, so the crops are rows of the overlapping windows of a flat
    # array; picking whole rows is some ten times faster than gathering pixels.
    windows = padded.view(-1).as_strided((padded.numel() - width + 1, width), (1, 1))
    planes = torch.arange(count * channels).view(count, channels, 1)  # [batch, channels, 1]
    rows = planes * tall + (tops[:, None, None] + torch.arange(height))  # [batch, channels, height]
    starts = rows * wide + lefts[:, None, None]
    return windows.index_select(0, starts.view(-1)).view(count, channels, height, width)


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """The images whose entry of `chosen` is true are mirrored left to right."""
    rows = chosen.nonzero().squeeze(1)
    mirrored = images.index_select(0, rows).flip(3)
    places = torch.arange(len(images))
    places[rows] = len(images) + torch.arange(len(rows))
    return torch.cat([images, mirrored]).index_select(
        0, places
    )  # copies whole images, unlike `where`


def scale_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Each image times its factor, cut to 0..255 and down to whole numbers as Pillow does; the result is float."""
    return images.to(torch.float32).mul_(factors.view(-1, 1, 1, 1)).clamp_(max=255).floor_()


def center_crop(images: Tensor, size: int) -> Tensor:
    """The middle `size` x `size` pixels."""
    top, left = center_corner(images.shape[-2], size), center_corner(images.shape[-1], size)
    return images[..., top : top + size, left : left + size]


def center_corner(length: int, size: int) -> int:
    """Where a centred window of `size` begins; an odd rest is split as Python's `round` decides (to the even)."""
    return round((length - size) / 2)


def resize_boxes(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Each image's box (top, left, height, width) resized to `size` x `size`: Pillow's crop, then bilinear resize.

    The same to the last bit where boxes are enlarged; within one grey level where a side shrinks, because Pillow then
    chooses by cost which of its two passes goes first.
    """
    count, channels, height, _ = images.shape
    tops, lefts, heights, widths = boxes.unbind(1)
    # Pillow goes across first and rounds to 8 bits in between. What is resampled comes second here, so that a step
    # of it is a row in memory.
    columns = images.permute(0, 3, 1, 2).flatten(2)  # [batch, width, 3 * height]
    narrow = _resample(columns, lefts, widths, size).view(count, size, channels, height)
    rows = narrow.permute(0, 3, 2, 1).flatten(2)  # [batch, height, 3 * size]
    resized = _resample(rows, tops, heights, size).view(count, size, channels, size)
    return resized.permute(0, 2, 1, 3).contiguous()  # [batch, 3, size, size]


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Values 0..255 as floats, scaled to 0..1, minus the channel's mean, over its deviation."""
    shape = (1, -1, 1, 1)
    scaled = images.to(torch.float32).div(255)
    return scaled.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))


def draw_corners(count: int, padding: int) -> tuple[Tensor, Tensor]:
    """Where each padded image is cut: all (2 * padding + 1)^2 corners are equally likely."""
    tops, lefts = draw_rows(
        lambda rows: torch.randint(0, 2 * padding + 1, (2, rows)).T, count
    ).unbind(1)
    return tops, lefts


def draw_flips(count: int) -> Tensor:
    """A fair coin for each image."""
    return draw_rows(torch.rand, count) < 0.5


def draw_factors(count: int, spread: float) -> Tensor:
    """A brightness factor for each image, uniform in 1 - spread .. 1 + spread."""
    return 1 + spread * (2 * draw_rows(torch.rand, count) - 1)


def draw_boxes(
    heights: Tensor,
    widths: Tensor,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    attempts: int = 10,
) -> Tensor:
    """A random box [images, 4] = (top, left, height, width) for every image of these sizes.

    The share of the area is uniform in `scale`, the aspect ratio log-uniform in `ratio`; of `attempts` draws the first
    that fits the image counts, and where none does, the largest centred box with an allowed ratio.
    """
    numbers = draw_rows(lambda rows: draw_box_numbers(rows, scale, ratio, attempts), len(heights))
    return fit_boxes(heights, widths, numbers, ratio)


def draw_box_numbers(
    count: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    attempts: int = 10,
) -> Tensor:
    """For each image and attempt the share of the area, the logarithm of the aspect ratio, and two places."""
    shares = torch.empty(count, attempts).uniform_(*scale)
    aspects = torch.empty(count, attempts).uniform_(math.log(ratio[0]), math.log(ratio[1]))
    return torch.stack(
        [shares, aspects, *torch.rand(2, count, attempts)], dim=1
    )  # [images, 4, attempts]


def fit_boxes(
    heights: Tensor, widths: Tensor, numbers: Tensor, ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> Tensor:
    """The boxes that such numbers mean for images of these sizes."""
    heights, widths = heights.view(-1, 1), widths.view(-1, 1)
    shares, aspects, down, across = numbers.unbind(1)  # [images, attempts] each
    area, aspect = (heights * widths) * shares, aspects.exp()
    tall, wide = (area / aspect).sqrt_().round_().long(), (area * aspect).sqrt_().round_().long()
    fits = (tall > 0) & (tall <= heights) & (wide > 0) & (wide <= widths)
    # rounding may carry the product to the bound itself, which would be one too many
    top = torch.minimum((down * (heights - tall + 1)).long(), heights - tall)
    left = torch.minimum((across * (widths - wide + 1)).long(), widths - wide)
    candidates = torch.stack([top, left, tall, wide], dim=2)  # [images, attempts, 4]
    first = fits.long().argmax(dim=1)
    boxes = candidates[torch.arange(len(heights)), first]
    return torch.where(fits.any(dim=1, keepdim=True), boxes, _largest_boxes(heights, widths, ratio))


def _largest_boxes(heights: Tensor, widths: Tensor, ratio: tuple[float, float]) -> Tensor:
    wide = torch.minimum(widths, (heights * ratio[1]).round().long())
    tall = torch.minimum(heights, (widths / ratio[0]).round().long())
    return torch.cat([(heights - tall) // 2, (widths - wide) // 2, tall, wide], dim=1)


def _resample(lines: Tensor, starts: Tensor, lengths: Tensor, size: int) -> Tensor:
    """`size` mixtures of the lines start..start+length of each image; uint8 [batch, lines, values] in and out."""
    count, available, values = lines.shape
    scale = (lengths.double() / size).view(-1, 1)
    reach = scale.clamp(min=1)  # a shrinking image is averaged over what falls into a pixel
    centers = (
        torch.arange(size, dtype=torch.float64) + 0.5
    ) * scale  # [batch, size], counted from the box's edge
    first = (centers - reach + 0.5).floor().long()
    taps = first.unsqueeze(2) + torch.arange(
        math.ceil(2 * reach.max().item())
    )  # [batch, size, taps]
    weights = (1 - (taps + 0.5 - centers.unsqueeze(2)).abs() / reach.unsqueeze(2)).clamp_(min=0)
    weights = weights * ((taps >= 0) & (taps < lengths.view(-1, 1, 1)))  # the box ends at its edge
    weights = weights / weights.sum(dim=2, keepdim=True)
    weights = (weights * 2**_COEFFICIENT_BITS + 0.5).int()
    places = (taps + starts.view(-1, 1, 1)).clamp_(0, available - 1) + available * torch.arange(
        count
    ).view(-1, 1, 1)
    total = torch.full(
        (count * size, values), 2 ** (_COEFFICIENT_BITS - 1), dtype=torch.int32
    )  # rounds to nearest
    for tap in range(taps.shape[2]):
        chosen = lines.flatten(0, 1).index_select(0, places[:, :, tap].flatten())
        total += chosen.int().mul_(weights[:, :, tap].reshape(-1, 1))
    return (total >> _COEFFICIENT_BITS).to(torch.uint8).view(count, size, values)
