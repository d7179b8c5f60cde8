"""The closed form of each layer, against autograd on one example at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mcit.gradients.contributions import Rows, group_rows, rule_for


def images(rows: int, channels: int, size: tuple[int, int] = (7, 6)) -> Tensor:
    return torch.randn(rows, channels, *size, dtype=torch.float64)


def ids(*shape: int) -> Tensor:
    return torch.randint(5, shape)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), lambda n: rows(n, 3)),
    "linear, no bias": (lambda: nn.Linear(3, 4, bias=False), lambda n: rows(n, 3)),
    "linear on a sequence": (lambda: nn.Linear(3, 4), lambda n: rows(n, 5, 3)),
    "linear on a grid": (lambda: nn.Linear(3, 4), lambda n: rows(n, 2, 5, 3)),
    "linear with one output": (lambda: nn.Linear(3, 1), lambda n: rows(n, 4, 3)),
    "conv": (lambda: nn.Conv2d(4, 6, 3), lambda n: images(n, 4)),
    "conv, stride and padding": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1),
        lambda n: images(n, 4),
    ),
    "conv, uneven everything": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
        lambda n: images(n, 4),
    ),
    "conv, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), lambda n: images(n, 4)),
    "conv, depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), lambda n: images(n, 4)),
    "conv, depthwise with multiplier": (
        lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2),
        lambda n: images(n, 4),
    ),
    "conv, padding same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), lambda n: images(n, 4)),
    "conv, padding same, even kernel": (
        lambda: nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(1, 2)),
        lambda n: images(n, 4),
    ),
    "conv, padding valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), lambda n: images(n, 4)),
    "conv 1x1": (lambda: nn.Conv2d(4, 6, 1), lambda n: images(n, 4)),
    "conv 1x1, stride": (lambda: nn.Conv2d(4, 6, 1, stride=(2, 3)), lambda n: images(n, 4)),
    "conv 1x1, padding": (lambda: nn.Conv2d(4, 6, 1, padding=1, stride=2), lambda n: images(n, 4)),
    "conv 1x1, groups, same": (
        lambda: nn.Conv2d(4, 6, 1, groups=2, padding="same"),
        lambda n: images(n, 4),
    ),
    "conv with one position": (lambda: nn.Conv2d(4, 6, (7, 6)), lambda n: images(n, 4)),
    "conv, groups, one position": (
        lambda: nn.Conv2d(4, 6, (7, 6), groups=2),
        lambda n: images(n, 4),
    ),
    "embedding": (lambda: nn.Embedding(5, 3), lambda n: ids(n, 8)),
    "embedding of single ids": (lambda: nn.Embedding(5, 3), lambda n: ids(n)),
    "embedding of a grid": (lambda: nn.Embedding(5, 3), lambda n: ids(n, 2, 4)),
    "embedding, padding": (lambda: nn.Embedding(5, 3, padding_idx=1), lambda n: ids(n, 8)),
    "embedding, padding counted from the end": (
        lambda: nn.Embedding(5, 3, padding_idx=-1),
        lambda n: ids(n, 8),
    ),
    "layer norm": (lambda: nn.LayerNorm(3), lambda n: rows(n, 3)),
    "layer norm on a sequence": (lambda: nn.LayerNorm(3, eps=1e-2), lambda n: rows(n, 5, 3)),
    "layer norm over several dimensions": (
        lambda: nn.LayerNorm((4, 3)),
        lambda n: rows(n, 5, 4, 3),
    ),
    "layer norm over the whole example": (lambda: nn.LayerNorm((4, 3)), lambda n: rows(n, 4, 3)),
    "layer norm without bias": (lambda: nn.LayerNorm(3, bias=False), lambda n: rows(n, 5, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4, eps=1e-2), lambda n: images(n, 4)),
    "group norm on vectors": (lambda: nn.GroupNorm(2, 6), lambda n: rows(n, 6)),
    "batch norm on vectors": (lambda: nn.BatchNorm1d(3).eval(), lambda n: rows(n, 3)),
    "batch norm on sequences": (
        lambda: nn.BatchNorm1d(3, eps=1e-2).eval(),
        lambda n: rows(n, 3, 5),
    ),
    "batch norm on images": (lambda: nn.BatchNorm2d(4).eval(), lambda n: images(n, 4)),
}


def prepare(name: str, count: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(len(name))
    build, draw = LAYERS[name]
    layer = build().double()
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return layer, draw(count)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("layout", ["consecutive", "blocks"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_rule_equals_autograd_example_by_example(name, layout, absolute):
    # one use with a row per example, one with two
    examples = 3
    uses = (1, 2)
    layer, _ = prepare(name, 1)
    draw = LAYERS[name][1]
    inputs = [draw(k * examples) for k in uses]
    outputs = [layer(x) for x in inputs]
    gradients = [torch.randn_like(y) for y in outputs]
    parts = [
        (group_rows(x, examples, layout), group_rows(g, examples, layout))
        for x, g in zip(inputs, gradients, strict=True)
    ]
    contributions = rule_for(layer)(layer, parts)
    weights = torch.randn(examples, dtype=torch.float64)
    for key, parameter in layer.named_parameters():
        single = []
        for example in range(examples):
            chosen = [torch.zeros_like(g) for g in gradients]
            for mask, gradient, k in zip(chosen, gradients, uses, strict=True):
                start = (
                    slice(example * k, (example + 1) * k)
                    if layout == "consecutive"
                    else slice(example, None, examples)
                )
                mask[start] = gradient[start]
            single.append(torch.autograd.grad(outputs, parameter, chosen, retain_graph=True)[0])
        expected = torch.stack(single)
        total = torch.full_like(parameter, 0.25)
        contributions[key].add_to(total.data, absolute)
        assert_close(total.data, 0.25 + (expected.abs() if absolute else expected.square()).sum(0))
        weighed, mass = contributions[key].weigh(weights)
        assert_close(weighed, torch.tensordot(weights, expected, dims=1))
        assert bool((mass >= weighed.abs() - 1e-9).all())


def test_layers_beyond_the_rules_get_none():
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    others = [
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(2, 2, 3),
        nn.Embedding(4, 2, max_norm=1.0),
        nn.Embedding(4, 2, scale_grad_by_freq=True),
        nn.Embedding(4, 2, sparse=True),
        # in train mode
        nn.BatchNorm2d(2),
        nn.BatchNorm2d(2, track_running_stats=False).eval(),
        nn.LSTM(2, 2),
        nn.MultiheadAttention(2, 1),
        Doubled(2, 2),
    ]
    assert [rule_for(layer) for layer in others] == [None] * len(others)


def test_large_layers_are_formed_in_pieces_with_the_same_result(monkeypatch):
    import mcit.gradients.contributions

    torch.manual_seed(0)
    layer = nn.Linear(6, 5).double()
    x = rows(7, 4, 6)
    g = rows(7, 4, 5)
    totals = []
    for chunk in (1 << 22, 1, 60):
        monkeypatch.setattr(mcit.gradients.contributions, "CHUNK", chunk)
        total = torch.zeros_like(layer.weight.data)
        rule = rule_for(layer)(layer, [(x[:, None], g[:, None])])["weight"]
        rule.add_to(total, False)
        totals.append((total, *rule.weigh(torch.arange(7.0, dtype=torch.float64))))
    for other in totals[1:]:
        for a, b in zip(totals[0], other, strict=True):
            assert_close(a, b)


def test_a_repeated_id_is_added_up_before_it_is_squared():
    # one example, one row, three places
    gradient = torch.tensor([[[1.0], [2.0], [5.0]]])[:, None]
    total = torch.zeros(4, 1)
    Rows([(torch.tensor([[[2, 2, 0]]]), gradient)], 4).add_to(total, False)
    assert total.flatten().tolist() == [25.0, 0.0, 9.0, 0.0]
