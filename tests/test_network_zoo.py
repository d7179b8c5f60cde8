"""Importance of every kind of network equals one example at a time: plain, compiled, in 16 bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from network_zoo import EXAMPLES, ZOO, Batch, build
from torch import Tensor, nn

from mcit import ConsolidationManager, measure_importance
from mcit.gradients.per_example import PerExampleGradients
from mcit.importance import read_logits

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


def loop(model: nn.Module, batch: Batch, forward: Forward = read_logits) -> dict[str, Tensor]:
    """Mean of squared gradients, one example at a time, as anybody would write it."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    for number in range(EXAMPLES):
        if isinstance(batch, dict):
            one = {key: value[number : number + 1] for key, value in batch.items()}
        else:
            one = tuple(part[number : number + 1] for part in batch)
        logits, target = forward(model, one)
        loss = nn.functional.cross_entropy(
            logits if logits.dtype == torch.double else logits.float(), target
        )
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient.float().square()
    return {name: total / EXAMPLES for name, total in sums.items()}


def split(batch: Batch) -> list[Batch]:
    """Two batches of different size."""
    if isinstance(batch, dict):
        return [
            {key: value[rows] for key, value in batch.items()}
            for rows in (slice(3), slice(3, None))
        ]
    return [tuple(part[rows] for part in batch) for rows in (slice(3), slice(3, None))]


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, as a share of the largest value."""
    assert found.keys() == expected.keys()
    largest = max(float(value.max()) for value in expected.values())
    assert largest > 0
    return (
        max(float((found[name] - value).abs().max()) for name, value in expected.items()) / largest
    )


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert distance(found, expected) <= tolerance


def autocast(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        logits, target = read_logits(model, batch)
    return logits.float(), target


def take_step(model: nn.Module, batch: Batch) -> None:
    """Train once, so that whatever is compiled has run forward and backward; the weights stay."""
    logits, target = read_logits(model, batch)
    nn.functional.cross_entropy(logits, target).backward()
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    model.zero_grad()


@pytest.mark.parametrize("name", ZOO)
def test_every_network_equals_one_example_at_a_time(name):
    model, batch = build(name)
    assert_equal(measure_importance(model, split(batch)).values, loop(model, batch), 1e-5)


# torch has no 16-bit LSTM for this processor: the network itself cannot run
AUTOCAST = [name for name in ZOO if name != "lstm"]


@pytest.mark.parametrize("name", AUTOCAST)
def test_every_network_does_so_under_autocast(name):
    model, batch = build(name)
    found = measure_importance(model, split(batch), forward=autocast)
    assert_equal(found.values, loop(model, batch, autocast), 1e-2)


def list_modules(model: nn.Module, batch: Batch, forward: Forward) -> dict[str, list[str]]:
    """The parameters that modules serve, by the name of the module."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = PerExampleGradients(model.eval(), parameters)
    logits = partial(forward, model, batch)
    gradients.add(lambda: [nn.functional.cross_entropy(*logits(), reduction="none")])
    names = {module: name for name, module in model.named_modules()}
    return {names[module]: served for module, served in gradients.modules.items()}


@pytest.mark.parametrize("name", ["bert", "vit", "dinov2", "t5-encoder"])
def test_under_autocast_no_parameter_needs_the_whole_network(name):
    model, batch = build(name)
    for forward in (read_logits, autocast):
        served = list_modules(model, batch, forward)
        # what holds all layers: the network itself, and its encoder
        assert not any(path.count(".") < 1 for path in served), served


def convert(batch: Batch, dtype: torch.dtype) -> Batch:
    if isinstance(batch, dict):
        return {
            key: value.to(dtype) if value.is_floating_point() else value
            for key, value in batch.items()
        }
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in batch)


@pytest.mark.parametrize("name", ZOO)
def test_every_network_does_so_in_16_bits(name):
    model, batch = build(name)
    model = model.bfloat16()
    batch = convert(batch, torch.bfloat16)
    found = measure_importance(model, split(batch)).values
    assert all(value.dtype == torch.float32 for value in found.values())
    expected = loop(model, batch)
    # rounding moves the loop itself by up to 2 % on the noisiest of these networks
    rounding = distance(expected, loop(model.double(), convert(batch, torch.double)))
    assert_equal(found, expected, 1e-2 + rounding)


@pytest.mark.parametrize("name", ZOO)
def test_a_network_that_is_wrapped_by_torch_compile_is_measured_uncompiled_under_its_own_names(
    name,
):
    model, batch = build(name)
    expected = loop(model, batch)
    found = measure_importance(torch.compile(model, backend="eager"), split(batch))
    assert_equal(found.values, expected, 1e-5)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    assert_equal(measure_importance(compiled, split(batch)).values, expected, 1e-5)


COMPILED = [
    "mlp",
    "deep",
    "shared",
    "cnn",
    "conv1d",
    "rms-norm",
    "attention",
    "tied",
    "bert",
    "llama",
    "vit",
    "resnet",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_a_network_that_was_trained_compiled_is_measured_right(name):
    model, batch = build(name)
    expected = loop(model, batch)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    take_step(compiled, batch)
    assert_equal(measure_importance(compiled, split(batch)).values, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_a_network_that_was_trained_after_compile_is_measured_right_and_stays_compiled(name):
    model, batch = build(name)
    expected = loop(model, batch)
    torch._dynamo.reset()
    model.compile(backend="aot_eager")
    take_step(model, batch)
    assert_equal(measure_importance(model, split(batch)).values, expected, 1e-5)
    assert model._compiled_call_impl is not None


def test_a_compiled_layer_within_a_network_is_measured_right():
    model, batch = build("deep")
    expected = loop(model, batch)
    model[0] = torch.compile(model[0], backend="aot_eager")
    model[2].compile(backend="aot_eager")
    take_step(model, batch)
    found = measure_importance(model, split(batch))
    assert_equal(found.values, expected, 1e-5)
    ConsolidationManager(model, strength=1.0).consolidate(found)
