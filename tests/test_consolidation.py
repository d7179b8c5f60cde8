"""How weights are held: gradient, value, growth, merging, state and path, against plain loops."""

from __future__ import annotations

import copy
import json
import math
import warnings

import numpy as np
import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from importance_models import Thrice, vectors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from mcit.consolidation import ConsolidationManager
from mcit.estimator import Estimator
from mcit.gradients import pull
from mcit.importance import Importance, measure_importance
from mcit.path_integral import PathIntegral


class Weights(nn.Module):
    """Parameters of every shape and memory format that a manager may meet."""

    def __init__(self, large: int = 5):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 3))
        self.vector = nn.Parameter(torch.randn(5))
        self.scalar = nn.Parameter(torch.randn(()))
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.turned = nn.Parameter(torch.randn(3, 4).T)
        self.large = nn.Parameter(torch.randn(large))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)


def held(large: int = 5, strength: float = 7.0, **options) -> tuple[Weights, ConsolidationManager]:
    """A manager that has consolidated random importance, and weights that have since moved."""
    torch.manual_seed(0)
    model = Weights(large)
    manager = ConsolidationManager(model.named_parameters(), strength, **options)
    manager.consolidate(
        {name: torch.rand(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    )
    move(model)
    return model, manager


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape))


def autograd_penalty(model: nn.Module, manager: ConsolidationManager) -> Tensor:
    """The penalty as everybody writes it, in float64 and with a graph."""
    total = 0
    for name, parameter in model.named_parameters():
        if name in manager.importance and parameter.requires_grad:
            importance = manager.importance[name]
            anchor = manager.anchor[name]
            rows = parameter[: len(importance)] if importance.ndim else parameter
            total = total + (importance.double() * (rows.double() - anchor.double()) ** 2).sum()
    return manager.strength / 2 * total


def snapshot(manager: ConsolidationManager) -> dict:
    return copy.deepcopy(manager.state_dict())


def assert_same_state(found: dict, expected: dict) -> None:
    for part in ("importance", "anchor"):
        assert found[part].keys() == expected[part].keys()
        assert all(torch.equal(found[part][name], expected[part][name]) for name in expected[part])
    assert found["about"] == expected["about"]


@pytest.mark.parametrize("start", ["none", "some", "mixed"])
@pytest.mark.parametrize("large", [5, pull.SMALL + 1, pull.CHUNK + 3])
def test_the_added_gradient_is_autograd_s(large, start):
    model, manager = held(large)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    expected = dict(
        zip(
            trainable,
            torch.autograd.grad(autograd_penalty(model, manager), trainable.values()),
            strict=True,
        )
    )
    for number, (name, parameter) in enumerate(trainable.items()):
        if start == "some" or (start == "mixed" and number % 2):
            parameter.grad = torch.randn(parameter.shape)
            expected[name] = expected[name] + parameter.grad
    manager.add_gradient_()
    for name, parameter in trainable.items():
        assert_close(parameter.grad, expected[name], msg=lambda text, name=name: f"{name}: {text}")
    assert model.frozen.grad is None
    assert float(manager.penalty()) == pytest.approx(
        float(autograd_penalty(model, manager)), rel=1e-6
    )


def test_gradients_in_the_parameter_s_own_format_and_others_get_the_same():
    model, manager = held()
    manager.add_gradient_()
    expected = model.image.grad.clone()
    for layout in (torch.channels_last, torch.contiguous_format):
        model.image.grad = torch.zeros(2, 3, 4, 4).to(memory_format=layout)
        manager.add_gradient_()
        assert_close(model.image.grad, expected)


def test_a_penalty_of_strength_zero_leaves_gradients_bit_identical():
    model, manager = held(strength=0.0)
    model.matrix.grad = torch.randn(4, 3)
    before = model.matrix.grad.clone()
    assert manager.add_gradient_() is None
    assert manager.add_gradient_(measure=True) == 0.0
    assert torch.equal(model.matrix.grad, before)
    assert model.vector.grad is None
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    manager.proximal_(0.1)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert float(manager.penalty()) == 0


def test_a_manager_that_holds_nothing_does_nothing():
    model = Weights()
    manager = ConsolidationManager(model.named_parameters(), 1.0)
    manager.add_gradient_()
    manager.proximal_(0.1)
    assert all(p.grad is None for p in model.parameters())
    assert float(manager.penalty()) == 0
    assert manager.bytes_held() == 0
    assert manager.diagnose(0.1).weights == 0
    assert "nothing consolidated" in manager.describe()


def test_a_frozen_parameter_is_left_alone_until_it_trains_again():
    model, manager = held()
    whole = float(manager.penalty())
    model.matrix.requires_grad_(False)
    before = model.matrix.detach().clone()
    manager.add_gradient_()
    manager.proximal_(1.0)
    assert model.matrix.grad is None
    assert torch.equal(model.matrix, before)
    assert "matrix" in manager.importance
    model, manager = held()
    model.matrix.requires_grad_(False)
    manager.track(model.named_parameters())
    assert float(manager.penalty()) < whole
    model.matrix.requires_grad_(True)
    assert float(manager.penalty()) == whole


def test_the_ratio_of_penalty_to_task_gradient_is_that_of_their_norms():
    model, manager = held()
    task = {name: torch.randn(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    for name, gradient in task.items():
        dict(model.named_parameters())[name].grad = gradient.clone()
    ratio = manager.add_gradient_(measure=True)
    added = [
        dict(model.named_parameters())[name].grad - gradient for name, gradient in task.items()
    ]
    norm = [
        math.sqrt(sum(float(t.double().square().sum()) for t in group))
        for group in (added, task.values())
    ]
    assert ratio == pytest.approx(norm[0] / norm[1], rel=1e-4)


def test_the_ratio_is_infinite_without_a_task_gradient():
    _, manager = held()
    assert manager.add_gradient_(measure=True) == math.inf


def test_the_proximal_step_is_its_closed_form_and_the_minimum_it_claims():
    model, manager = held()
    before = {name: p.detach().clone().double() for name, p in model.named_parameters()}
    manager.proximal_(0.3)
    for name, parameter in model.named_parameters():
        if name == "frozen":
            assert torch.equal(parameter.double(), before[name])
            continue
        kappa = 7.0 * manager.importance[name].double()
        anchor = manager.anchor[name].double()
        expected = (before[name] + 0.3 * kappa * anchor) / (1 + 0.3 * kappa)
        assert_close(parameter.detach().double(), expected, atol=1e-6, rtol=1e-5)
        slope = (parameter.detach().double() - before[name]) / 0.3 + kappa * (
            parameter.detach().double() - anchor
        )
        assert float(slope.abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("importance", "strength"), [(1e10, 1e10), (1e30, 1e4), (1e37, 1e4), (3e38, 1.0), (1e-40, 1.0)]
)
def test_the_proximal_step_is_stable_for_any_stiffness(importance, strength):
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    manager = ConsolidationManager([("w", parameter)], strength)
    manager.consolidate({"w": torch.full((2,), importance)})
    with torch.no_grad():
        parameter.add_(5.0)
    manager.proximal_(0.5)
    expected = torch.tensor([1.0, -2.0]) if importance > 1 else torch.tensor([6.0, 3.0])
    assert_close(parameter.detach(), expected)


def grown(model: Weights, rows: int) -> None:
    model.matrix = nn.Parameter(torch.cat([model.matrix.detach(), torch.randn(rows, 3)]))
    model.vector = nn.Parameter(torch.cat([model.vector.detach(), torch.randn(rows)]))


def test_a_grown_head_is_free_to_move():
    model, manager = held()
    before = float(manager.penalty())
    grown(model, 2)
    manager.track(model.named_parameters())
    assert float(manager.penalty()) == before
    manager.add_gradient_()
    assert not model.matrix.grad[4:].any()
    assert not model.vector.grad[5:].any()
    assert model.matrix.grad[:4].all()
    new = model.matrix.detach()[4:].clone()
    manager.proximal_(1.0)
    assert torch.equal(model.matrix.detach()[4:], new)


RULES = {
    "sum": lambda old, new, share: old + new,
    "online": lambda old, new, share: 0.7 * old + new,
    "share": lambda old, new, share: share * old + (1 - share) * new,
    "latest": lambda old, new, share: new,
}


@pytest.mark.parametrize("merge", RULES)
def test_merge_rules_are_their_formulas_also_on_a_grown_tensor(merge):
    model, manager = held(merge=merge, decay=0.7)
    first = dict(manager.importance)
    first_anchor = dict(manager.anchor)
    grown(model, 2)
    manager.track(model.named_parameters())
    fresh = {name: torch.rand(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    given = {name: value.clone() for name, value in fresh.items()}
    manager.consolidate(fresh, old_share=0.4 if merge == "share" else None)
    for name, new in fresh.items():
        assert torch.equal(new, given[name]), "what was given must not be changed"
        old = first[name]
        weight = dict(model.named_parameters())[name].detach()
        rows = slice(len(old)) if old.ndim else ...
        expected = new.clone()
        anchor = weight.clone()
        expected[rows] = RULES[merge](old, new[rows], 0.4)
        if merge == "sum":
            anchor[rows] = (old * first_anchor[name] + new[rows] * weight[rows]) / (old + new[rows])
        assert_close(manager.importance[name], expected)
        assert_close(manager.anchor[name], anchor)


@pytest.mark.parametrize("strength", [1.0, 50.0])
def test_the_folded_sum_of_three_tasks_is_the_sum_of_their_penalties(strength):
    torch.manual_seed(1)
    model = Weights().double()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    manager = ConsolidationManager(model.named_parameters(), strength, merge="sum")
    tasks = []
    for number in range(3):
        importance = {
            name: torch.rand(p.shape, dtype=torch.float64) for name, p in trainable.items()
        }
        # rows that one task does not need
        importance["matrix"][number] = 0
        # and a weight that none does
        importance["vector"][0] = 0
        tasks.append((importance, {name: p.detach().clone() for name, p in trainable.items()}))
        manager.consolidate(importance)
        move(model)

    def separate() -> Tensor:
        return sum(
            strength / 2 * (importance[name] * (trainable[name] - anchor[name]) ** 2).sum()
            for importance, anchor in tasks
            for name in trainable
        )

    differences = []
    for _ in range(4):
        move(model)
        for parameter in trainable.values():
            parameter.grad = None
        manager.add_gradient_()
        expected = torch.autograd.grad(separate(), list(trainable.values()))
        for parameter, gradient in zip(trainable.values(), expected, strict=True):
            assert_close(parameter.grad, gradient, atol=1e-10, rtol=1e-10)
        differences.append(float(separate()) - float(manager.penalty()))
    assert differences == pytest.approx([differences[0]] * 4, rel=1e-9)
    assert differences[0] > 0


def test_memory_held_does_not_depend_on_the_number_of_tasks():
    model, manager = held()
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert manager.bytes_held() == 2 * 4 * weights
    for _ in range(5):
        manager.consolidate(
            {name: torch.rand(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        )
    assert manager.bytes_held() == 2 * 4 * weights
    assert len(manager.history) == 6


def test_parameters_that_an_importance_does_not_name_keep_what_they_have():
    _, manager = held()
    before = snapshot(manager)
    manager.consolidate({"vector": torch.rand(5)})
    after = manager.state_dict()
    for name in before["importance"]:
        same = torch.equal(before["importance"][name], after["importance"][name])
        assert same == (name != "vector")


def test_an_anchor_does_not_follow_its_weight():
    model, manager = held()
    anchor = manager.anchor["matrix"].clone()
    move(model)
    assert torch.equal(manager.anchor["matrix"], anchor)


def test_only_what_trains_is_kept_of_a_lora_model():
    torch.manual_seed(2)
    model = peft.get_peft_model(Thrice(), peft.LoraConfig(r=2, target_modules=["layer"]))
    manager = ConsolidationManager(model.named_parameters(), 5.0)
    manager.consolidate(measure_importance(model, [(vectors(6), torch.randint(4, (6,)))]))
    assert manager.importance.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(manager.importance) == 2
    move(model)
    manager.add_gradient_()
    assert {
        n for n, p in model.named_parameters() if p.grad is not None
    } == manager.importance.keys()


def problems(model: Weights) -> list[tuple[dict, str]]:
    good = torch.rand(5)
    return [
        ({"vector": good, "elsewhere": torch.rand(2)}, "elsewhere"),
        ({"vector": good, "frozen": torch.rand(3)}, "frozen"),
        (
            {"vector": good, "matrix": torch.rand(3, 4)},
            r"matrix is \[3, 4\], the model has \[4, 3\]",
        ),
        ({"vector": good, "matrix": torch.full((4, 3), torch.nan)}, "matrix"),
        ({"vector": good, "matrix": torch.full((4, 3), torch.inf)}, "matrix"),
        ({"vector": good, "matrix": -torch.rand(4, 3)}, "matrix"),
        ({"vector": good, "scalar": torch.tensor(-1.0)}, "scalar"),
    ]


@pytest.mark.parametrize("number", range(7))
def test_an_importance_that_is_wrong_is_refused_and_nothing_changes(number):
    model, manager = held()
    before = snapshot(manager)
    importance, message = problems(model)[number]
    with pytest.raises(ValueError, match=message):
        manager.consolidate(importance)
    assert_same_state(manager.state_dict(), before)


@pytest.mark.parametrize(
    ("merge", "old_share"), [("share", None), ("share", 1.5), ("share", math.nan), ("sum", 0.5)]
)
def test_a_share_that_is_missing_or_wrong_is_refused_and_nothing_changes(merge, old_share):
    _, manager = held(merge=merge)
    before = snapshot(manager)
    with pytest.raises(ValueError, match="share"):
        manager.consolidate({"vector": torch.rand(5)}, old_share=old_share)
    assert_same_state(manager.state_dict(), before)


def test_a_vanished_parameter_is_refused_by_name_unless_it_is_to_be_forgotten():
    model, manager = held()
    before = snapshot(manager)
    rest = [(name, p) for name, p in model.named_parameters() if name != "matrix"]
    with pytest.raises(ValueError, match=r"'matrix'.*forget"):
        manager.track(rest)
    assert_same_state(manager.state_dict(), before)
    assert "matrix" in manager.parameters
    manager.track(rest, forget=["matrix"])
    assert manager.importance.keys() == before["importance"].keys() - {"matrix"}
    manager.add_gradient_()


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (4, 4), (12,), ()])
def test_a_parameter_that_shrank_or_changed_its_shape_is_refused(shape):
    model, manager = held()
    before = snapshot(manager)
    model.matrix = nn.Parameter(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"'matrix' was consolidated as \[4, 3\]"):
        manager.track(model.named_parameters())
    assert_same_state(manager.state_dict(), before)


@pytest.mark.parametrize(
    "options", [{"merge": "mean"}, {"strength": -1.0}, {"strength": math.nan}, {"decay": 1.5}]
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(
        ValueError,
        match="sum, online, share, latest" if "merge" in options else next(iter(options)),
    ):
        ConsolidationManager(Weights().named_parameters(), **options)


def consolidated() -> tuple[nn.Module, ConsolidationManager]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    loader = DataLoader(TensorDataset(vectors(9), torch.randint(4, (9,))), 4)
    manager = ConsolidationManager(model.named_parameters(), 123.456, merge="online", decay=0.9)
    for score in ("plain", "reversed"):
        manager.consolidate(measure_importance(model, loader, score=score, cap=1e-2, samples=7))
    return model, manager


@pytest.mark.parametrize("through", ["dictionary", "file"])
def test_a_state_comes_back_bit_for_bit_with_its_history(tmp_path, through):
    model, manager = consolidated()
    other = ConsolidationManager(model.named_parameters())
    if through == "file":
        manager.save(tmp_path / "state.safetensors")
        other.load(tmp_path / "state.safetensors")
    else:
        other.load_state_dict(copy.deepcopy(manager.state_dict()))
    assert_same_state(other.state_dict(), manager.state_dict())
    assert (other.strength, other.merge, other.decay) == (123.456, "online", 0.9)
    assert other.describe() == manager.describe()
    assert "reversed" in other.describe()
    assert len(other.history) == 2
    move(model)
    assert float(other.penalty()) == float(manager.penalty())
    assert other.diagnose(0.1, 0.9) == manager.diagnose(0.1, 0.9)


def test_a_state_of_every_shape_and_format_comes_back(tmp_path):
    model, manager = held()
    manager.save(tmp_path / "state.safetensors")
    other = ConsolidationManager(model.named_parameters())
    other.load(tmp_path / "state.safetensors")
    assert_same_state(other.state_dict(), manager.state_dict())


def test_a_state_dictionary_is_not_changed_by_what_follows():
    _, manager = held()
    state = manager.state_dict()
    kept = snapshot(manager)
    manager.consolidate({"vector": torch.rand(5)})
    manager.proximal_(0.1)
    assert_same_state(state, kept)


def test_a_state_fits_a_head_that_has_grown_since(tmp_path):
    model, manager = held()
    manager.save(tmp_path / "state.safetensors")
    grown(model, 3)
    other = ConsolidationManager(model.named_parameters())
    other.load(tmp_path / "state.safetensors")
    assert float(other.penalty()) == pytest.approx(float(manager.penalty()), rel=1e-6)


def test_a_state_that_protects_a_head_frozen_since_comes_back(tmp_path):
    # only the active head trains: a resumed run makes its manager when older heads are frozen
    model, manager = held()
    model.matrix.requires_grad_(False)
    manager.track(model.named_parameters())
    manager.save(tmp_path / "state.safetensors")
    other = ConsolidationManager(model.named_parameters())
    other.load(tmp_path / "state.safetensors")
    assert_same_state(other.state_dict(), manager.state_dict())
    model.matrix.requires_grad_(True)
    assert float(other.penalty()) == float(manager.penalty())


def test_a_state_of_another_model_is_refused_and_changes_nothing(tmp_path):
    _, manager = held()
    manager.save(tmp_path / "state.safetensors")
    for change in ("name", "shape", "rows"):
        other_model, other = held(strength=3.0)
        if change == "name":
            del other_model.matrix
        else:
            other_model.matrix = nn.Parameter(torch.zeros((4, 2) if change == "shape" else (3, 3)))
        other = ConsolidationManager(other_model.named_parameters(), 3.0)
        other.consolidate({"vector": torch.rand(5)})
        before = snapshot(other)
        with pytest.raises(ValueError, match="matrix"):
            other.load(tmp_path / "state.safetensors")
        assert_same_state(other.state_dict(), before)


@pytest.mark.parametrize("damage", ["nan", "negative", "anchor", "merge", "strength"])
def test_a_broken_state_is_refused_and_changes_nothing(damage):
    _, manager = held()
    state = snapshot(manager)
    before = snapshot(manager)
    if damage == "nan":
        state["importance"]["matrix"][0, 0] = torch.nan
    elif damage == "negative":
        state["importance"]["matrix"][0, 0] = -1
    elif damage == "anchor":
        del state["anchor"]["matrix"]
    else:
        state["about"][damage] = "mean" if damage == "merge" else -1.0
    with pytest.raises(ValueError):
        manager.load_state_dict(state)
    assert_same_state(manager.state_dict(), before)


@pytest.mark.parametrize("damage", ["cut", "emptied", "missing", "other"])
def test_a_damaged_state_file_is_named_and_changes_nothing(tmp_path, damage):
    _, manager = held()
    path = tmp_path / "state.safetensors"
    manager.save(path)
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        save_file({"w": torch.zeros(2)}, path)
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"")
    before = snapshot(manager)
    with pytest.raises(
        FileNotFoundError if damage == "missing" else ValueError, match=r"state\.safetensors"
    ):
        manager.load(path)
    assert_same_state(manager.state_dict(), before)


def test_an_importance_file_is_no_state_file(tmp_path):
    _, manager = held()
    Importance({"matrix": torch.rand(4, 3)}).save(tmp_path / "importance.safetensors")
    with pytest.raises(ValueError, match="consolidation"):
        manager.load(tmp_path / "importance.safetensors")
    manager.save(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="importance"):
        Importance.load(tmp_path / "state.safetensors")


def test_the_state_file_is_plain_tensors_and_json(tmp_path):
    _, manager = consolidated()
    manager.save(tmp_path / "state.safetensors")
    tensors = load_file(tmp_path / "state.safetensors")
    assert len(tensors) == 2 * len(manager.importance)
    from safetensors import safe_open

    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        assert json.loads(file.metadata()["about"])["history"] == manager.history


def test_diagnosis_numbers_are_numpy_s():
    torch.manual_seed(4)
    model = Weights()
    manager = ConsolidationManager(model.named_parameters(), 20.0)
    cap = 0.5
    values = {
        n: torch.rand(p.shape).pow(9).clamp(max=cap)
        for n, p in model.named_parameters()
        if p.requires_grad
    }
    manager.consolidate(Importance(values, Estimator(cap=cap), 3))
    found = manager.diagnose(learning_rate=0.5, momentum=0.9)
    flat = np.concatenate([value.numpy().ravel() for value in values.values()]).astype(np.float64)
    assert found.weights == flat.size
    assert found.mean_stiffness == pytest.approx(20 * flat.mean(), rel=1e-6)
    assert found.max_stiffness == pytest.approx(20 * flat.max(), rel=1e-6)
    assert found.share_capped == pytest.approx((flat >= cap).mean())
    assert 0 < found.share_capped < 1
    assert found.share_near_zero == pytest.approx((flat <= 1e-3 * flat.mean()).mean())
    assert 0 < found.share_near_zero < 1
    assert found.limit == pytest.approx(2 * 1.9 / 0.5)
    assert found.share_unstable == pytest.approx((20 * flat > 7.6).mean())
    assert found.capped_by_tensor == {
        n: pytest.approx(float((v >= cap).double().mean())) for n, v in values.items()
    }
    assert f"{flat.size:,} weights" in found.describe()
    assert "proximal" in found.warning()


def test_the_share_capped_is_that_of_what_is_held():
    model, manager = held(merge="latest")
    importance = {
        name: torch.rand(p.shape) for name, p in model.named_parameters() if p.requires_grad
    }
    capped = {name: value.clamp(max=0.2) for name, value in importance.items()}
    manager.consolidate(Importance(capped, Estimator(cap=0.2), 3))
    assert manager.diagnose().share_capped > 0.5
    manager.consolidate(Importance(importance, Estimator(), 3))
    assert manager.diagnose().share_capped == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("learning_rate", [0.1, 2.0])
def test_the_stability_limit_is_where_sgd_really_diverges(momentum, learning_rate):
    limit = 2 * (1 + momentum) / learning_rate
    for factor in (0.95, 1.05):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        manager = ConsolidationManager([("w", weight)], factor * limit)
        manager.consolidate({"w": torch.ones(1)})
        diagnosis = manager.diagnose(learning_rate, momentum)
        assert diagnosis.limit == pytest.approx(limit)
        weight.data.fill_(1.0)
        optimizer = torch.optim.SGD([weight], lr=learning_rate, momentum=momentum)
        for _ in range(300):
            optimizer.zero_grad()
            manager.add_gradient_()
            optimizer.step()
        diverges = not abs(float(weight)) < 1
        assert diverges == (factor > 1)
        assert (diagnosis.warning() is not None) == diverges
        assert diagnosis.share_unstable == float(diverges)


def test_a_parameter_without_elements_does_not_spoil_the_diagnosis():
    empty = nn.Parameter(torch.zeros(0, 3))
    full = nn.Parameter(torch.ones(2))
    manager = ConsolidationManager([("empty", empty), ("full", full)])
    values = {"empty": torch.zeros(0, 3), "full": torch.tensor([1.0, 0.5])}
    manager.consolidate(Importance(values, Estimator(cap=1.0), 1))
    manager.add_gradient_()
    assert manager.diagnose().share_capped == 0.5
    assert manager.diagnose().max_stiffness == 1


def test_no_warning_is_given_where_the_step_is_not_known():
    _, manager = held(strength=1e9)
    assert manager.diagnose().warning() is None


def batches(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(4, 6, generator=generator, dtype=torch.float64),
            torch.randint(4, (4,), generator=generator),
        )
        for _ in range(count)
    ]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.3, weight_decay=0.1),
}


SIGNS = {
    "relu": lambda path: path.clamp(min=0),
    "abs": lambda path: path.abs(),
    "none": lambda path: path,
}


def path_net() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", SIGNS)
def test_the_path_integral_is_a_loop_written_out_with_the_unmixed_gradient(name, accumulate, clip):
    damping = 0.05
    model = path_net()
    oracle = path_net()
    held_values = {key: torch.rand_like(p) for key, p in model.named_parameters()}
    path = PathIntegral(model.named_parameters(), damping=damping, clip=clip)
    manager = ConsolidationManager(model.named_parameters(), strength=3.0, path=path)
    manager.consolidate(held_values)
    optimizer = OPTIMIZERS[name](model.parameters())
    path.attach(optimizer)
    start = {key: p.detach().clone() for key, p in oracle.named_parameters()}
    omega = {key: torch.zeros_like(p) for key, p in oracle.named_parameters()}
    other = OPTIMIZERS[name](oracle.parameters())
    parameters = dict(oracle.named_parameters())
    data = batches()
    for first in range(0, len(data), accumulate):
        optimizer.zero_grad()
        task = dict.fromkeys(parameters, 0.0)
        for x, y in data[first : first + accumulate]:
            (F.cross_entropy(model(x), y) / accumulate).backward()
            found = torch.autograd.grad(
                F.cross_entropy(oracle(x), y) / accumulate, list(parameters.values())
            )
            task = {
                key: task[key] + gradient for key, gradient in zip(parameters, found, strict=True)
            }
        manager.add_gradient_()
        optimizer.step()
        before = {key: p.detach().clone() for key, p in parameters.items()}
        for key, p in parameters.items():
            p.grad = task[key] + 3.0 * held_values[key] * (before[key] - start[key])
        other.step()
        for key, p in parameters.items():
            omega[key] -= task[key] * (p.detach() - before[key])
    found = path.importance()
    for key, p in parameters.items():
        assert_close(dict(model.named_parameters())[key].detach(), p.detach())
        assert_close(
            found.values[key],
            SIGNS[clip](omega[key]) / ((p.detach() - start[key]) ** 2 + damping),
            atol=1e-12,
            rtol=1e-8,
        )
    assert f"damping {damping:g}" in found.describe()
    manager.consolidate(found)
    assert "path integral" in manager.describe()


def climb(weight: nn.Parameter, clip: str) -> PathIntegral:
    """A path whose only step went up the slope by 0.5."""
    path = PathIntegral([("w", weight)], damping=0.1, clip=clip)
    weight.grad = torch.ones(1)
    path.see_gradient()
    weight.data += 0.5
    path.see_step()
    return path


@pytest.mark.parametrize(
    ("clip", "expected", "description"),
    [
        ("relu", 0.0, "negative parts clipped"),
        ("abs", 0.5 / (0.25 + 0.1), "absolute values"),
        ("none", -0.5 / (0.25 + 0.1), "negative parts kept"),
    ],
)
def test_motion_that_raised_the_loss_counts_as_described(clip, expected, description):
    found = climb(nn.Parameter(torch.zeros(1)), clip).importance()
    assert float(found.values["w"]) == pytest.approx(expected)
    assert description in found.describe()


@pytest.mark.parametrize("merge", ["sum", "online"])
def test_negative_importance_of_a_path_is_held_as_facil_holds_it(merge, tmp_path):
    weight = nn.Parameter(torch.zeros(1))
    path = climb(weight, "none")
    manager = ConsolidationManager([("w", weight)], strength=2.0, merge=merge, path=path)
    manager.consolidate(path.importance())
    # a second task without a step adds nothing to the first
    manager.consolidate(path.importance())
    weight.data += 1.0
    weight.grad = torch.zeros(1)
    manager.add_gradient_()
    assert float(weight.grad) == pytest.approx(2.0 * -0.5 / (0.25 + 0.1))
    manager.save(tmp_path / "signed.safetensors")
    manager.load(tmp_path / "signed.safetensors")
    assert float(manager.importance["w"]) == pytest.approx(-0.5 / (0.25 + 0.1))


def test_negative_importance_has_no_proximal_step():
    weight = nn.Parameter(torch.zeros(1))
    manager = ConsolidationManager([("w", weight)], path=climb(weight, "none"))
    with pytest.raises(ValueError, match="needs importance that is not negative"):
        manager.proximal_(0.1)


def test_an_unknown_clip_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"clip is True \(choices: relu, abs, none\)"):
        PathIntegral(path_net().named_parameters(), clip=True)


def test_the_path_is_followed_also_at_strength_zero():
    paths = []
    for strength in (0.0, 1.0):
        model = path_net()
        path = PathIntegral(model.named_parameters())
        manager = ConsolidationManager(model.named_parameters(), strength=strength, path=path)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        path.attach(optimizer)
        walk(model, manager, optimizer, batches(3))
        paths.append(path.importance().values)
    # nothing was held in either
    assert all(torch.equal(paths[0][key], paths[1][key]) for key in paths[0])
    assert any(value.any() for value in paths[0].values())


def walk(model, manager, optimizer, data, skipped=()) -> None:
    for number, (x, y) in enumerate(data):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        manager.add_gradient_()
        if number not in skipped:
            optimizer.step()


def test_a_skipped_step_adds_nothing_and_a_removed_handle_ends_the_path():
    values = []
    for data, skipped in ((batches(4), (1, 3)), ([batches(4)[0], batches(4)[2]], ())):
        model = path_net()
        path = PathIntegral(model.named_parameters())
        manager = ConsolidationManager(model.named_parameters(), path=path)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = path.attach(optimizer)
        walk(model, manager, optimizer, data, skipped)
        values.append(path.importance().values)
        before = {key: value.clone() for key, value in path.path.items()}
        handle.remove()
        walk(model, manager, optimizer, batches(2))
        assert all(torch.equal(path.path[key], value) for key, value in before.items())
    for key, value in values[0].items():
        assert_close(value, values[1][key])


def test_a_new_path_begins_at_the_present_weights():
    model = path_net()
    path = PathIntegral(model.named_parameters())
    manager = ConsolidationManager(model.named_parameters(), path=path)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    path.attach(optimizer)
    walk(model, manager, optimizer, batches(3))
    path.begin(model.named_parameters())
    assert not any(value.any() for value in path.importance().values.values())


def test_a_path_follows_an_optimizer_wrapped_by_accelerate():
    from accelerate import Accelerator

    model = path_net()
    optimizer = Accelerator(cpu=True).prepare(OPTIMIZERS["sgd"](model.parameters()))
    path = PathIntegral(model.named_parameters())
    manager = ConsolidationManager(model.named_parameters(), path=path)
    path.attach(optimizer)
    walk(model, manager, optimizer, batches(3))
    assert any(value.any() for value in path.importance().values.values())


def test_damping_must_be_positive():
    with pytest.raises(ValueError, match="damping"):
        PathIntegral(path_net().named_parameters(), damping=0.0)


def test_pieces_of_a_large_tensor_give_the_same_as_the_whole(monkeypatch):
    results = []
    for small, chunk in ((pull.SMALL, pull.CHUNK), (0, 7), (0, 1)):
        monkeypatch.setattr(pull, "SMALL", small)
        monkeypatch.setattr(pull, "CHUNK", chunk)
        model, manager = held(50)
        manager.add_gradient_()
        results.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    for name, expected in results[0].items():
        assert torch.equal(results[1][name], expected)
        assert torch.equal(results[2][name], expected)


def test_importance_and_anchor_lie_in_memory_as_their_weight_does(tmp_path):
    model, manager = held()
    manager.consolidate({name: torch.rand(p.shape) for name, p in manager.parameters.items()})
    other = ConsolidationManager(model)
    other.load_state_dict(manager.state_dict())
    manager.save(tmp_path / "state.safetensors")
    read = ConsolidationManager(model)
    read.load(tmp_path / "state.safetensors")
    for name, parameter in manager.parameters.items():
        for one in (manager, other, read):
            assert one.importance[name].stride() == parameter.stride(), name
            assert one.anchor[name].stride() == parameter.stride(), name
            assert torch.equal(one.importance[name], manager.importance[name])
            assert torch.equal(one.anchor[name], manager.anchor[name])


def test_importance_and_anchor_follow_a_change_of_memory_layout(monkeypatch):
    monkeypatch.setattr(pull, "SMALL", 0)
    model = nn.Conv2d(3, 4, 3)
    manager = ConsolidationManager(model, strength=2.0)
    importance = torch.rand(4, 3, 3, 3)
    anchor = model.weight.detach().clone()
    manager.consolidate({"weight": importance})
    for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        model.to(memory_format=layout)
        with torch.no_grad():
            model.weight.add_(0.5)
        model.weight.grad = torch.zeros_like(model.weight)
        manager.add_gradient_()
        expected = 2.0 * importance * (model.weight.detach() - anchor)
        assert_close(model.weight.grad, expected)
        assert manager.importance["weight"].stride() == model.weight.stride()


@pytest.mark.parametrize("small", [0, pull.SMALL])
def test_importance_in_16_bits_takes_half_the_memory_and_keeps_three_digits(small, monkeypatch):
    monkeypatch.setattr(pull, "SMALL", small)
    model, manager = held()
    short = ConsolidationManager(model, strength=7.0, importance_dtype="bfloat16")
    state = manager.state_dict()
    short.load_state_dict({**state, "about": {**state["about"], "importance_dtype": "bfloat16"}})
    assert short.bytes_held() == manager.bytes_held() * 6 // 8
    manager.add_gradient_()
    expected = {name: p.grad.clone() for name, p in manager.parameters.items()}
    model.zero_grad()
    short.add_gradient_()
    for name, parameter in short.parameters.items():
        # as with the rounded importance, in 32 bits
        rounded = expected[name] / manager.importance[name] * short.importance[name].float()
        assert_close(parameter.grad, rounded, rtol=1e-4, atol=1e-6)
    assert_close(short.penalty(), manager.penalty(), rtol=1e-2, atol=0)


def test_sixteen_bits_are_chosen_and_stay_so(tmp_path):
    model, _ = held()
    short = ConsolidationManager(model, importance_dtype="bfloat16")
    for _ in range(2):
        short.consolidate({name: torch.rand(p.shape) for name, p in short.parameters.items()})
    assert {value.dtype for value in short.importance.values()} == {torch.bfloat16}
    assert {value.dtype for value in short.anchor.values()} == {torch.float32}
    short.save(tmp_path / "state.safetensors")
    read = ConsolidationManager(model)
    read.load(tmp_path / "state.safetensors")
    assert read.importance_dtype == "bfloat16"
    assert {value.dtype for value in read.importance.values()} == {torch.bfloat16}
    with pytest.raises(ValueError, match="unknown importance type 'half'"):
        ConsolidationManager(model, importance_dtype="half")


def test_importance_that_is_put_in_place_of_another_is_used():
    model = nn.Linear(2, 1, bias=False)
    manager = ConsolidationManager(model, strength=1.0)
    manager.consolidate({"weight": torch.ones(1, 2)})
    model.weight.data = model.weight.data + 1
    for factor in (1.0, 3.0):
        manager.importance["weight"] = torch.full((1, 2), factor)
        model.weight.grad = torch.zeros(1, 2)
        manager.add_gradient_()
        assert_close(model.weight.grad, torch.full((1, 2), factor))


# --- parameters that are replaced, moved or converted


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def hold_model(model: nn.Module, **options) -> ConsolidationManager:
    manager = ConsolidationManager(model, strength=2.0, **options)
    manager.consolidate(
        {name: torch.ones_like(p, dtype=torch.float32) for name, p in model.named_parameters()}
    )
    return manager


def run_backward(model: nn.Module) -> None:
    model(torch.ones(3, 4, dtype=next(model.parameters()).dtype)).sum().backward()


def assign_weights(model: nn.Sequential) -> None:
    model.load_state_dict({name: p + 1 for name, p in model.state_dict().items()}, assign=True)


def replace_layer(model: nn.Sequential) -> None:
    model[2] = nn.Linear(3, 2)


@pytest.mark.parametrize("replace", [assign_weights, replace_layer])
@pytest.mark.parametrize("use", ["add_gradient_", "proximal_", "consolidate"])
def test_a_held_parameter_that_was_replaced_is_noticed_and_named(replace, use):
    model = small_model()
    manager = hold_model(model)
    replace(model)
    run_backward(model)
    calls = {
        "add_gradient_": manager.add_gradient_,
        "proximal_": lambda: manager.proximal_(0.1),
        "consolidate": lambda: manager.consolidate({"2.weight": torch.ones(2, 3)}),
    }
    first = "0.weight" if replace is assign_weights else "2.weight"
    with pytest.raises(ValueError, match=f"no longer the model's, first '{first}'.*track"):
        calls[use]()


def make_reader() -> transformers.BertModel:
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def test_the_old_rows_of_a_resized_word_table_are_held():
    model = make_reader()
    manager = hold_model(model)
    model.resize_token_embeddings(13)
    table = model.embeddings.word_embeddings.weight
    table.data += 1
    model(torch.tensor([[1, 12]])).last_hidden_state.sum().backward()
    before = table.grad.clone()
    manager.add_gradient_()
    assert_close((table.grad - before)[:11], torch.full((11, 8), 2.0))
    assert not (table.grad - before)[11:].any()


def test_a_word_table_that_lost_rows_is_named():
    model = make_reader()
    manager = hold_model(model)
    model.resize_token_embeddings(9)
    model(torch.tensor([[1, 2]])).last_hidden_state.sum().backward()
    with pytest.raises(
        ValueError,
        match=r"word_embeddings\.weight' was consolidated as \[11, 8\] and is now \[9, 8\]",
    ):
        manager.add_gradient_()


def test_a_successor_is_held_at_the_old_anchor_once_it_is_tracked():
    model = small_model()
    manager = hold_model(model)
    assign_weights(model)
    manager.track(model)
    run_backward(model)
    before = model[0].weight.grad.clone()
    manager.add_gradient_()
    assert_close(model[0].weight.grad - before, torch.full((3, 4), 2.0))


def test_a_head_that_is_not_held_may_come_and_go():
    model = nn.ModuleDict({"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)})
    manager = ConsolidationManager(model, strength=1.0)
    manager.consolidate({"body.weight": torch.ones(3, 4)})
    model["head"] = nn.Linear(3, 5)
    model["second"] = nn.Linear(3, 5)
    model["body"](torch.ones(2, 4)).sum().backward()
    for _ in range(2):
        manager.add_gradient_()


def test_a_held_parameter_without_a_gradient_is_warned_of_once_and_named():
    model = small_model()
    manager = hold_model(model)
    model[2].requires_grad_(False)
    model[0](torch.ones(1, 4)).sum().backward()
    model[2].requires_grad_(True)
    with pytest.warns(
        UserWarning, match=r"2 held parameters train but have no gradient \(2.weight, 2.bias\)"
    ):
        manager.add_gradient_()
    model[2].zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.add_gradient_()


def test_dead_parameters_of_a_manager_that_knows_no_model_are_warned_of():
    model = small_model()
    manager = ConsolidationManager(model.named_parameters(), strength=2.0)
    manager.consolidate({"0.weight": torch.ones(3, 4)})
    assign_weights(model)
    run_backward(model)
    with pytest.warns(UserWarning, match=r"no gradient \(0\.weight\).*given other parameters"):
        manager.add_gradient_()


def test_importance_and_anchor_follow_a_model_that_was_converted():
    # a model moves to another device in the same way: its parameters stay and their data change
    model = small_model()
    manager = hold_model(model)
    expected = {
        name: 2.0 * torch.ones_like(p, dtype=torch.double) for name, p in model.named_parameters()
    }
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    manager.add_gradient_()
    assert_close({name: p.grad for name, p in model.named_parameters()}, expected)
    assert {t.dtype for t in (*manager.importance.values(), *manager.anchor.values())} == {
        torch.double
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_importance_and_anchor_of_16_bit_weights_are_kept_in_32_bits(dtype):
    model = small_model().to(dtype)
    manager = ConsolidationManager(model, strength=1.0)
    tiny = {
        name: torch.full_like(p, 1e-8, dtype=torch.float32) for name, p in model.named_parameters()
    }
    for _ in range(400):
        manager.consolidate(tiny)
    assert manager.importance["0.weight"].dtype == torch.float32
    assert_close(manager.importance["0.weight"], torch.full((3, 4), 4e-6))
    assert_close(manager.anchor["0.weight"], model[0].weight.detach().float())


def test_the_pull_on_16_bit_weights_is_computed_in_32_bits():
    model = small_model().bfloat16()
    manager = hold_model(model)
    with torch.no_grad():
        model[0].weight.add_(0.5)
    run_backward(model)
    before = model[0].weight.grad.clone()
    away = model[0].weight.detach().float() - manager.anchor["0.weight"]
    manager.add_gradient_()
    assert_close(model[0].weight.grad, before + (2.0 * away).bfloat16(), rtol=0, atol=0)
    manager.proximal_(0.25)
    expected = manager.anchor["0.weight"] + away / 1.5
    assert_close(model[0].weight.detach().float(), expected, rtol=1e-2, atol=1e-3)


def test_a_compiled_model_is_held_under_the_names_of_the_bare_one():
    model = small_model()
    manager = hold_model(torch.compile(model, backend="eager")._orig_mod)
    compiled = ConsolidationManager(torch.compile(model, backend="eager"), strength=2.0)
    compiled.load_state_dict(manager.state_dict())
    assert list(compiled.importance) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_task_without_a_step_adds_nothing_to_the_importance_of_a_path():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = PathIntegral(model.named_parameters())
    path.attach(optimizer)
    manager = ConsolidationManager(model, strength=1.0, merge="online", path=path)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        manager.add_gradient_()
        optimizer.step()
    manager.consolidate(path.importance())
    first = {name: value.clone() for name, value in manager.importance.items()}
    assert max(float(value.max()) for value in first.values()) > 0
    manager.consolidate(path.importance())
    assert_close(manager.importance, first, rtol=0, atol=0)


# --- calls that cannot be answered


def test_parameters_without_names_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"give the model, or model\.named_parameters\(\)"):
        ConsolidationManager(small_model().parameters())


def test_a_generator_that_was_used_up_is_refused():
    named = small_model().named_parameters()
    list(named)
    with pytest.raises(ValueError, match="no parameters were given"):
        ConsolidationManager(named)


def test_a_strength_in_words_is_refused():
    with pytest.raises(ValueError, match="strength must be a number of at least 0, found '1e4'"):
        ConsolidationManager(small_model(), strength="1e4")


def test_a_manager_says_what_it_holds():
    model = nn.Linear(3, 2)
    manager = ConsolidationManager(model, strength=3.0)
    manager.consolidate({name: torch.ones_like(p) for name, p in model.named_parameters()})
    assert "8 weights of 2 tensors; strength 3, merge sum" in repr(manager)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("merge", ["sum", "online", "share", "latest"])
def test_strength_auto_gives_the_stated_mean_stiffness_after_the_first_task_and_stays(merge, dtype):
    torch.manual_seed(0)
    model = Weights()
    manager = ConsolidationManager(
        model, "auto", stiffness=0.3, merge=merge, importance_dtype=dtype
    )
    assert manager.strength == 0
    assert "strength auto (mean stiffness 0.3): not chosen yet" in manager.describe()
    first = {name: torch.rand(p.shape) for name, p in trained(model)}
    manager.consolidate(first)
    kept = [first[name].to(getattr(torch, dtype)).double().flatten() for name in first]
    assert manager.strength == pytest.approx(0.3 / float(torch.cat(kept).mean()), rel=1e-12)
    assert manager.diagnose().mean_stiffness == pytest.approx(0.3, rel=1e-6)
    chosen = manager.strength
    move(model)
    second = {name: 5 * torch.rand(p.shape) for name, p in trained(model)}
    manager.consolidate(second, 0.5 if merge == "share" else None)
    assert manager.strength == chosen
    assert manager.diagnose().strength == chosen
    assert manager.diagnose().mean_stiffness != pytest.approx(0.3, rel=1e-2)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def test_strength_auto_pulls_like_the_same_strength_given_as_a_number():
    torch.manual_seed(0)
    model = Weights()
    importance = {name: torch.rand(p.shape) for name, p in trained(model)}
    auto = ConsolidationManager(model, "auto", stiffness=2.0)
    auto.consolidate(importance)
    given = ConsolidationManager(model, auto.strength)
    given.consolidate(importance)
    move(model)
    assert auto.penalty() == given.penalty()
    pulls = []
    for manager in (auto, given):
        for _, parameter in trained(model):
            parameter.grad = torch.zeros_like(parameter)
        manager.add_gradient_()
        pulls.append([parameter.grad.clone() for _, parameter in trained(model)])
    assert_close(pulls[0], pulls[1], rtol=0, atol=0)


def test_importance_that_is_all_zero_leaves_strength_auto_to_the_next_task():
    model = Weights()
    zero = {name: torch.zeros(p.shape) for name, p in trained(model)}
    manager = ConsolidationManager(model, "auto", stiffness=0.3)
    manager.consolidate(zero)
    assert manager.strength == 0
    manager.consolidate({name: value + 2 for name, value in zero.items()})
    assert manager.strength == pytest.approx(0.15, rel=1e-12)


def test_a_chosen_strength_is_part_of_the_state(tmp_path):
    torch.manual_seed(0)
    model = Weights()
    manager = ConsolidationManager(model, "auto", stiffness=0.3)
    manager.save(tmp_path / "before.safetensors")
    manager.consolidate({name: torch.rand(p.shape) for name, p in trained(model)})
    manager.save(tmp_path / "after.safetensors")
    other = ConsolidationManager(model, "auto", stiffness=7)
    other.load(tmp_path / "after.safetensors")
    assert (other.strength, other.stiffness) == (manager.strength, 0.3)
    # a state from before the first task still chooses
    other.load(tmp_path / "before.safetensors")
    other.consolidate({name: torch.ones(p.shape) for name, p in trained(model)})
    assert other.strength == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("strength", "stiffness", "message"),
    [
        ("auto", None, "strength 'auto' needs stiffness"),
        (1.0, 0.3, "stiffness is the target of strength 'auto', found strength 1.0"),
        ("auto", 0.0, "stiffness must be a number above 0, found 0.0"),
        ("auto", math.nan, "stiffness must be a number above 0, found nan"),
        ("auto", math.inf, "stiffness must be a number above 0, found inf"),
        ("auto", "0.3", "stiffness must be a number above 0, found '0.3'"),
        ("automatic", None, "strength must be a number of at least 0, found 'automatic'"),
    ],
)
def test_strength_auto_and_stiffness_go_together(strength, stiffness, message):
    with pytest.raises(ValueError, match=message):
        ConsolidationManager(Weights(), strength, stiffness=stiffness)


def test_a_mean_that_no_strength_can_scale_is_refused_and_changes_nothing():
    model = Weights()
    path = PathIntegral(model.named_parameters(), clip="none")
    manager = ConsolidationManager(model, "auto", stiffness=0.3, path=path)
    negative = {name: -torch.ones(p.shape) for name, p in trained(model)}
    with pytest.raises(ValueError, match="the mean importance is -1, and it must be positive"):
        manager.consolidate(negative)
    assert (manager.strength, manager.importance, manager.history) == (0, {}, [])
    vanishing = {name: torch.full(p.shape, 1e-45) for name, p in trained(model)}
    with pytest.raises(ValueError, match=r"no strength gives a mean stiffness of 0.3"):
        manager.consolidate(vanishing)
