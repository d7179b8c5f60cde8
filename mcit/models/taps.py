"""Taps: a 1x1 convolution beside every 3x3 one, as an addition to the middle of its kernel.

W_effective = W + pad(A), with W [out, in, 3, 3] and A [out, in] zero at the start: one convolution
runs instead of two, and folding A into W changes nothing that the network computes. The structure
is SSRE's (mcit/methods/ssre.py).
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

KERNEL = (3, 3)


class CenterTap(nn.Module):
    """What is added to the middle of a kernel."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.added = nn.Parameter(torch.zeros_like(weight[:, :, 0, 0]).contiguous())

    def forward(self, weight: Tensor) -> Tensor:
        return weight + F.pad(self.added[:, :, None, None], (1, 1, 1, 1))


def add_taps(network: nn.Module) -> None:
    """Put a tap on every 3x3 convolution."""
    for convolution in find_convolutions(network):
        tap = CenterTap(convolution.weight.detach())
        parametrize.register_parametrization(convolution, "weight", tap)


def fold_taps(network: nn.Module) -> None:
    """Add the taps to the weights, which stay the same objects, and remove them."""
    for convolution in find_convolutions(network):
        if not parametrize.is_parametrized(convolution, "weight"):
            continue
        folded = convolution.weight.detach().clone()
        parametrize.remove_parametrizations(convolution, "weight", leave_parametrized=False)
        with torch.no_grad():
            convolution.weight.copy_(folded)
        if convolution.bias is not None:
            # after the weight, as before: an optimizer's state goes by the order of parameters
            bias = cast(nn.Parameter, convolution.bias)
            del convolution.bias
            convolution.register_parameter("bias", bias)


def find_convolutions(network: nn.Module) -> list[nn.Conv2d]:
    """Return the 3x3 convolutions, bottom first."""
    return [
        module
        for module in network.modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size == KERNEL
    ]
