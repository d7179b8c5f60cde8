"""Stages that runs have in common are learned once, and nothing else changes."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from killing import assert_same_importance, read_scores, read_weights, start
from tiny_run import (
    Perceptron,
    Points,
    Share,
    assert_identical,
    configure,
    make_points,
    write_world,
)

from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.method import Method
from mcit.methods.ewc import Ewc
from mcit.methods.finetune import Finetune
from mcit.methods.joint import Joint
from mcit.methods.l2_anchor import L2Anchor
from mcit.methods.mas import Mas
from mcit.methods.replay import Replay
from mcit.methods.si import Si
from mcit.models.learner import Learner
from mcit.runner.plan import Plan
from mcit.runner.stage_cache import digest
from mcit.sequence import run
from mcit.task import Head, Track
from mcit.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Apart(Points):
    """Points with a head of their own, so that they can come in any order."""

    @property
    def head(self) -> Head:
        return Head(
            self.name.replace("[", "_").replace("]", ""), outputs=self.total, layout="linear"
        )

    def metric(self) -> Share:
        return Share()


def make_apart(count: int, **recipe) -> list[Apart]:
    return [
        Apart(task.x, task.y, task.known, task.total, task.recipe)
        for task in make_points([2] * count, **recipe)
    ]


class World:
    """Runs on points, which count the fits that were really made."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder, self.fits, self.runs = folder, [], 0
        patch.setattr(Plan, "build_learner", lambda plan: Learner(Perceptron()))
        fit = Trainer.fit

        def count(trainer, stage, method, **options):
            self.fits.append((stage.index, stage.task.name))
            return fit(trainer, stage, method, **options)

        patch.setattr(Trainer, "fit", count)

    def run(self, tasks, method: Method, cache: str | None = "cache", seed: int = 1, **training):
        """The folder of a run, and what it said."""
        config = parse(RunConfig, {"seed": seed, "training": training, "method": method.name})
        plan = Plan(config, tasks, method, Track.TASKS, embedded=False)
        self.runs += 1
        output, said = self.folder / f"run-{self.runs}", []
        folder = None if cache is None else self.folder / cache
        run(plan, output, progress=False, say=said.append, cache=folder)
        return output, said

    def count(self, *arguments, **options) -> int:
        before = len(self.fits)
        self.run(*arguments, **options)
        return len(self.fits) - before


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def assert_same(found: Path, expected: Path) -> None:
    one, other = read_scores(found), read_scores(expected)
    assert one == other
    assert_identical(read_weights(found), read_weights(expected))
    assert_same_importance(found, expected)


# How much is shared


def test_all_orders_of_three_tasks_take_15_stages_instead_of_18(world):
    tasks = make_apart(3)
    outputs = {}
    for order in itertools.permutations(range(3)):
        outputs[order], _ = world.run([tasks[i] for i in order], Finetune())
    assert len(world.fits) == 3 + 3 * 2 + 3 * 2 == 15
    for order in ((0, 1, 2), (2, 0, 1)):
        alone, _ = world.run([tasks[i] for i in order], Finetune(), cache=None)
        assert_same(outputs[order], alone)


def test_orders_share_what_a_method_holds_too(world):
    tasks = make_apart(3)
    for order in ((0, 1, 2), (0, 2, 1)):
        output, _ = world.run([tasks[i] for i in order], Ewc(strength=5.0))
        assert_same(output, world.run([tasks[i] for i in order], Ewc(strength=5.0), cache=None)[0])
    assert len(world.fits) == 5 + 6  # the first stage once, and six without the cache


def test_a_sweep_trains_the_first_task_once(world):
    tasks = make_apart(2)
    methods = [
        Ewc(strength=1.0),
        Ewc(strength=1e3),
        Mas(strength=1.0),
        L2Anchor(strength=0.1),
        Finetune(),
    ]
    methods += [Replay(fraction=0.5, frequency=1), Ewc(strength=1.0, penalty="proximal")]
    for method in methods:
        alone = copy.deepcopy(method)
        output, said = world.run(tasks, method)
        assert_same(output, world.run(tasks, alone, cache=None)[0])
    first = [index for index, _ in world.fits if index == 0]
    assert len(first) == 1 + len(methods)  # one for all, and one for each without the cache
    assert f"{tasks[0].name}: 3 steps from the stage cache" in said


def test_si_takes_its_own_steps_for_it_gathers_a_path_along_them(world):
    tasks = make_apart(3)
    assert world.count(tasks, Finetune()) == 3
    assert world.count(tasks, Si(strength=1.0)) == 3
    assert world.count(tasks, Si(strength=50.0, damping=0.2)) == 3
    for options in ({"strength": 1.0}, {"strength": 50.0, "damping": 0.2}):
        assert_same(
            world.run(tasks, Si(**options))[0], world.run(tasks, Si(**options), cache=None)[0]
        )


def test_a_run_repeated_learns_nothing_and_says_so(world):
    tasks = make_apart(2)
    once, _ = world.run(tasks, Ewc(strength=3.0))
    before = len(world.fits)
    again, said = world.run(tasks, Ewc(strength=3.0))
    assert len(world.fits) == before
    assert_same(again, once)
    assert [line.endswith("(from the stage cache)") for line in said] == [True, True]


def test_joint_training_counts_what_comes_later(world):
    tasks = make_apart(3)
    assert world.count(tasks, Joint()) == 3
    # all is learned at once, in another order
    assert world.count([tasks[0], tasks[2], tasks[1]], Joint()) == 3


def test_an_order_that_goes_on_shares_all_but_the_last_task_of_the_shorter_one(world):
    tasks = make_apart(4)
    assert world.count(tasks[:3], Finetune()) == 3
    # after the last task of an order nothing is measured
    assert world.count(tasks, Finetune()) == 2


# What is not shared


def test_whatever_changes_a_number_changes_the_stage(world):
    tasks = make_apart(2)
    world.run(tasks, Finetune())
    other = replace(tasks[0], x=tasks[0].x + 1e-3)
    slower = replace(tasks[0], recipe=replace(tasks[0].recipe, learning_rate=0.09))
    for case in (
        {"tasks": [other, tasks[1]]},
        {"tasks": [slower, tasks[1]]},
        {"tasks": tasks, "seed": 2},
        {"tasks": tasks, "accumulate": 2},
    ):
        assert world.count(case.pop("tasks"), Finetune(), **case) == 2
    assert (
        world.count(tasks, Finetune(), log_every=7) == 0
    )  # how often it is logged changes nothing


def test_a_change_of_the_sources_is_another_stage(world, monkeypatch):
    tasks = make_apart(1)
    world.run(tasks, Finetune())
    monkeypatch.setattr("mcit.runner.stage_cache._digest_sources", lambda: "other")
    assert world.count(tasks, Finetune()) == 1


def test_a_digest_changes_with_anything_inside():
    task = make_points([2])[0]
    values = [
        None,
        "",
        0,
        0.0,
        False,
        [],
        {},
        [0],
        [[0]],
        {"a": 0},
        {"b": 0},
        "0",
        torch.zeros(1),
        torch.zeros(1, 1),
    ]
    values += [
        torch.zeros(1, dtype=torch.int32),
        task,
        replace(task, known=1),
        Path("x"),
        ["ab", "c"],
        ["a", "bc"],
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    with pytest.raises(TypeError, match="has no digest"):
        digest(object())


# What can go wrong


def test_a_damaged_entry_is_learned_again(world):
    tasks = make_apart(1)
    once, _ = world.run(tasks, Finetune())
    for file in (world.folder / "cache").glob("*/learner.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    again, said = world.run(tasks, Finetune())
    assert len(world.fits) == 2
    assert any("is damaged" in line and "computed again" in line for line in said)
    assert_same(again, once)
    assert world.count(tasks, Finetune()) == 0


def test_swapped_entries_are_noticed_and_learned_again(world):
    tasks = make_apart(2)
    once, _ = world.run(tasks, Finetune())
    cache = world.folder / "cache"
    names = sorted(path.name for path in cache.iterdir())
    assert len(names) > 1
    # each gets the next one's name: whichever is asked for is another's
    for name in names:
        (cache / name).rename(cache / f"{name}.aside")
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        (cache / f"{name}.aside").rename(cache / other)
    again, said = world.run(tasks, Finetune())
    assert any("it belongs to" in line and "computed again" in line for line in said)
    assert_same(again, once)
    assert world.count(tasks, Finetune()) == 0


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling link"])
def test_what_is_no_entry_is_removed_and_the_stage_learned_again(world, kind):
    tasks = make_apart(1)
    once, _ = world.run(tasks, Finetune())
    for path in (world.folder / "cache").iterdir():
        shutil.rmtree(path)
        if kind == "file":
            path.write_text("")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(world.folder / "nowhere")
    again, said = world.run(tasks, Finetune())
    assert any("is damaged" in line and "computed again" in line for line in said)
    assert_same(again, once)
    assert world.count(tasks, Finetune()) == 0


def test_a_cache_that_cannot_be_written_is_refused_at_once(world):
    (world.folder / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written to .*choose another --stage-cache"):
        world.run(make_apart(1), Finetune(), cache="file/cache")
    assert world.fits == []


# On both tracks, with methods that keep things of their own

KEEPERS = {
    "adapters": {"method__rank": 2},
    "single": {},
    "joint": {},
    "si": {"method__strength": 10.0},
    "lwf": {"method__strength": 3.0},
    "ewc_dr": {"method__strength": 10.0},
    "ewc_delta": {"method__strength": 10.0, "model__lora__rank": 2},
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("order", "method"),
    [("vcr,nlvr2", name) for name in ("adapters", "single", "joint", "ewc_dr", "ewc_delta")]
    + [("shapes:2x2", name) for name in ("si", "lwf")],
)
def test_results_are_the_same_with_and_without(pairs, tmp_path, order, method):
    few = (
        {"tasks__shapes__classes": 4, "model__channels_last": False}
        if order.startswith("shapes")
        else {}
    )
    config = configure(order, method, None if few else pairs, **KEEPERS[method], **few)
    start(config, tmp_path / "without")
    for name in ("cold", "warm"):
        start(config, tmp_path / name, cache=tmp_path / "cache")
        assert_same(tmp_path / name, tmp_path / "without")


def test_steps_that_were_refreshed_are_shared_with_other_methods_and_not_with_runs_that_refresh_nothing(
    tmp_path,
):
    few = {"tasks__shapes__classes": 4, "model__channels_last": False}
    held = {
        "method__strength": 10.0,
        "method__estimator__unit": "batch",
        "method__estimator__mode": "train",
    }
    for name, method, options in [
        ("refreshed", "finetune", {"training__refresh_batchnorm": True}),
        ("held", "ewc_dr", {"training__refresh_batchnorm": True, **held}),
        ("as learned", "finetune", {}),
    ]:
        said = []
        config = configure("shapes:2x2", method, **few, **options)
        start(config, tmp_path / name / "without")
        start(config, tmp_path / name / "with", cache=tmp_path / "cache", say=said.append)
        assert_same(tmp_path / name / "with", tmp_path / name / "without")
        assert ("shapes[0-1]: 4 steps from the stage cache" in said) == (name == "held")
