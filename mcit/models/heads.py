"""Heads that turn features into logits, and rows that are added without touching the old ones."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mcit.parallel.global_batch import Dropout
from mcit.task import Head


class TaskHead(nn.Module):
    """Logits [batch, outputs] from features [batch, views, width].

    A choice scores every view by itself, one output each; other kinds see all views at once.
    """

    def __init__(self, head: Head, width: int):
        super().__init__()
        self.choice = head.kind == "choice"
        if self.choice and head.outputs != head.views:
            raise ValueError(
                f"head {head.name!r} chooses among its views: {head.outputs} outputs need as many "
                f"views, found {head.views}"
            )
        inputs = width if self.choice else head.views * width
        outputs = 1 if self.choice else head.outputs
        if head.layout == "mlp":
            # as in CLiMB, also for two views
            hidden = 2 * width
            self.layers = nn.Sequential(
                nn.Linear(inputs, hidden),
                nn.LayerNorm(hidden),
                nn.GELU(),
                nn.Linear(hidden, outputs),
            )
        elif head.layout == "projector":
            self.layers = nn.Sequential(
                nn.Linear(inputs, head.hidden), nn.GELU(), nn.Linear(head.hidden, outputs)
            )
        elif self.choice:
            self.layers = nn.Sequential(Dropout(0.1), nn.Linear(inputs, outputs))
        else:
            linear = nn.Linear(inputs, outputs)
            # all rows start the same way, first or added
            _initialize_rows(linear.weight, linear.bias)
            self.layers = nn.Sequential(linear)

    def forward(self, features: Tensor) -> Tensor:
        if self.choice:
            return self.layers(features).squeeze(-1)  # [batch, views]
        return self.layers(features.flatten(1))  # [batch, outputs]

    def grow(self, outputs: int) -> None:
        """Add outputs; the old rows stay as they are, bit for bit."""
        widen(cast(nn.Linear, self.layers[-1]), outputs)


def widen(linear: nn.Linear, outputs: int) -> None:
    """Add outputs in place: old rows are copied, new ones are small random weights with bias 0."""
    added = outputs - linear.out_features
    if added < 0:
        raise ValueError(f"a layer of {linear.out_features} outputs cannot shrink to {outputs}")
    if added == 0:
        return
    rows = linear.weight.new_empty(added, linear.in_features)  # [added, inputs]
    bias = linear.bias.new_empty(added)
    _initialize_rows(rows, bias)
    for name, new in (("weight", rows), ("bias", bias)):
        old = getattr(linear, name)
        joined = torch.cat([old.data, new])
        setattr(linear, name, nn.Parameter(joined, requires_grad=old.requires_grad))
    linear.out_features = outputs


def _initialize_rows(rows: Tensor, bias: Tensor) -> None:
    nn.init.kaiming_uniform_(rows, nonlinearity="linear")
    nn.init.zeros_(bias)
