"""A strength that the run chooses: from the first task's importance, and from nothing later."""

from __future__ import annotations

import pytest
import torch
from report_runs import STIFFNESS, make_config, make_run
from tiny_run import assert_identical, begin_points, configure, go_on, learn, make_points

from mcit.config.files import load_config
from mcit.config.identity import keep_kinds
from mcit.config.options import Kind
from mcit.errors import ConfigError
from mcit.methods.ewc import Ewc
from mcit.methods.l2_anchor import L2Anchor
from mcit.reports.groups import group_runs
from mcit.reports.runs import read_run
from mcit.reports.tables import describe_run, make_tables
from mcit.runner.plan import resolve

SMALL = {"tasks__shapes__classes": 4, "tasks__shapes__recipe__learning_rate": 0.01}


def make(order, method, *assignments):
    return resolve(load_config(None, {"order": order, "method": method}, assignments))


def learn_first(method, sizes, seed=0):
    """Learn a task of two classes before others of so many: the stage, and what was found."""
    tasks = [make_points([2, 2])[0], *make_points([2, *sizes], seed=seed)[1:]]
    stage, trainer = begin_points(tasks, method)
    trainer.fit(stage, method)
    outcome = method.end_task(stage)
    return stage, trainer, outcome


def test_a_run_with_strength_auto_is_the_run_with_the_strength_it_chose(tmp_path):
    asked = {"method__strength": "auto", "method__stiffness": 0.2, **SMALL}
    auto = learn(configure("shapes:2x2", "ewc", **asked), tmp_path / "auto")
    chosen = auto.result.stiffness[0]["strength"]
    assert auto.result.stiffness[0]["mean"] == pytest.approx(0.2, rel=1e-6)
    given = learn(configure("shapes:2x2", "ewc", method__strength=chosen, **SMALL), tmp_path / "g")
    assert_identical(auto.state, given.state)
    assert "strength auto (mean stiffness 0.2)" in read_run(tmp_path / "auto").scores.estimator
    notes = [note.text for note in describe_run(read_run(tmp_path / "auto"))]
    assert f"strength auto chose {chosen:.4g}" in notes


def test_later_tasks_do_not_decide_strength_auto():
    method = Ewc("auto", stiffness=0.2)
    _, _, outcome = learn_first(method, [2])
    other = Ewc("auto", stiffness=0.2)
    learn_first(other, [3, 4], seed=5)
    values = torch.cat([value.flatten() for value in outcome.importance.values.values()]).double()
    assert method.manager.strength == pytest.approx(0.2 / float(values.mean()), rel=1e-6)
    assert other.manager.strength == method.manager.strength


def test_a_second_task_does_not_change_what_was_chosen():
    method = Ewc("auto", stiffness=0.2)
    stage, trainer, _ = learn_first(method, [2, 2])
    chosen = method.manager.strength
    later = go_on(stage, method, trainer)
    trainer.fit(later, method)
    diagnosis = method.end_task(later).diagnosis
    assert method.manager.strength == chosen
    # importance is a sum over tasks, so the mean has grown with it
    assert diagnosis.mean_stiffness > 0.2


def test_equal_importance_is_held_with_the_stiffness_itself():
    method = L2Anchor("auto", stiffness=0.25)
    learn_first(method, [2])
    assert method.manager.strength == 0.25


def test_a_configuration_gives_the_stiffness_and_the_run_records_it():
    plan = make("shapes:5x4", "ewc", "method.strength=auto")
    assert plan.experiment()["method"]["strength"] == "auto"
    assert plan.experiment()["method"]["stiffness"] == 0.15
    asked = make("shapes:5x4", "ewc", "method.strength=auto", "method.stiffness=2")
    assert asked.experiment()["method"]["stiffness"] == 2


def test_a_part_of_a_combination_can_have_strength_auto():
    plan = make("shapes:5x4", "lwf+ewc_lo", "methods.ewc_lo.strength=auto")
    assert plan.experiment()["method"]["ewc_lo"]["stiffness"] == 0.15
    assert "strength auto (mean stiffness 0.15)" in plan.describe_method()


def test_runs_with_a_number_are_the_experiments_they_were():
    assert "stiffness" not in keep_kinds(Ewc(3.0), Kind.RESULT)
    given = make("shapes:5x4", "ewc", "method.strength=3", "stiffness=7")
    assert "stiffness" not in given.experiment()
    assert "stiffness" not in given.experiment()["method"]


@pytest.mark.parametrize(
    ("method", "assignments", "words"),
    [
        ("lwf", ["method.strength=auto"], "method 'lwf' has no strength auto, which is for"),
        ("finetune", ["method.strength=auto"], "unknown key 'method.strength'"),
        ("ewc", ["method.strength=car"], "'method.strength' must be a number or 'auto', found"),
        ("ewc", ["method.stiffness=1"], "method.stiffness is the aim of strength auto, found"),
        (
            "ewc",
            ["method.strength=auto", "method.stiffness=0"],
            "method.stiffness must be a number above 0, found 0",
        ),
        ("ewc", ["method.strength=auto", "stiffness=-1"], "'stiffness' must be above 0, found -1"),
        (
            "lwf+ewc_lo",
            ["methods.lwf.strength=auto"],
            "method 'lwf' has no strength auto, which is for",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_sentence(method, assignments, words):
    with pytest.raises(ConfigError, match=words) as error:
        make("vqa,nlvr2", method, *assignments)
    assert len(error.value.problems) == 1


def test_without_a_stiffness_to_aim_at_strength_auto_is_refused():
    with pytest.raises(ConfigError, match="which needs a mean stiffness to aim at"):
        Ewc("auto")


def test_a_comparison_shows_the_strength_that_was_chosen():
    tasks = {"tasks": ("a", "b"), "chance": (0.0, 50.0)}
    matrix = [[80.0], [60.0, 90.0]]
    config = make_config("ewc", ("a", "b"), options={"strength": "auto", "stiffness": 0.2})
    runs = [make_run("finetune", matrix, **tasks)]
    for seed, strength in ((1, 30.0), (2, 50.0)):
        stiffness = [{**STIFFNESS, "strength": strength}]
        made = make_run("ewc", matrix, seed, {**config, "seed": seed}, stiffness=stiffness, **tasks)
        runs.append(made)
    table = make_tables(group_runs(runs))[0]
    place = [column.head for column in table.columns].index("strength")
    shown = {row.label: table.texts(row)[place] for row in table.rows}
    assert shown == {"chance": "", "ewc": "40", "finetune": "–"}
