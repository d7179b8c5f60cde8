"""ResNet-18 as class-incremental learning uses it: three stems, any base width, features instead of logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mcit.parallel.global_batch import BatchNorm2d

Stem = Literal["cifar", "imagenet", "podnet"]

_BLOCKS_PER_STAGE = 2
_GROWTH = (1, 2, 4, 8)  # channels of the stages in base widths


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != outputs:
            convolution = nn.Conv2d(channels, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            # never in place: per-example gradients hook these modules, and a hook's view must not be overwritten
            inner = torch.relu(self.norm1(self.conv1(x)))
            return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))
        # the same numbers; what is scored in place takes some 5 to 10 % less time
        inner = self.norm1(self.conv1(x)).relu_()
        return self.norm2(self.conv2(inner)).add_(self.shortcut(x)).relu_()


class ResNet(nn.Module):
    """Images in, features [batch, 1, 8 * base width] out: the spatial mean of the last stage."""

    def __init__(self, width: int = 64, stem: Stem = "cifar", channels_last: bool = False):
        super().__init__()
        self.stem = _build_stem(stem, width)
        channels, blocks = width, []
        for stage, growth in enumerate(_GROWTH):
            for index in range(_BLOCKS_PER_STAGE):
                blocks.append(
                    BasicBlock(channels, growth * width, stride=2 if stage and not index else 1)
                )
                channels = growth * width
        self.blocks = nn.Sequential(*blocks)
        self.width = channels  # of the features
        # Trap: on CPUs, widths that are no multiple of a vector's 8 numbers corrupt memory in this layout (torch 2.13,
        # oneDNN: `free(): invalid next size` in the backward pass of 4 channels).
        usable = channels_last and width % 8 == 0
        self.memory_format = torch.channels_last if usable else torch.contiguous_format
        self.apply(_initialize)
        self.to(memory_format=self.memory_format)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        images = batch["pixel_values"].contiguous(
            memory_format=self.memory_format
        )  # [batch, 3, height, width]
        maps = self.blocks(self.stem(images))
        return maps.mean(dim=(2, 3)).unsqueeze(1)  # [batch, 1, features]


def build_resnet(width: int = 64, stem: Stem = "cifar", channels_last: bool = False) -> ResNet:
    """A fresh ResNet-18 encoder; `width` counts the channels of its first stage, the features have eight times that."""
    if stem not in get_args(Stem):
        raise ValueError(f"unknown stem {stem!r} (stems: {', '.join(get_args(Stem))})")
    if width < 1:
        raise ValueError(f"the base width of a ResNet must be positive, found {width}")
    return ResNet(width, stem, channels_last)


def _build_stem(stem: Stem, width: int) -> nn.Sequential:
    """`cifar` keeps the resolution, `imagenet` quarters it, `podnet` (3x3 convolution and pool) halves it."""
    kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
    convolution = nn.Conv2d(3, width, kernel, stride, padding=kernel // 2, bias=False)
    pool = [] if stem == "cifar" else [nn.MaxPool2d(3, stride=2, padding=1)]
    return nn.Sequential(convolution, BatchNorm2d(width), nn.ReLU(), *pool)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
