"""The benchmark measures what it says it does; no test asserts a time."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mcit.bench import consolidation
from mcit.cli import main
from mcit.consolidation import ConsolidationManager
from mcit.importance import measure_importance


@pytest.fixture(scope="module")
def result() -> dict:
    return consolidation.measure(quick=True)


@pytest.mark.slow
def test_every_figure_is_there_positive_and_finite(result):
    for key in (
        "penalty_speedup",
        "penalty_over_floor",
        "penalty_over_kernel",
        "penalty_over_kernel_bf16",
        "penalty_seconds",
        "penalty_parameters",
        "bytes_per_weight",
    ):
        assert math.isfinite(result[key])
        assert result[key] > 0
    for key in ("importance_over_pass", "one_at_a_time_over_ours"):
        assert set(result[key]) == {"vilt", "resnet18"}
    for key in (
        "importance_over_pass",
        "one_at_a_time_over_ours",
        "importance_first_over_pass",
        "importance_over_best_rival",
        "importance_peak_over_training",
    ):
        assert result[key]
        assert all(math.isfinite(value) and value > 0 for value in result[key].values())
    (network,) = result["channels_last"].values()
    assert set(network) == {"penalty_speedup", "penalty_over_kernel"}
    assert result["quick"] is True
    assert result["threads"] == torch.get_num_threads()


@pytest.mark.slow
def test_two_numbers_are_held_per_weight_whatever_the_number_of_tasks(result):
    assert result["bytes_per_weight"] == 8
    assert result["bytes_grow_with_tasks"] is False
    assert result["growth"]["bytes_held"] == result["growth"]["bytes_saved"] == 1


@pytest.mark.slow
def test_the_json_form_is_json_and_nothing_else(result, capsys, monkeypatch):
    monkeypatch.setattr(consolidation, "measure", lambda quick: {**result, "quick": quick})
    assert main(["bench", "consolidation", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.slow
def test_the_table_tells_goals_met_from_goals_missed(result, capsys):
    good = {
        "penalty_speedup": 10.5,
        "penalty_over_floor": 1.5,
        "penalty_over_kernel": 1.6,
        "penalty_over_kernel_bf16": 1.2,
        "growth": {"step": 1.0, "consolidation": 1.1, "bytes_held": 1.0, "bytes_saved": 1.0},
        "channels_last": {"resnet18 w16": {"penalty_speedup": 8.5, "penalty_over_kernel": 3.0}},
        "importance_over_pass": {"vilt": 1.5, "resnet18": 1.9},
        "importance_first_over_pass": {"vilt": 1.4},
        "importance_over_best_rival": {"vilt": 0.8},
        "importance_peak_over_training": {"vilt": 0.9},
    }
    consolidation.print_result({**result, **good})
    printed = capsys.readouterr().out
    assert "Goals missed" not in printed
    assert printed.count("yes") == 14
    # enough for a channels_last network
    consolidation.print_result({**result, **good, "penalty_speedup": 8.5})
    printed = capsys.readouterr().out
    assert "Goals missed on this run: penalty step" in printed
    assert printed.count("NO") == 1


def test_fifty_tasks_are_held_and_saved_in_the_bytes_of_one(monkeypatch):
    consolidated = []
    consolidate = ConsolidationManager.consolidate

    def count(manager, importance):
        consolidated.append(id(manager))
        consolidate(manager, importance)

    monkeypatch.setattr(ConsolidationManager, "consolidate", count)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    growth = consolidation.measure_growth(network)
    assert growth["bytes_held"] == growth["bytes_saved"] == 1
    assert growth.keys() == consolidation.GROWTH_LABELS.keys()
    few, many = dict.fromkeys(consolidated)
    assert consolidated.count(many) - consolidated.count(few) == consolidation.TASKS - 1


def test_the_rivals_compute_the_same():
    """A race is fair only if both sides arrive: autograd's gradient is the injected one."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    parameters = dict(network.named_parameters())
    manager = ConsolidationManager(parameters.items(), strength=100.0)
    manager.consolidate({name: torch.rand_like(p) for name, p in parameters.items()})
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(torch.randn_like(parameter))
    consolidation._autograd_penalty(parameters, manager)
    autograd = {name: p.grad.clone() for name, p in parameters.items()}
    network.zero_grad()
    manager.add_gradient_()
    torch.testing.assert_close({name: p.grad for name, p in parameters.items()}, autograd)


def test_the_rivals_of_importance_compute_the_same():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).eval()
    inputs = torch.randn(5, 3)
    target = torch.arange(5) % 2
    mapped = consolidation._square_by_vmap(network, inputs, target)
    found = measure_importance(network, [(inputs, target)]).values
    torch.testing.assert_close(mapped, {name: 5 * value for name, value in found.items()})


def test_the_full_measurement_is_on_fifty_million_parameters_or_more():
    from transformers import ViltConfig, ViltModel

    with torch.device("meta"):
        model = ViltModel(ViltConfig(num_hidden_layers=6))
    assert sum(p.numel() for p in model.parameters()) >= 50e6
