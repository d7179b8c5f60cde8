"""`mcit bench consolidation`: penalty and importance against plain implementations.

Everything is a ratio of times measured in turn within one run, the best of several rounds each, so
that a busy machine slows both sides alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import ViltConfig, ViltModel
from transformers.models.vilt.modeling_vilt import ViltLayer

from mcit.consolidation import ConsolidationManager
from mcit.estimator import Estimator, score_examples
from mcit.gradients.per_example import PerExampleGradients
from mcit.models.resnet import build_resnet

GOALS = {
    "penalty_speedup": ("at least", 8.0),
    "penalty_over_floor": ("at most", 2.0),
    "importance_over_pass": ("at most", 2.0),
}


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` takes smaller models, whose ratios are less telling."""
    torch.manual_seed(0)
    result = {
        "threads": torch.get_num_threads(),
        "quick": quick,
        **measure_penalty(1 if quick else 6),
    }
    over_pass, one_at_a_time = {}, {}
    for name, (network, inputs) in _importance_cases(quick).items():
        over_pass[name], one_at_a_time[name] = measure_importance_pass(network, inputs)
    return {**result, "importance_over_pass": over_pass, "one_at_a_time_over_ours": one_at_a_time}


def measure_penalty(layers: int) -> dict[str, float]:
    """One penalty step on a ViLT: autograd loop / ours, ours / bare memory traffic, memory."""
    config = ViltConfig(num_hidden_layers=layers)
    model = ViltModel(config)
    parameters = dict(model.named_parameters())
    manager = ConsolidationManager(parameters.items(), strength=100.0)
    manager.consolidate({name: torch.rand_like(p) for name, p in parameters.items()})
    bytes_one = manager.bytes_held()
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(0.01)
    manager.consolidate({name: torch.rand_like(p) for name, p in parameters.items()})
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter)
    autograd, ours, floor = _race(
        lambda: _autograd_penalty(parameters, manager),
        manager.add_gradient_,
        lambda: _touch(parameters, manager),
    )
    weights = sum(p.numel() for p in parameters.values())
    return {
        "penalty_parameters": weights,
        "penalty_seconds": ours,
        "penalty_speedup": autograd / ours,
        "penalty_over_floor": ours / floor,
        "bytes_per_weight": manager.bytes_held() / weights,
        "bytes_grow_with_tasks": manager.bytes_held() != bytes_one,
    }


def measure_importance_pass(network: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """Exact per-example squares / a plain pass, and one example at a time / ours."""
    network.eval()
    target = torch.arange(len(inputs)) % 10
    gradients = PerExampleGradients(network, dict(network.named_parameters()))
    place = torch.arange(len(inputs))
    gradients.add(
        lambda: score_examples(Estimator(), network(inputs), target, place)
    )  # the audit is not timed

    def add() -> None:
        gradients.add(lambda: score_examples(Estimator(), network(inputs), target, place))

    plain, ours, singly = _race(
        lambda: _pass(network, inputs, target),
        add,
        lambda: _square_one_at_a_time(network, inputs, target),
    )
    return ours / plain, singly / ours


def print_result(result: dict[str, Any]) -> None:
    """The table, each figure with its goal and whether it was met."""
    console = Console(highlight=False)
    table = Table(
        title=f"mcit bench consolidation, {result['threads']} threads", title_justify="left"
    )
    for column in ("measured", "ratio", "goal", "met"):
        table.add_column(column, justify="left" if column == "measured" else "right")
    millions = result["penalty_parameters"] / 1e6
    ours = f"{1e3 * result['penalty_seconds']:.0f} ms"
    rows: list[tuple[str, str, str | None]] = [
        (
            f"penalty step, ViLT of {millions:.0f}M: autograd loop / ours ({ours})",
            "penalty_speedup",
            None,
        ),
        ("penalty step: ours / bare memory traffic", "penalty_over_floor", None),
    ]
    rows += [
        (f"importance, {n}: exact per example / plain pass", "importance_over_pass", n)
        for n in result["importance_over_pass"]
    ]
    rows += [
        (f"importance, {n}: one example at a time / ours", "one_at_a_time_over_ours", n)
        for n in result["one_at_a_time_over_ours"]
    ]
    for label, key, name in rows:
        value = result[key] if name is None else result[key][name]
        direction, goal = GOALS.get(key, ("", None))
        met = (
            ""
            if goal is None
            else ("yes" if (value >= goal if direction == "at least" else value <= goal) else "NO")
        )
        table.add_row(label, f"{value:.2f}", "" if goal is None else f"{direction} {goal:g}", met)
    grows = "grows with" if result["bytes_grow_with_tasks"] else "independent of"
    held = f"{result['bytes_per_weight']:.0f} B"
    table.add_row(
        "memory per protected weight (importance, anchor)", held, f"{grows} the number of tasks", ""
    )
    console.print(table)
    missed = [row for row in rows if _is_missed(result, row[1], row[2])]
    if missed:
        console.print(
            "Goals missed on this run: "
            + "; ".join(row[0] for row in missed)
            + ". Matrices whose layer sees few positions are bound by memory: every example's "
            "gradient must be "
            "written and read once, which a plain pass never does.",
            soft_wrap=True,
        )


class BlockStack(nn.Module):
    """ViLT's own transformer layers with a classifier on the first token."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        config = ViltConfig(
            hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width
        )
        self.layers = nn.ModuleList(ViltLayer(config) for _ in range(layers))
        self.classifier = nn.Linear(width, 10)

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = layer(states)
            states = states[0] if isinstance(states, tuple) else states
        return self.classifier(states[:, 0])


class ImageClassifier(nn.Module):
    """ResNet-18 with a linear classifier."""

    def __init__(self, width: int):
        super().__init__()
        self.encoder = build_resnet(width=width, stem="cifar")
        self.classifier = nn.Linear(self.encoder.width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(self.encoder({"pixel_values": pixels}).flatten(1))


def _importance_cases(quick: bool) -> dict[str, tuple[nn.Module, Tensor]]:
    width, layers, batch = (128, 2, 8) if quick else (768, 2, 16)
    cases: dict[str, tuple[nn.Module, Tensor]] = {
        "vilt": (BlockStack(width, layers), torch.randn(batch, 185, width))
    }  # 40 words, [CLS] and 12x12 patches
    cases["resnet18"] = (
        ImageClassifier(16 if quick else 64),
        torch.randn(batch if quick else 32, 3, 32, 32),
    )
    return cases


def _race(*contenders: Callable[[], object], rounds: int = 5) -> list[float]:
    """The best time of each, in turns."""
    best = [float("inf")] * len(contenders)
    for contender in contenders:
        contender()
    for _ in range(rounds):
        for number, contender in enumerate(contenders):
            start = time.perf_counter()
            contender()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def _autograd_penalty(parameters: dict[str, nn.Parameter], manager: ConsolidationManager) -> None:
    """The field's usual loop: the penalty as a loss term."""
    loss = torch.zeros(())
    for name, parameter in parameters.items():
        loss = loss + (manager.importance[name] * (parameter - manager.anchor[name]) ** 2).sum()
    (manager.strength / 2 * loss).backward()


@torch.no_grad()
def _touch(parameters: dict[str, nn.Parameter], manager: ConsolidationManager) -> None:
    """Read weight, anchor, importance and gradient once, write the gradient once."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            parameter.grad.add_(parameter)
        manager.anchor[name].sum()
        manager.importance[name].sum()


def _pass(network: nn.Module, inputs: Tensor, target: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    F.cross_entropy(network(inputs), target).backward()


def _square_one_at_a_time(network: nn.Module, inputs: Tensor, target: Tensor) -> None:
    squares = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for number in range(len(inputs)):
        network.zero_grad(set_to_none=True)
        F.cross_entropy(
            network(inputs[number : number + 1]), target[number : number + 1]
        ).backward()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                squares[name] += parameter.grad**2


def _is_missed(result: dict[str, Any], key: str, name: str | None) -> bool:
    direction, goal = GOALS.get(key, ("", None))
    value = result[key] if name is None else result[key][name]
    return goal is not None and (value < goal if direction == "at least" else value > goal)
