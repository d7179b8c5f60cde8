"""The benchmark measures what it says it does; no test asserts a time."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.testing import assert_close

from mcit.bench import generative
from mcit.bench.measuring import peak_bytes
from mcit.cli import main
from mcit.importance import measure_importance


@pytest.fixture(scope="module")
def result() -> dict:
    return generative.measure(quick=True)


@pytest.mark.slow
def test_every_figure_is_there_positive_and_finite(result):
    for key in generative.LABELS:
        assert len(result[key]) == 4
        assert all(math.isfinite(value) and value > 0 for value in result[key].values())
    assert result["bytes_per_weight"] == 8
    assert result["product_penalty_speedup"] > 0
    assert result["bytes_grow_with_tasks"] is False


@pytest.mark.slow
def test_the_json_form_is_json_and_the_table_tells_missed_goals(result, capsys, monkeypatch):
    slow = {**result, "importance_over_pass": {"LoRA": 9.0}}
    monkeypatch.setattr(generative, "measure", lambda quick: slow)
    assert main(["bench", "generative", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == slow
    assert main(["bench", "generative", "--quick"]) == 0
    assert "NO" in capsys.readouterr().out


def test_both_sides_of_the_race_measure_the_same():
    _, case = next(generative.make_cases(generative.QUICK))
    found = measure_importance(case.model, [case.batch], generative.ESTIMATOR)
    assert set(found.paths.values()) == {"rule"}
    for key, total in case.measure_one_at_a_time().items():
        expected = total / len(case.batch["labels"])
        assert_close(found.values[key], expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def test_a_peak_counts_what_is_live_at_once():
    def allocate() -> None:
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        third = torch.empty(250)
        del second, third

    assert peak_bytes(allocate) == 4 * 1500
