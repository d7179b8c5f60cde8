"""What turns features into logits: the reference's heads, and rows that are added without touching the old ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcit.parallel.global_batch import Dropout
from mcit.task import Head


class TaskHead(nn.Module):
    """Logits [batch, outputs] from features [batch, views, width].

    A choice scores every view by itself and has one output per view; the other kinds see all views at once.
    """

    def __init__(self, head: Head, width: int):
        super().__init__()
        if head.kind == "choice" and head.outputs != head.views:
            raise ValueError(
                f"head {head.name!r} chooses among its views: {head.outputs} outputs need as many views, "
                f"found {head.views}"
            )
        self.choice = head.kind == "choice"
        inputs, outputs = (width, 1) if self.choice else (head.views * width, head.outputs)
        if head.layout == "mlp":
            hidden = 2 * width  # also where two views come in
            self.layers = nn.Sequential(
                nn.Linear(inputs, hidden),
                nn.LayerNorm(hidden),
                nn.GELU(),
                nn.Linear(hidden, outputs),
            )
        elif self.choice:
            self.layers = nn.Sequential(Dropout(0.1), nn.Linear(inputs, outputs))
        else:
            self.layers = nn.Sequential(nn.Linear(inputs, outputs))
            _start(
                self.layers[-1].weight, self.layers[-1].bias
            )  # all rows start alike, first or added

    def forward(self, features: Tensor) -> Tensor:
        if self.choice:
            return self.layers(features).squeeze(-1)  # [batch, views]
        return self.layers(features.flatten(1))  # [batch, outputs]

    def grow(self, outputs: int) -> None:
        """More outputs; the old rows stay as they are, bit for bit."""
        widen(self.layers[-1], outputs)


def widen(linear: nn.Linear, outputs: int) -> None:
    """Give `linear` more outputs in place; old rows are copied, new ones are small random weights with bias 0."""
    added = outputs - linear.out_features
    if added < 0:
        raise ValueError(f"a layer of {linear.out_features} outputs cannot shrink to {outputs}")
    if added == 0:
        return
    rows = linear.weight.new_empty(added, linear.in_features)  # [added, inputs]
    bias = linear.bias.new_empty(added)
    _start(rows, bias)
    for name, new in (("weight", rows), ("bias", bias)):
        old = getattr(linear, name)
        setattr(
            linear, name, nn.Parameter(torch.cat([old.data, new]), requires_grad=old.requires_grad)
        )
    linear.out_features = outputs


def _start(rows: Tensor, bias: Tensor) -> None:
    nn.init.kaiming_uniform_(rows, nonlinearity="linear")
    nn.init.zeros_(bias)
