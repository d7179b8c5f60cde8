"""Settings that compute what other code bases compute, against numbers that their code gave.

The fixtures were made by running the named functions of Avalanche 0.6.0, FACIL e09d2c8, Mammoth
e75a491 and the EWC-DR release adcaaeb on three small networks: 22 examples, batches of 8, 8 and 6.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_run import begin_points, go_on, make_points
from torch import Tensor, nn
from torch.testing import assert_close

from mcit import ConsolidationManager, Estimator, measure_importance, peer
from mcit.config.files import load_config
from mcit.errors import ConfigError
from mcit.estimator import PEERS
from mcit.methods.si import Si
from mcit.runner.plan import resolve

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


# --- in a run


def resolve_like(method, *assignments):
    return resolve(load_config(None, {"order": "shapes:5x4", "method": method}, assignments))


@pytest.mark.parametrize("name", PEERS)
def test_a_run_takes_the_options_of_a_code_base_and_records_them(name):
    # whatever the preset says of the method: its cap, unit and mode do not stay
    method = resolve_like("ewc", f"method.estimator.like={name}").method
    assert method.estimator == replace(peer(name).estimator, update_buffers=False)


def test_options_beside_a_code_base_come_on_top():
    like = ["method.estimator.like=facil", "method.estimator.labels=true"]
    estimator = resolve_like("ewc", *like, "method.estimator.samples=64").method.estimator
    assert estimator == Estimator(unit="batch", mode="train", samples=64)


@pytest.mark.parametrize(("name", "strength"), [("avalanche", 20.0), ("ewc-dr-release", 10.0)])
def test_a_lambda_becomes_the_strength_that_the_peer_s_setting_gives(name, strength):
    like = [f"method.estimator.like={name}", "method.estimator.lambda=10"]
    plan = resolve_like("ewc", *like)
    assert plan.method.strength == strength == peer(name).strength(10, EXAMPLES, BATCH)
    written = resolve_like("ewc", f"method.estimator.like={name}", f"method.strength={strength}")
    assert plan.experiment() == written.experiment()


def test_a_part_of_a_combination_takes_the_options_of_a_code_base():
    like = ["methods.ewc.estimator.like=avalanche", "methods.ewc.estimator.lambda=3"]
    method = resolve_like("lwf+ewc", *like).method
    assert method.ewc.estimator == Estimator(unit="batch")
    assert method.ewc.strength == 6.0


@pytest.mark.parametrize(
    ("method", "assignments", "words"),
    [
        ("ewc", ["like=avalanch"], r"unknown peer 'avalanch'; did you mean 'avalanche'\?"),
        ("ewc", ["lambda=3"], "name it, such as --set method.estimator.like=avalanche"),
        ("ewc", ["like=avalanche", "lambda=-1"], "lambda must be a number from 0, found -1"),
        ("ewc", ["like=avalanche", "lambda=ten"], "lambda must be a number from 0, found 'ten'"),
        ("ewc", ["like=mammoth", "lambda=3"], r"set method.strength to mcit.peer\('mammoth'\)"),
        ("si", ["like=avalanche"], "method 'si' has no estimator"),
    ],
)
def test_what_cannot_be_adopted_is_refused_in_one_sentence(method, assignments, words):
    given = [f"method.estimator.{assignment}" for assignment in assignments]
    with pytest.raises(ConfigError, match=words) as error:
        resolve_like(method, *given)
    assert len(error.value.problems) == 1


def test_a_strength_and_a_lambda_are_one_too_many():
    given = ["method.estimator.like=avalanche", "method.estimator.lambda=3", "method.strength=6"]
    with pytest.raises(ConfigError, match="give one of them"):
        resolve_like("ewc", *given)


def test_a_code_base_that_moves_batchnorm_needs_a_run_that_does():
    given = ["method.estimator.like=ewc-dr-release", "training.refresh_batchnorm=false"]
    with pytest.raises(ConfigError, match=r"set training\.refresh_batchnorm=true"):
        resolve_like("ewc", *given)


def test_si_that_keeps_negative_parts_takes_no_implicit_step():
    with pytest.raises(ConfigError, match="keeps negative importance"):
        Si(strength=1.0, clip="none", penalty="proximal")


def test_si_without_clipping_holds_what_the_path_says_and_restores_it():
    method = Si(strength=1.0, clip="none")
    stage, trainer = begin_points(make_points([2, 2, 2]), method)
    trainer.fit(stage, method)
    # as if these weights had raised the loss
    next(iter(method.path.path.values())).neg_()
    path = {name: value.clone() for name, value in method.path.path.items()}
    start = {name: value.clone() for name, value in method.path.start.items()}
    importance = method.end_task(stage).importance
    weights = dict(stage.learner.named_parameters())
    for name, value in importance.values.items():
        motion = weights[name].detach() - start[name]
        assert_close(value, path[name] / (motion**2 + 0.1))
    assert min(float(value.min()) for value in importance.values.values()) < 0
    assert "negative parts kept" in method.describe()
    later = go_on(stage, method, trainer)
    restored = Si(strength=1.0, clip="none")
    restored.restore(later, method.state_dict())
    for name, value in method.manager.importance.items():
        assert torch.equal(restored.manager.importance[name], value)


def test_mammoth_counts_the_last_batch_as_full():
    assert peer("mammoth").factor(22, 8) == 22 / 24
    assert peer("mammoth").factor(24, 8) == 1


def test_a_misspelt_peer_is_named_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"unknown peer 'mamoth'; did you mean 'mammoth'\?"):
        Estimator.like("mamoth")


def test_the_page_has_the_table_of_these_settings(monkeypatch):
    root = Path(__file__).parent.parent
    monkeypatch.syspath_prepend(root / "scripts")
    # what it does to find mcit in a bare checkout
    monkeypatch.setitem(sys.modules, "_checkout", ModuleType("_checkout"))
    make_docs = importlib.import_module("make_docs")
    page = (root / "docs" / "fisher.md").read_text(encoding="utf-8")
    assert page == make_docs.write_fisher(), "run python scripts/make_docs.py"


def test_every_preset_has_a_case():
    tested = {name for name, *_ in CASES.values()} | {"vandeven"}
    assert tested == set(PEERS) == set(PENALTIES)
