"""Importance, penalty, growth and training, against numbers of the EWC-DR release and FACIL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from mcit.consolidation import ConsolidationManager
from mcit.importance import measure_importance

FOLDER = Path(__file__).parent / "fixtures" / "oracle"
CASES = json.loads((FOLDER / "fixtures.json").read_text())["cases"]
SCORES = {"ewc": "plain", "dr": "reversed", "mas": "output_norm"}
TOLERANCE = 1e-4


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(6, 7)
        self.l2 = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.l2(torch.relu(self.l1(x))))


class Maps(nn.Module):
    def __init__(self, norms: bool):
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.c2 = nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False)
        self.n1 = nn.BatchNorm2d(4) if norms else nn.Identity()
        self.n2 = nn.BatchNorm2d(6) if norms else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.relu(self.n1(self.c1(x))), 2)
        return torch.relu(self.n2(self.c2(x))).mean(dim=(2, 3))


class Network(nn.Module):
    def __init__(self, convnet: nn.Module, width: int, classes: int):
        super().__init__()
        self.convnet = convnet
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.convnet(x))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name[len(prefix) + 1 :]: value
        for name, value in tensors.items()
        if name.startswith(prefix + "/")
    }


def build(case: str) -> tuple[Network, dict[str, Tensor], list[tuple[Tensor, Tensor]]]:
    tensors = load_file(FOLDER / f"{case}.safetensors")
    network = Network(Features(), 5, 4) if case == "mlp" else Network(Maps(case == "convbn"), 6, 5)
    missing, unexpected = network.load_state_dict(part(tensors, "theta"), strict=False)
    assert not unexpected
    assert all("num_batches_tracked" in name for name in missing)
    x = tensors["input/x"]
    y = tensors["input/y"]
    size = CASES[case]["batch_size"]
    return network, tensors, list(zip(x.split(size), y.split(size), strict=True))


def assert_near(found, expected, tolerance: float = TOLERANCE) -> None:
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        error = float((found[name].detach() - truth).abs().max())
        top = float(truth.abs().max())
        assert error <= tolerance * top, (
            f"{name} is off by {error:.3g} where the maximum is {top:.3g}"
        )


def set_weights(network: nn.Module, weights: dict[str, Tensor]) -> None:
    network.load_state_dict(weights, strict=False)


@pytest.mark.parametrize("case", ["mlp", "conv", "convbn"])
def test_the_networks_are_those_of_the_fixtures(case):
    network, tensors, batches = build(case)
    logits = network.eval()(torch.cat([x for x, _ in batches]))
    assert_close(logits, tensors["logits_eval_mode"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["ewc", "dr"])
@pytest.mark.parametrize("case", ["mlp", "conv", "convbn"])
@pytest.mark.parametrize("cap", [None, 1e-4])
def test_the_release_s_importance_is_unit_batch_in_mode_train(case, kind, cap):
    network, tensors, batches = build(case)
    found = measure_importance(
        network, batches, score=SCORES[kind], unit="batch", mode="train", cap=cap
    )
    form = "unclamped" if cap is None else "clamped1e-4"
    assert_near(found.values, part(tensors, f"omega_{kind}_{form}"))
    assert found.examples == CASES[case]["N"]


@pytest.mark.parametrize("kind", ["ewc", "dr"])
def test_batch_norm_statistics_move_as_in_the_release_only_when_asked(kind):
    network, tensors, batches = build("convbn")
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    measure_importance(network, batches, score=SCORES[kind], unit="batch", mode="train")
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]), name
    found = measure_importance(
        network, batches, score=SCORES[kind], unit="batch", mode="train", update_buffers=True
    )
    assert_near(found.values, part(tensors, f"omega_{kind}_unclamped"))
    after = part(tensors, f"bn_after_{kind}")
    assert_near({name: dict(network.named_buffers())[name] for name in after}, after, 1e-5)
    assert int(network.convnet.n1.num_batches_tracked) == 3


@pytest.mark.parametrize("kind", ["ewc", "dr", "mas"])
@pytest.mark.parametrize("case", ["mlp", "conv"])
@pytest.mark.parametrize("size", [1, 5, 8, 22])
def test_unit_example_is_the_float64_reference_whatever_the_batch(case, kind, size):
    network, tensors, _ = build(case)
    batches = list(zip(tensors["input/x"].split(size), tensors["input/y"].split(size), strict=True))
    found = measure_importance(network, batches, score=SCORES[kind])
    assert_near(found.values, part(tensors, f"ref_per_sample_{kind}"), 1e-5)


@pytest.mark.parametrize("kind", ["ewc", "dr"])
@pytest.mark.parametrize("form", ["unclamped", "clamped1e-4"])
@pytest.mark.parametrize("case", ["mlp", "conv", "convbn"])
def test_penalty_and_its_gradient_are_the_release_s(case, kind, form):
    network, tensors, _ = build(case)
    manager = ConsolidationManager(network.named_parameters(), strength=1.0)
    manager.consolidate(part(tensors, f"omega_{kind}_{form}"))
    set_weights(network, part(tensors, "theta_perturbed"))
    assert float(manager.penalty()) == pytest.approx(
        CASES[case][f"penalty_{kind}_{form}"], rel=1e-4
    )
    manager.add_gradient_()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    assert_near(gradients, part(tensors, f"penalty_grad_{kind}_{form}"))


def grow(network: Network, weights: dict[str, Tensor]) -> None:
    """Widen the head to the rows given, and set all weights."""
    network.fc = nn.Linear(5, len(weights["fc.bias"]))
    set_weights(network, weights)


def train_epoch(network: Network, manager: ConsolidationManager, batches, known: int) -> None:
    about = CASES["inc_mlp_dr"]
    network.train()
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=about["lr"],
        momentum=about["momentum"],
        weight_decay=about["weight_decay"],
    )
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(x)[:, known:], y - known).backward()
        manager.add_gradient_()
        optimizer.step()


def test_two_incremental_tasks_end_at_the_release_s_weights_importance_and_penalty():
    about = CASES["inc_mlp_dr"]
    tensors = load_file(FOLDER / "inc_mlp_dr.safetensors")
    x = tensors["input/x"]
    y = tensors["input/y"]
    network = Network(Features(), 5, 3)
    set_weights(network, part(tensors, "task0/theta_start"))
    manager = ConsolidationManager(
        network.named_parameters(), strength=about["lamda"], merge="share"
    )
    for number, task in enumerate(about["tasks"]):
        known = task["known"]
        total = task["total"]
        mine = (y >= known) & (y < total)
        batches = list(
            zip(x[mine].split(about["batch_size"]), y[mine].split(about["batch_size"]), strict=True)
        )
        if number:
            before = {name: p.detach().clone() for name, p in network.named_parameters()}
            start = part(tensors, f"task{number}/theta_start")
            assert_near(
                {n: start[n][:known] if n.startswith("fc") else start[n] for n in before}, before
            )
            grow(
                network,
                {
                    **start,
                    **before,
                    **{n: torch.cat([before[n], start[n][known:]]) for n in start if "fc" in n},
                },
            )
            manager.track(network.named_parameters())
            train_epoch(network, manager, batches, known)
        assert_near(dict(network.named_parameters()), part(tensors, f"task{number}/theta_end"))
        fresh = measure_importance(
            network,
            batches,
            score="reversed",
            unit="batch",
            mode="train",
            cap=about["omegamax"],
            update_buffers=True,
        )
        assert_near(fresh.values, part(tensors, f"task{number}/omega_fresh"))
        manager.consolidate(fresh, old_share=known / total if number else None)
        assert_near(manager.importance, part(tensors, f"task{number}/omega_merged"))


def test_merge_of_the_release_on_its_own_importances():
    tensors = load_file(FOLDER / "inc_mlp_dr.safetensors")
    network = Network(Features(), 5, 3)
    manager = ConsolidationManager(network.named_parameters(), merge="share")
    for number, task in enumerate(CASES["inc_mlp_dr"]["tasks"]):
        grow(network, part(tensors, f"task{number}/theta_end"))
        manager.track(network.named_parameters())
        manager.consolidate(part(tensors, f"task{number}/omega_fresh"), old_share=task["alpha"])
        assert_near(manager.importance, part(tensors, f"task{number}/omega_merged"), 1e-6)
        assert_near(manager.anchor, part(tensors, f"task{number}/theta_end"), 1e-7)


def test_a_grown_head_is_penalized_on_its_old_rows_only():
    tensors = load_file(FOLDER / "inc_mlp_dr.safetensors")
    network = Network(Features(), 5, 7)
    set_weights(network, part(tensors, "task2/theta_end"))
    manager = ConsolidationManager(network.named_parameters())
    manager.consolidate(part(tensors, "task2/omega_merged"))
    grow(network, part(tensors, "final_perturbed_theta"))
    manager.track(network.named_parameters())
    assert float(manager.penalty()) == pytest.approx(
        CASES["inc_mlp_dr"]["final_penalty_unscaled"], rel=1e-4
    )
    manager.add_gradient_()
    expected = part(tensors, "final_penalty_grad")
    assert_near({name: p.grad for name, p in network.named_parameters()}, expected)
    assert not network.fc.weight.grad[7:].any()
    assert not network.fc.bias.grad[7:].any()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"score": "output_norm"}, "mas_importance"),
        ({"score": "plain"}, "facil_ewc_fisher_true"),
        ({"score": "plain", "labels": "predicted"}, "facil_ewc_fisher_max_pred"),
    ],
)
def test_facil_s_importances_are_unit_batch(options, key):
    tensors = load_file(FOLDER / "facil_mas_ewc_mlp.safetensors")

    class MultiHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Features()
            self.heads = nn.ModuleList([nn.Linear(5, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return self.heads[0](self.model(x))

    network = MultiHead()
    network.load_state_dict(part(tensors, "theta"))
    full = [
        (x, y)
        for x, y in zip(tensors["input/x"].split(8), tensors["input/y"].split(8), strict=True)
        if len(x) == 8
    ]
    found = measure_importance(network, full, unit="batch", **options)
    backbone = {
        name.removeprefix("model."): v
        for name, v in found.values.items()
        if name.startswith("model.")
    }
    assert_near(backbone, part(tensors, key))
