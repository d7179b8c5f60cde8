"""A run that is killed at any call that changes a file ends with the same bits once it is
resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from killing import assert_same_end, run_and_kill
from tiny_run import Perceptron, Points, Share, make_points

from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.method import Method
from mcit.methods.ewc import Ewc
from mcit.methods.si import Si
from mcit.models.learner import Learner
from mcit.runner.plan import Plan
from mcit.sequence import run
from mcit.task import Track

EVERY = 7
METHODS = {"ewc": partial(Ewc, strength=5.0), "si": partial(Si, strength=5.0)}


@dataclass(frozen=True, eq=False)
class QuickPoints(Points):
    def metric(self) -> Share:
        return Share()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(Plan, "build_learner", lambda plan: Learner(Perceptron()))


def learn(make: Callable[[], Method], output: Path, resume: bool = False) -> None:
    """Two tasks of three steps, a checkpoint after every second, from new objects as in a new
    process."""
    method = make()
    AcceleratorState._reset_state(reset_partial_state=False)
    data = {
        "seed": 1,
        "method": method.name,
        "training": {"log_every": 2},
        "checkpoint": {"every_steps": 2},
    }
    tasks = [
        QuickPoints(task.x, task.y, task.known, task.total, task.recipe)
        for task in make_points([2, 2])
    ]
    plan = Plan(parse(RunConfig, data), tasks, method, Track.TASKS, embedded=False)
    run(plan, output, progress=False, say=lambda line: None, resume=resume)


def assert_nothing_is_left_over(folder: Path) -> None:
    drafts = [path for path in folder.rglob("*") if ".tmp" in path.name or ".aside" in path.name]
    assert not drafts


@pytest.mark.parametrize("name", METHODS)
def test_killed_at_every_seventh_call_a_run_ends_with_the_same_bits(tmp_path, name):
    make = METHODS[name]
    total = run_and_kill(partial(learn, make, tmp_path / "whole"), tmp_path)
    assert total > 60
    for call in range(1, total + 1, EVERY):
        folder = tmp_path / str(call)
        run_and_kill(partial(learn, make, folder), tmp_path, last=call)
        learn(make, folder, resume=True)
        assert_same_end(folder, tmp_path / "whole")
        assert_nothing_is_left_over(folder)


@pytest.mark.parametrize("name", METHODS)
def test_killed_at_every_seventh_call_of_its_resumption_a_run_ends_with_the_same_bits(
    tmp_path, name
):
    make = METHODS[name]
    total = run_and_kill(partial(learn, make, tmp_path / "whole"), tmp_path)
    run_and_kill(partial(learn, make, tmp_path / "killed"), tmp_path, last=total // 2)
    shutil.copytree(tmp_path / "killed", tmp_path / "resumed")
    left = run_and_kill(partial(learn, make, tmp_path / "resumed", resume=True), tmp_path)
    for call in range(1, left + 1, EVERY):
        folder = tmp_path / str(call)
        shutil.copytree(tmp_path / "killed", folder)
        run_and_kill(partial(learn, make, folder, resume=True), tmp_path, last=call)
        learn(make, folder, resume=True)
        assert_same_end(folder, tmp_path / "whole")
        assert_nothing_is_left_over(folder)
