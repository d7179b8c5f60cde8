"""ResNet-18: its size, its three stems, its start and its features."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from mcit.models.backbone import Layer
from mcit.models.resnet import build_resnet


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("stem", "parameters"),
    [("cifar", 11_168_832), ("podnet", 11_168_832), ("imagenet", 11_176_512)],
)
def test_it_has_the_published_number_of_parameters(stem, parameters):
    assert count(build_resnet(64, stem)) == parameters


@pytest.mark.parametrize(
    ("stem", "side", "first", "last"),
    [
        ("cifar", 32, 32, 4),
        ("imagenet", 64, 16, 2),
        ("podnet", 64, 32, 4),
        ("podnet", 56, 28, 4),
        ("imagenet", 224, 56, 7),
        ("podnet", 224, 112, 14),
    ],
)
def test_a_stem_decides_the_resolution(stem, side, first, last):
    encoder = build_resnet(2, stem).eval()
    images = torch.randn(1, 3, side, side)
    maps = encoder.stem(images)
    assert maps.shape == (1, 2, first, first)
    assert encoder.blocks(maps).shape == (1, 16, last, last)
    assert encoder({"pixel_values": images}).shape == (1, 1, 16)
    assert encoder.width == 16


def test_it_starts_from_kaiming_normal_and_plain_norms():
    torch.manual_seed(0)
    for module in build_resnet(32, "imagenet").modules():
        if isinstance(module, nn.Conv2d):
            assert module.bias is None
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            # five standard errors of a deviation
            error = 5 / math.sqrt(2 * module.weight.numel())
            assert abs(module.weight.std().item() / math.sqrt(2 / fan_out) - 1) < error
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def run_plainly(weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """The network in eval mode, written out with functions and weights only."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        keys = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(weights[f"{name}.{key}"] for key in keys), eps=1e-5)

    x = F.relu(norm(F.conv2d(images, weights["stem.0.weight"], padding=1), "stem.1"))
    for index in range(8):
        name, stride = f"blocks.{index}", 2 if index in (2, 4, 6) else 1
        y = F.conv2d(x, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        y = F.conv2d(F.relu(norm(y, f"{name}.norm1")), weights[f"{name}.conv2.weight"], padding=1)
        if stride == 2:
            x = norm(
                F.conv2d(x, weights[f"{name}.shortcut.0.weight"], stride=2),
                f"{name}.shortcut.1",
            )
        x = F.relu(norm(y, f"{name}.norm2") + x)
    return x.flatten(2).mean(2)


def test_it_computes_what_the_architecture_says():
    torch.manual_seed(0)
    encoder = build_resnet(4)
    images = torch.randn(6, 3, 32, 32)
    # moves the running statistics away from their start
    encoder({"pixel_values": images})
    encoder.eval()
    expected = run_plainly(encoder.state_dict(), images)
    assert_close(encoder({"pixel_values": images})[:, 0], expected, atol=1e-5, rtol=1e-4)


def test_channels_last_changes_the_layout_and_not_the_result():
    torch.manual_seed(0)
    plain, other = build_resnet(8), build_resnet(8, channels_last=True)
    other.load_state_dict(plain.state_dict())
    batch = {"pixel_values": torch.randn(4, 3, 32, 32)}
    gradients = []
    for encoder in (plain, other):
        encoder(batch).pow(2).sum().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters()])
    assert other.blocks[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert_close(plain.eval()(batch), other.eval()(batch), atol=1e-4, rtol=1e-4)
    for first, second in zip(*gradients, strict=True):
        assert_close(first, second, atol=1e-3 * first.abs().max().item(), rtol=1e-3)


def test_every_module_may_be_hooked():
    encoder, seen = build_resnet(2), []
    for module in encoder.modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d)):
            module.register_full_backward_hook(lambda module, inputs, outputs: seen.append(module))
    encoder({"pixel_values": torch.randn(2, 3, 32, 32, requires_grad=True)}).sum().backward()
    # 20 convolutions, 20 norms
    assert len(seen) == 40


def test_a_stem_or_width_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"unknown stem 'vgg' \(stems: cifar, imagenet, podnet\)"):
        build_resnet(64, "vgg")
    with pytest.raises(ValueError, match="must be positive, found 0"):
        build_resnet(0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_scoring_works_in_place_and_gives_the_same_numbers(channels_last):
    torch.manual_seed(0)
    encoder = build_resnet(8, channels_last=channels_last).eval()
    batch = {"pixel_values": torch.randn(3, 3, 32, 32)}
    expected = encoder(batch).detach()
    with torch.no_grad():
        assert torch.equal(encoder(batch), expected)
    # what it was given is as it was
    assert torch.equal(encoder(batch).detach(), expected)


def test_a_width_that_the_layout_does_not_suit_keeps_the_default():
    narrow = build_resnet(4, channels_last=True)
    assert narrow.memory_format == torch.contiguous_format
    assert narrow.blocks[0].conv1.weight.is_contiguous()


def test_layers_are_the_stem_and_the_blocks_of_four_stages():
    layers = build_resnet(2).layers()
    assert layers[0] == Layer("stem", ("stem.",), group="stem", role="embeddings")
    assert [layer.name for layer in layers[1:3]] == ["stage 1, block 1", "stage 1, block 2"]
    groups = [layer.group for layer in layers[1:]]
    assert groups == [f"stage {stage}" for stage in (1, 1, 2, 2, 3, 3, 4, 4)]
