"""Image augmentation as tensor operations on a whole batch, with Pillow's arithmetic.

Every operation comes in two halves: what is drawn (from the global torch generator, so that
`torch.manual_seed` repeats it, and for all of a batch that processes share) and what is done with
the draw, which is deterministic. Images are uint8 [batch, 3, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mcit.parallel.global_batch import draw_rows

# of a random box: the share of the area and the aspect ratio are drawn from these ranges
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10


def crop_flip_brighten(images: Tensor, padding: int) -> Tensor:
    """Return images as PyCIL augments those of CIFAR: crop, flip, brightness; they are float."""
    count = len(images)
    tops, lefts = draw_corners(count, padding)
    images = pad_crop(images, tops, lefts, padding)
    images = flip(images, draw_flips(count))
    return scale_brightness(images, draw_factors(count, spread=63 / 255))


def pad_crop(images: Tensor, tops: Tensor, lefts: Tensor, padding: int) -> Tensor:
    """Return each image, framed by black pixels and cut to its old size from (top, left) on."""
    count, channels, height, width = images.shape
    tall = height + 2 * padding
    wide = width + 2 * padding
    padded = images.new_zeros(count, channels, tall, wide)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    # A row of a crop is `width` neighbors in memory, so the crops are rows of the overlapping
    # windows of a flat array; picking whole rows is some ten times faster than gathering pixels.
    windows = padded.view(-1).as_strided((padded.numel() - width + 1, width), (1, 1))
    # [batch, channels, height]
    planes = torch.arange(count * channels).view(count, channels, 1)
    rows = planes * tall + (tops[:, None, None] + torch.arange(height))
    starts = rows * wide + lefts[:, None, None]
    return windows.index_select(0, starts.view(-1)).view(count, channels, height, width)


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Return the images with those mirrored left to right whose entry of `chosen` is true."""
    rows = chosen.nonzero().squeeze(1)
    mirrored = images.index_select(0, rows).flip(3)
    places = torch.arange(len(images))
    places[rows] = len(images) + torch.arange(len(rows))
    # copies whole images, unlike `where`
    return torch.cat([images, mirrored]).index_select(0, places)


def scale_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Return each image times its factor, cut to 0..255 and rounded down as Pillow does, float."""
    return images.to(torch.float32).mul_(factors.view(-1, 1, 1, 1)).clamp_(max=255).floor_()


def center_crop(images: Tensor, size: int) -> Tensor:
    """Return the middle `size` x `size` pixels."""
    top = center_corner(images.shape[-2], size)
    left = center_corner(images.shape[-1], size)
    return images[..., top : top + size, left : left + size]


def center_corner(length: int, size: int) -> int:
    """Return where a centered window begins; an odd rest is split as Python's `round` decides."""
    return round((length - size) / 2)


def resize_boxes(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Return each image's box (top, left, height, width) resized to `size` x `size`, bilinear."""
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    pairs = zip(arrays, boxes.tolist(), strict=True)
    return torch.stack([cut_box(Image.fromarray(array), box, size) for array, box in pairs])


def cut_box(image: Image.Image, box: Sequence[int], size: int) -> Tensor:
    """Return a box (top, left, height, width) of the image, resized; uint8 [3, size, size]."""
    top, left, tall, wide = box
    # cropped first: `resize(box=...)` would let pixels beyond the box's edge bleed in
    cropped = image.crop((left, top, left + wide, top + tall))
    return image_to_tensor(cropped.resize((size, size), Image.Resampling.BILINEAR))


def image_to_tensor(image: Image.Image) -> Tensor:
    """Return a uint8 tensor [3, height, width]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return values 0..255 scaled to 0..1, minus the channel's mean, over its deviation."""
    shape = (1, -1, 1, 1)
    scaled = images.to(torch.float32).div(255)
    return scaled.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))


def draw_corners(count: int, padding: int) -> tuple[Tensor, Tensor]:
    """Return where each padded image is cut: all (2 * padding + 1)^2 corners are equally likely."""

    def draw(rows: int) -> Tensor:
        return torch.randint(0, 2 * padding + 1, (2, rows)).T

    tops, lefts = draw_rows(draw, count).unbind(1)
    return tops, lefts


def draw_flips(count: int) -> Tensor:
    """Return a fair coin for each image."""
    return draw_rows(torch.rand, count) < 0.5


def draw_factors(count: int, spread: float) -> Tensor:
    """Return a brightness factor for each image, uniform in 1 - spread .. 1 + spread."""
    return 1 + spread * (2 * draw_rows(torch.rand, count) - 1)


def draw_boxes(heights: Tensor, widths: Tensor) -> Tensor:
    """Return a random box [images, 4] = (top, left, height, width) for every image of these sizes.

    The share of the area is uniform in SCALE, the aspect ratio log-uniform in RATIO; the first of
    ten draws that fits the image counts, and if none does, the largest centered box with an allowed
    ratio.
    """
    return fit_boxes(heights, widths, draw_rows(draw_box_numbers, len(heights)))


def draw_box_numbers(count: int) -> Tensor:
    """Return the numbers [images, 4, attempts] that decide on boxes.

    They are the share of the area, the logarithm of the aspect ratio, and two places.
    """
    shares = torch.empty(count, _ATTEMPTS).uniform_(*SCALE)
    aspects = torch.empty(count, _ATTEMPTS).uniform_(math.log(RATIO[0]), math.log(RATIO[1]))
    places = torch.rand(2, count, _ATTEMPTS)
    return torch.stack([shares, aspects, *places], dim=1)


def fit_boxes(heights: Tensor, widths: Tensor, numbers: Tensor) -> Tensor:
    """Return the boxes that such numbers mean for images of these sizes."""
    heights = heights.view(-1, 1)
    widths = widths.view(-1, 1)
    # [images, attempts] each
    shares, aspects, down, across = numbers.unbind(1)
    area = (heights * widths) * shares
    aspect = aspects.exp()
    tall = (area / aspect).sqrt_().round_().long()
    wide = (area * aspect).sqrt_().round_().long()
    fits = (tall > 0) & (tall <= heights) & (wide > 0) & (wide <= widths)
    # rounding may carry the product to the bound itself, which would be one too many
    top = torch.minimum((down * (heights - tall + 1)).long(), heights - tall)
    left = torch.minimum((across * (widths - wide + 1)).long(), widths - wide)
    # [images, attempts, 4]
    candidates = torch.stack([top, left, tall, wide], dim=2)
    first = fits.long().argmax(dim=1)
    boxes = candidates[torch.arange(len(heights)), first]
    return torch.where(fits.any(dim=1, keepdim=True), boxes, _largest_boxes(heights, widths))


def _largest_boxes(heights: Tensor, widths: Tensor) -> Tensor:
    wide = torch.minimum(widths, (heights * RATIO[1]).round().long())
    tall = torch.minimum(heights, (widths / RATIO[0]).round().long())
    return torch.cat([(heights - tall) // 2, (widths - wide) // 2, tall, wide], dim=1)
