"""Both sides of the race learn and score the same; no test asserts a time."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.testing import assert_close

from mcit.bench import steps
from mcit.cli import main
from mcit.embedded.benchmark import Sizes, write_benchmark


@pytest.fixture(scope="module")
def result() -> dict:
    return steps.measure(quick=True)


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> tuple[steps.OurSteps, steps.PlainSteps]:
    size = steps.QUICK
    root = tmp_path_factory.mktemp("data")
    write_benchmark(root, Sizes(train=size.batch * size.steps, evaluation=size.batch * size.steps))
    return steps.OurSteps(root, size, "no"), steps.PlainSteps(root, size)


def test_every_figure_is_there_positive_and_finite(result):
    figures = list(steps.list_figures(result))
    assert len(figures) == 2 * len(result.keys() & {"no", "bf16"})
    assert all(math.isfinite(value) and value > 0 for _, value, _ in figures)
    # one goal, for training in the precision of a run
    assert [goal for _, _, goal in figures if goal is not None] == [steps.GOAL]


def test_the_json_form_is_json_and_the_table_tells_goals_met_from_missed(
    result, capsys, monkeypatch
):
    monkeypatch.setattr(steps, "measure", lambda quick: {**result, "quick": quick})
    assert main(["bench", "steps", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    slow = {**result, "no": {**result["no"], "train": {**result["no"]["train"], "speedup": 1.0}}}
    slow.pop("bf16", None)
    steps.print_result(slow)
    assert "NO" in capsys.readouterr().out


def test_both_sides_see_the_same_features(sides):
    ours, reference = sides
    stage = ours.stage
    batch = next(iter(stage.load(stage.task, "eval"))).batch
    with torch.no_grad():
        features = stage.learner.eval()(batch, stage.task.head).features
        reference.model.eval()
        inputs = []
        reference.model.register_forward_hook(
            lambda module, given, output: inputs.append(output.pooler_output)
        )
        next(iter(reference._answer("dev")))
    assert_close(features, inputs[0], atol=2e-5, rtol=1e-4)


def test_both_sides_count_all_steps_but_the_first(sides):
    ours, reference = sides
    assert ours.train() > 0
    assert reference.train() > 0
    assert ours.score() > 0
    assert reference.score() > 0
