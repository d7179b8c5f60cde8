"""Importance the slow way: one example and one backward at a time, in float64, by its formulas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


def score_one(
    z: Tensor, y: Tensor, score: str, reversal: str = "positives", norm: str = "l2"
) -> Tensor:
    """The score of one example's logits [outputs]; `y` is a class id or soft labels [outputs]."""
    if score == "output_norm":
        length = (z * z).sum()
        return length if norm == "squared_l2" else length.sqrt()
    if not y.is_floating_point():
        return _score_class(z, int(y), score)
    y = y.to(z.dtype)
    if score == "plain":
        return -(y * logsigmoid(z) + (1 - y) * logsigmoid(-z)).sum()
    if score == "log_odds":
        return (y * z).sum()
    if reversal == "literal":
        return -(y * logsigmoid(-z) + (1 - y) * logsigmoid(z)).sum()
    if reversal == "positives":
        return -(y * logsigmoid(-z)).sum()
    return -(y / y.sum() * (-z).log_softmax(0)).sum() if float(y.sum()) > 0 else z.sum() * 0


def _score_class(z: Tensor, label: int, score: str) -> Tensor:
    if score == "plain":
        return z.exp().sum().log() - z[label]
    if score == "reversed":
        return (-z).exp().sum().log() + z[label]
    others = torch.cat([z[:label], z[label + 1 :]])
    return z[label] - others.exp().sum().log()


def double(batch: Any) -> Any:
    """The same batch in float64."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {key: double(value) for key, value in batch.items()}
    return tuple(double(part) for part in batch)


def read_pair(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    output = model(batch[0])
    return output, batch[1]


def one_at_a_time(
    model: nn.Module,
    examples: Iterable[Any],
    score: str = "plain",
    *,
    forward: Forward = read_pair,
    labels: str = "true",
    **form: str,
) -> dict[str, Tensor]:
    """Mean over examples, each a batch of one, of squared (output_norm: absolute) gradients."""
    model = copy.deepcopy(model).double().eval()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for example in examples:
        logits, target = forward(model, double(example))
        for weight, value in _weighted_scores(logits, target, score, labels, form):
            found = torch.autograd.grad(
                value, list(parameters.values()), retain_graph=True, allow_unused=True
            )
            for name, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    sums[name] += weight * (
                        gradient.abs() if score == "output_norm" else gradient * gradient
                    )
        count += 1
    return {name: total / count for name, total in sums.items()}


def _weighted_scores(
    logits: Tensor, target: Tensor, score: str, labels: str, form: Mapping[str, str]
):
    (z,) = logits
    (y,) = target
    if labels == "true":
        return [(1.0, score_one(z, y, score, **form))]
    if labels == "predicted":
        y = (z > 0).to(z.dtype) if y.is_floating_point() else z.argmax()
        return [(1.0, score_one(z, y, score, **form))]
    if not y.is_floating_point():
        chance = z.detach().softmax(0)
        return [
            (float(p), score_one(z, torch.tensor(k), score, **form)) for k, p in enumerate(chance)
        ]
    chance = z.detach().sigmoid()
    result = []
    for code in range(2 ** len(z)):
        drawn = torch.tensor([float(code >> k & 1) for k in range(len(z))], dtype=z.dtype)
        weight = (drawn * chance + (1 - drawn) * (1 - chance)).prod()
        result.append((float(weight), score_one(z, drawn, score, **form)))
    return result


def split(batch: Any, examples: int) -> list[Any]:
    """The examples of a batch whose tensors have their rows example by example."""

    def pick(part: Any, index: int) -> Any:
        if isinstance(part, Tensor):
            rows = len(part) // examples
            return part[index * rows : (index + 1) * rows]
        if isinstance(part, Mapping):
            return {key: pick(value, index) for key, value in part.items()}
        return tuple(pick(value, index) for value in part)

    return [pick(batch, index) for index in range(examples)]


def assert_same_importance(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float = 1e-5,
    zero: tuple[str, ...] = (),
) -> None:
    """Equal within `tolerance` of each tensor's maximum; names ending in one of `zero` are tiny."""
    assert found.keys() == expected.keys()
    largest = max(float(value.max()) for value in expected.values())
    for name, truth in expected.items():
        value = found[name].double()
        assert value.shape == truth.shape, name
        if zero and name.endswith(zero):
            assert float(value.abs().max()) <= 1e-6 * largest, (
                f"{name} should be zero, found {value.max():.3g}"
            )
            continue
        error = float((value - truth.double()).abs().max())
        top = float(truth.max())
        assert error <= tolerance * top, (
            f"{name} is off by {error:.3g} where the maximum is {top:.3g}"
        )
