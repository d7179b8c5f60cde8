"""Settings that compute what other code bases compute, against numbers that their code gave.

The fixtures were made by running the named functions of Avalanche 0.6.0, FACIL e09d2c8, Mammoth
e75a491 and the EWC-DR release adcaaeb on three small networks: 22 examples, batches of 8, 8 and 6.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from mcit import ConsolidationManager, Estimator, measure_importance, peer
from mcit.errors import ConfigError
from mcit.estimator import PEERS

FOLDER = Path(__file__).parent / "fixtures" / "oracle" / "peers"
BATCH = 8
EXAMPLES = 22
# of the largest value of each tensor
TOLERANCE = 1e-6

# peer, choices that differ from its preset in the fixture, file and key
CASES = {
    "avalanche": ("avalanche", {}, "avalanche", "Avalanche_0.6.0_EWCPlugin.compute_importances"),
    "avalanche-mas": (
        "avalanche-mas",
        {},
        "avalanche",
        "Avalanche_0.6.0_MASPlugin._get_importance",
    ),
    "facil": ("facil", {}, "facil", "FACIL_e09d2c8_ewc_fi-sampling=max_pred"),
    "facil, true labels": (
        "facil",
        {"labels": "true"},
        "facil",
        "FACIL_e09d2c8_ewc_fi-sampling=true",
    ),
    "facil-mas": ("facil-mas", {}, "facil", "FACIL_e09d2c8_mas"),
    "mammoth": ("mammoth", {}, "mammoth", "Mammoth_e75a491_ewc_on.end_task_(net_in_eval)"),
    "ewc-dr-release": (
        "ewc-dr-release",
        {"cap": None},
        "ewcdr",
        "release_adcaaeb_EWC-DR_getImportance",
    ),
    "ewc-release": ("ewc-release", {"cap": None}, "ewcdr", "release_adcaaeb_EWC_getFisherDiagonal"),
}
NETWORKS = ("mlp", "conv", "convbn")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(6, 7)
        self.l2 = nn.Linear(7, 5)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.l2(torch.relu(self.l1(x)))))


class Conv(nn.Module):
    def __init__(self, norms: bool):
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.c2 = nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False)
        self.n1 = nn.BatchNorm2d(4) if norms else nn.Identity()
        self.n2 = nn.BatchNorm2d(6) if norms else nn.Identity()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.relu(self.n1(self.c1(x))), 2)
        x = torch.relu(self.n2(self.c2(x)))
        return self.fc(x.mean(dim=(2, 3)))


def pick(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix."""
    start = f"{prefix}/"
    return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}


def load(file: str, name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network with the fixture's weights, and the fixture's tensors for it."""
    tensors = pick(load_file(FOLDER / f"{file}.safetensors"), name)
    network = Mlp() if name == "mlp" else Conv(norms=name == "convbn")
    network.load_state_dict(pick(tensors, "theta"))
    return network, tensors


def split(tensors: dict[str, Tensor], drop_last: bool) -> list[tuple[Tensor, Tensor]]:
    batches = zip(tensors["x"].split(BATCH), tensors["y"].split(BATCH), strict=True)
    return [(x, y) for x, y in batches if len(x) == BATCH or not drop_last]


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        error = float((found[name] - truth).abs().max())
        assert error <= TOLERANCE * float(truth.abs().max()), f"{name} is off by {error:.3g}"


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", CASES)
def test_a_preset_computes_what_its_peer_computes(case, network):
    name, changes, file, key = CASES[case]
    model, tensors = load(file, network)
    expected = pick(tensors, key)
    batches = split(tensors, drop_last=file == "facil")
    estimator = replace(Estimator.like(name), **changes)
    found = measure_importance(model, batches, estimator, only=expected.__contains__)
    factor = peer(name).factor(found.examples, BATCH)
    assert_near({name: value * factor for name, value in found.values.items()}, expected)


def test_mammoth_in_train_mode_normalizes_single_images_and_is_no_preset():
    model, tensors = load("mammoth", "convbn")
    expected = pick(tensors, "Mammoth_e75a491_ewc_on.end_task_(net_in_train)")
    found = measure_importance(model, split(tensors, drop_last=False), Estimator.like("mammoth"))
    assert found.values.keys() == expected.keys()
    assert not torch.allclose(found.values["c1.weight"], expected["c1.weight"], rtol=0.1)


def estimate_fisher(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """van de Ven's loop: every label, weighted by its probability, over the last index."""
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for example in x:
        logits = model(example[None])
        weights = logits.detach().softmax(dim=1)[0]
        for label, weight in enumerate(weights):
            model.zero_grad()
            loss = F.cross_entropy(logits, torch.tensor([label]))
            loss.backward(retain_graph=True)
            for name, parameter in model.named_parameters():
                fisher[name] += weight * parameter.grad**2
    last_index = len(x) - 1
    return {name: total / last_index for name, total in fisher.items()}


@pytest.mark.parametrize("network", NETWORKS)
def test_van_de_ven_divides_by_the_last_index(network):
    model, tensors = load("avalanche", network)
    expected = estimate_fisher(model.eval(), tensors["x"])
    found = measure_importance(model, split(tensors, drop_last=False), Estimator.like("vandeven"))
    factor = peer("vandeven").factor(EXAMPLES, 1)
    assert factor == EXAMPLES / (EXAMPLES - 1)
    assert_near({name: value * factor for name, value in found.values.items()}, expected)


def square(importance: Tensor, away: Tensor) -> Tensor:
    return (importance * away**2).sum()


def half_square(importance: Tensor, away: Tensor) -> Tensor:
    return (importance * away**2).sum() / 2


# the penalty for a lambda of 1, as each code base writes it
PENALTIES = {
    "avalanche": square,
    "avalanche-mas": square,
    "facil": half_square,
    "facil-mas": half_square,
    "vandeven": half_square,
    "mammoth": square,
    "ewc-dr-release": half_square,
    "ewc-release": half_square,
}


@pytest.mark.parametrize("name", PEERS)
def test_a_converted_strength_pulls_as_the_peer_s_lambda_does(name):
    torch.manual_seed(0)
    lamda = 30.0
    setting = peer(name)
    ours = torch.rand(5)
    theirs = ours * setting.factor(EXAMPLES, BATCH)
    weight = nn.Parameter(torch.randn(5))
    manager = ConsolidationManager([("w", weight)], setting.strength(lamda, EXAMPLES, BATCH))
    manager.consolidate({"w": ours})
    anchor = weight.detach().clone()
    weight.data += torch.randn(5)
    (expected,) = torch.autograd.grad(lamda * PENALTIES[name](theirs, weight - anchor), weight)
    weight.grad = torch.zeros(5)
    manager.add_gradient_()
    assert_close(weight.grad, expected)


def test_mammoth_counts_the_last_batch_as_full():
    assert peer("mammoth").factor(22, 8) == 22 / 24
    assert peer("mammoth").factor(24, 8) == 1


def test_a_misspelt_peer_is_named_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"no peer 'mamoth'; did you mean 'mammoth'\?"):
        Estimator.like("mamoth")


def test_every_preset_has_a_case():
    tested = {name for name, *_ in CASES.values()} | {"vandeven"}
    assert tested == set(PEERS) == set(PENALTIES)
