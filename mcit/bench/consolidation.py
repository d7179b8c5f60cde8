"""`mcit bench consolidation`: penalty and importance against plain implementations.

Everything is a ratio of times measured in turn within one run, the best of several rounds each, so
that a busy machine slows both sides alike, or of peaks of memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from transformers import ViltConfig, ViltModel
from transformers.models.vilt.modeling_vilt import ViltLayer

from mcit.bench.measuring import Goal, is_met, peak_bytes, race
from mcit.checkpoint import pack
from mcit.consolidation import ConsolidationManager
from mcit.estimator import Estimator, score_examples
from mcit.gradients.per_example import PerExampleGradients
from mcit.importance import measure_importance
from mcit.models.resnet import build_resnet

GOALS: dict[str, Goal] = {
    "penalty_speedup": ("at least", 10.0),
    "penalty_speedup_channels_last": ("at least", 8.0),
    "penalty_over_floor": ("at most", 2.0),
    "penalty_over_kernel": ("at most", 1.7),
    "penalty_over_kernel_bf16": ("at most", 1.3),
    "importance_over_pass": ("at most", 2.0),
    "importance_first_over_pass": ("at most", 1.5),
    "importance_over_best_rival": ("at most", 0.9),
    "importance_peak_over_training": ("at most", 1.0),
    "growth": ("at most", 1.2),
}
IMPORTANCE_LABELS = {
    "importance_over_pass": "exact per-example squares / plain forward and backward pass",
    "one_at_a_time_over_ours": "one example at a time / ours",
    "importance_first_over_pass": "one batch, audit included / plain pass",
    "importance_over_best_rival": "one batch, audit included / the faster of loop and vmap",
    "importance_peak_over_training": "peak memory, audit included / training steps",
}
# channels_last networks by their widths
WIDTHS = (16, 64)
# after so many tasks everything is to cost what it costs after the first
TASKS = 50
GROWTH_LABELS = {
    "step": "penalty step",
    "consolidation": "consolidation of a task",
    "bytes_held": "memory held",
    "bytes_saved": "state in a checkpoint",
}


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` takes smaller models, whose ratios are less telling."""
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "quick": quick,
        **measure_penalty(1 if quick else 6),
        "growth": measure_growth(ImageClassifier(WIDTHS[0])),
        "channels_last": {},
        "importance_over_pass": {},
        "one_at_a_time_over_ours": {},
        "importance_first_over_pass": {},
        "importance_over_best_rival": {},
        "importance_peak_over_training": {},
    }
    for width in WIDTHS[:1] if quick else WIDTHS:
        images = ImageClassifier(width)
        images.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        result["channels_last"][f"resnet18 w{width}"] = race_penalty(images)
    for name, (network, inputs) in _importance_cases(quick).items():
        over_pass, one_at_a_time = measure_importance_pass(network, inputs)
        result["importance_over_pass"][name] = over_pass
        result["one_at_a_time_over_ours"][name] = one_at_a_time
    for name, (network, inputs) in _first_cases(quick).items():
        for key, value in measure_first_batch(network, inputs, name).items():
            result[key][name] = value
    return result


def measure_penalty(layers: int) -> dict[str, Any]:
    """One penalty step on a ViLT: autograd loop / ours, ours / bare memory traffic, memory."""
    model = ViltModel(ViltConfig(num_hidden_layers=layers))
    manager = _hold(model)
    bytes_one = manager.bytes_held()
    _consolidate(manager)
    parameters = manager.parameters
    figures = race_penalty(model)
    short = _hold(model, importance_dtype="bfloat16")
    ours, floor, kernel, ours_short = race(
        manager.add_gradient_,
        lambda: _touch(parameters, manager),
        _make_kernel(model),
        short.add_gradient_,
    )
    weights = sum(p.numel() for p in parameters.values())
    return {
        "penalty_parameters": weights,
        "penalty_seconds": ours,
        "penalty_speedup": figures["penalty_speedup"],
        "penalty_over_floor": ours / floor,
        "penalty_over_kernel": ours / kernel,
        "penalty_over_kernel_bf16": ours_short / kernel,
        "bytes_per_weight": manager.bytes_held() / weights,
        "bytes_grow_with_tasks": manager.bytes_held() != bytes_one,
    }


def race_penalty(model: nn.Module) -> dict[str, float]:
    """One penalty step: autograd loop / ours, and ours / one fused kernel over flat memory."""
    manager = _hold(model)
    autograd, ours, kernel = race(
        lambda: _autograd_penalty(manager.parameters, manager),
        manager.add_gradient_,
        _make_kernel(model),
    )
    return {"penalty_speedup": autograd / ours, "penalty_over_kernel": ours / kernel}


def measure_growth(model: nn.Module) -> dict[str, float]:
    """Return what each kind of work costs after many tasks / after one or a few."""
    few = _hold(model)
    many = _hold(copy.deepcopy(model))
    for _ in range(TASKS - 1):
        _consolidate(many)
    held = many.bytes_held() / few.bytes_held()
    saved = _count_bytes(many.state_dict()) / _count_bytes(few.state_dict())
    step_few, step_many = race(few.add_gradient_, many.add_gradient_)
    # a race adds tasks to both
    end_few, end_many = race(lambda: _consolidate(few), lambda: _consolidate(many))
    return {
        "step": step_many / step_few,
        "consolidation": end_many / end_few,
        "bytes_held": held,
        "bytes_saved": saved,
    }


def _count_bytes(state: Mapping[str, Any]) -> int:
    """Return the bytes of all tensors in a nested state."""
    tensors: dict[str, Tensor] = {}
    pack(state, tensors)
    return sum(tensor.nbytes for tensor in tensors.values())


def _hold(model: nn.Module, **options: Any) -> ConsolidationManager:
    """Return a manager of random importance, of weights that have moved and have gradients."""
    manager = ConsolidationManager(model, strength=100.0, **options)
    _consolidate(manager)
    with torch.no_grad():
        for parameter in manager.parameters.values():
            parameter.add_(0.01)
            parameter.grad = torch.randn_like(parameter)
    return manager


def _consolidate(manager: ConsolidationManager) -> None:
    manager.consolidate({name: torch.rand_like(p) for name, p in manager.parameters.items()})


def _make_kernel(model: nn.Module) -> Callable[[], object]:
    """Return one fused kernel: three reads and one write of as many numbers as weights."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    gradient, factor, away = torch.rand(3, weights)
    return lambda: gradient.addcmul_(factor, away, value=1e-3)


def measure_first_batch(network: nn.Module, inputs: Tensor, name: str) -> dict[str, float]:
    """What a single call on one batch takes, audit included: time and memory."""
    network.eval()
    target = torch.arange(len(inputs)) % 10

    def measure_first() -> None:
        measure_importance(network, [(inputs, target)], score="plain")

    plain, ours, singly, mapped = race(
        lambda: _pass(network, inputs, target),
        measure_first,
        lambda: _square_one_at_a_time(network, inputs, target),
        lambda: _square_by_vmap(network, inputs, target),
        rounds=2,
    )
    network.zero_grad(set_to_none=True)
    training = peak_bytes(lambda: _train(network, inputs, target, name))
    network.zero_grad(set_to_none=True)
    return {
        "importance_first_over_pass": ours / plain,
        "importance_over_best_rival": ours / min(singly, mapped),
        "importance_peak_over_training": peak_bytes(measure_first) / training,
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

    plain, ours, singly = race(
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
    rows = list(list_figures(result))
    for label, value, goal in rows:
        table.add_row(label, f"{value:.2f}", *_judge(value, goal))
    grows = "grows with" if result["bytes_grow_with_tasks"] else "independent of"
    held = f"{result['bytes_per_weight']:.0f} B"
    table.add_row(
        "memory per protected weight (importance, anchor)", held, f"{grows} the number of tasks", ""
    )
    console.print(table)
    missed = [label for label, value, goal in rows if goal is not None and not is_met(value, goal)]
    if missed:
        console.print(
            f"Goals missed on this run: {'; '.join(missed)}. Matrices whose layer sees few "
            "positions are bound by memory: every example's gradient must be written and read "
            "once, which a plain pass never does.",
            soft_wrap=True,
        )


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what was measured, the figure and its goal, if it has one."""
    millions = result["penalty_parameters"] / 1e6
    milliseconds = 1e3 * result["penalty_seconds"]
    step = f"penalty step, ViLT of {millions:.0f}M"
    labels = {
        "penalty_speedup": f"{step}: autograd loop / ours ({milliseconds:.0f} ms)",
        "penalty_over_floor": "penalty step: ours / bare memory traffic",
        "penalty_over_kernel": "penalty step: ours / one fused kernel",
        "penalty_over_kernel_bf16": "penalty step, importance in bfloat16: ours / the kernel",
    }
    for key, label in labels.items():
        yield label, result[key], GOALS[key]
    for key, label in GROWTH_LABELS.items():
        what = f"{label}: after {TASKS} tasks / after one"
        yield what, result["growth"][key], GOALS["growth"]
    for name, figures in result["channels_last"].items():
        yield (
            f"penalty step, {name} channels_last: autograd loop / ours",
            figures["penalty_speedup"],
            GOALS["penalty_speedup_channels_last"],
        )
        yield (
            f"penalty step, {name} channels_last: ours / one fused kernel",
            figures["penalty_over_kernel"],
            None,
        )
    for key, label in IMPORTANCE_LABELS.items():
        for name, value in result[key].items():
            yield f"importance, {name}: {label}", value, GOALS.get(key)


def _judge(value: float, goal: Goal | None) -> tuple[str, str]:
    """Return a goal in words, and whether it was met."""
    if goal is None:
        return "", ""
    direction, limit = goal
    return f"{direction} {limit:g}", "yes" if is_met(value, goal) else "NO"


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


def _first_cases(quick: bool) -> dict[str, tuple[nn.Module, Tensor]]:
    if quick:
        return {"resnet18 w16": (ImageClassifier(16), torch.randn(4, 3, 32, 32))}
    return {
        "resnet18 w16": (ImageClassifier(16), torch.randn(128, 3, 32, 32)),
        "resnet18 w64": (ImageClassifier(64), torch.randn(32, 3, 32, 32)),
        "vilt": (BlockStack(768, 2), torch.randn(16, 185, 768)),
    }


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


def _train(network: nn.Module, inputs: Tensor, target: Tensor, name: str) -> None:
    """Two training steps, the second of which has what the optimizer keeps."""
    optimizer: torch.optim.Optimizer
    if name == "vilt":
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.0)
    else:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0, momentum=0.9)
    for _ in range(2):
        F.cross_entropy(network(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _square_by_vmap(network: nn.Module, inputs: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Per-example gradients by torch.func, squared and added up."""
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network, (parameters, buffers), (image[None],))
        return F.cross_entropy(logits, label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, target)
    return {name: gradient.square_().sum(dim=0) for name, gradient in found.items()}


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
