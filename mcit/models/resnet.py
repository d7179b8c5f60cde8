"""ResNet-18 as class-incremental learning uses it: three stems, any base width.

He et al., Deep residual learning for image recognition, CVPR 2016, https://arxiv.org/abs/1512.03385
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mcit.models.backbone import Backbone, Layer
from mcit.parallel.global_batch import BatchNorm2d
from mcit.task import Batch

Stem = Literal["cifar", "imagenet", "podnet"]

_BLOCKS_PER_STAGE = 2
# channels of the stages in base widths
_GROWTH = (1, 2, 4, 8)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, a 1x1 convolution where the shape changes."""

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
            # never in place: per-example gradients hook these modules, and a hook's view must not
            # be overwritten
            inner = torch.relu(self.norm1(self.conv1(x)))
            return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))
        # the same numbers; what is scored in place takes some 5 to 10 % less time
        inner = self.norm1(self.conv1(x)).relu_()
        return self.norm2(self.conv2(inner)).add_(self.shortcut(x)).relu_()


class ResNet(Backbone):
    """Images in, features [batch, 1, 8 * base width] out: the spatial mean of the last stage.

    A bottleneck makes fewer of them by a linear layer, which is a 1x1 convolution before the mean;
    these may be negative.
    """

    reads = frozenset({"images"})
    lora_targets = ("conv1", "conv2")
    pretrained = False

    def __init__(
        self,
        width: int = 64,
        stem: Stem = "cifar",
        channels_last: bool = False,
        bottleneck: int | None = None,
    ):
        super().__init__()
        # what it is built again with
        self.settings: dict[str, Any] = {
            "width": width,
            "stem": stem,
            "channels_last": channels_last,
        }
        self.stem = _build_stem(stem, width)
        blocks = []
        channels = width
        for stage, growth in enumerate(_GROWTH):
            for index in range(_BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(channels, growth * width, stride))
                channels = growth * width
        self.blocks = nn.Sequential(*blocks)
        self.width = channels
        self.bottleneck: nn.Module = nn.Identity()
        if bottleneck is not None:
            self.settings["bottleneck"] = bottleneck
            self.bottleneck = nn.Linear(channels, bottleneck)
            self.width = bottleneck
        # Trap: on CPUs, widths that are not a multiple of a vector's 8 numbers corrupt memory in
        # this layout (torch 2.13, oneDNN: `free(): invalid next size` in the backward pass).
        self.memory_format = torch.contiguous_format
        if channels_last and width % 8 == 0:
            self.memory_format = torch.channels_last
        self.apply(_initialize)
        # the annotations of `Module.to` lack what it takes
        self.to(memory_format=self.memory_format)  # type: ignore[call-overload]

    def forward(self, batch: Batch) -> Tensor:
        # [batch, 3, height, width]
        images = batch["pixel_values"].contiguous(memory_format=self.memory_format)
        maps = self.blocks(self.stem(images))
        return self.bottleneck(maps.mean(dim=(2, 3))).unsqueeze(1)  # [batch, 1, features]

    def layers(self) -> Sequence[Layer]:
        found = [Layer("stem", ("stem.",), group="stem", role="embeddings")]
        for number in range(len(self.blocks)):
            stage, block = divmod(number, _BLOCKS_PER_STAGE)
            group = f"stage {stage + 1}"
            found.append(Layer(f"{group}, block {block + 1}", (f"blocks.{number}.",), group))
        if "bottleneck" in self.settings:
            found.append(Layer("bottleneck", ("bottleneck.",), group="bottleneck", role="top"))
        return found


def build_resnet(
    width: int = 64,
    stem: Stem = "cifar",
    channels_last: bool = False,
    bottleneck: int | None = None,
) -> ResNet:
    """Return a new ResNet-18; its features have eight times the channels of the first stage."""
    if stem not in get_args(Stem):
        raise ValueError(f"unknown stem {stem!r} (stems: {', '.join(get_args(Stem))})")
    if width < 1:
        raise ValueError(f"the base width of a ResNet must be positive, found {width}")
    return ResNet(width, stem, channels_last, bottleneck)


def _build_stem(stem: Stem, width: int) -> nn.Sequential:
    """`cifar` keeps the resolution, `imagenet` quarters it, `podnet` (3x3 and pool) halves it."""
    if stem == "imagenet":
        convolution = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    else:
        convolution = nn.Conv2d(3, width, 3, stride=1, padding=1, bias=False)
    layers = nn.Sequential(convolution, BatchNorm2d(width), nn.ReLU())
    if stem != "cifar":
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return layers


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
