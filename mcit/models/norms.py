"""Norms that stay as they are: statistics of BatchNorm, and weights of any norm."""

from __future__ import annotations

from torch import nn

BATCH_NORMS = nn.modules.batchnorm._BatchNorm


def freeze_norms(module: nn.Module) -> None:
    """Let no weight of a BatchNorm train; for `begin_task`, before an optimizer is made."""
    for each in module.modules():
        if isinstance(each, BATCH_NORMS):
            each.requires_grad_(False)


def hold_statistics(module: nn.Module) -> None:
    """Put every BatchNorm into eval mode; for `begin_fit`, when the network is in train mode."""
    for each in module.modules():
        if isinstance(each, BATCH_NORMS):
            each.eval()
