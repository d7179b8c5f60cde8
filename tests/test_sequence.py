"""The outer loop: what is on disk and when, what is refused, and that a configuration is a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny_run import assert_identical, configure, learn, resolve, write_world

from mcit.config.files import read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError, DivergedError
from mcit.methods.finetune import Finetune
from mcit.metrics import ScoreMatrix
from mcit.runner.plan import resolve as resolve_plan

SHAPES = "shapes:3x2"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    said = []
    # up to 200, and SGD bears 2 (1 + 0.9) / 0.05 = 76
    stiff = {"method__strength": 2e6, "method__estimator__cap": 1e-4}
    config = configure(SHAPES, "ewc", training__score_before=True, **stiff)
    return learn(config, tmp_path_factory.mktemp("shapes"), say=said.append), said


@pytest.fixture(scope="module")
def pairs(world, tmp_path_factory):
    config = configure("nlvr2,snli-ve", "ewc_dr", world, method__strength=1.0)
    return learn(config, tmp_path_factory.mktemp("pairs") / "run")


def read_scores(run):
    return json.loads((run.result.output / "scores.json").read_text(encoding="utf-8"))


# scores.json


@pytest.mark.parametrize("kind", ["shapes", "pairs"])
def test_scores_have_the_shape_that_other_programs_read(kind, request):
    run = request.getfixturevalue(kind)
    run = run[0] if isinstance(run, tuple) else run
    scores = read_scores(run)
    count = len(run.rows)
    agreed = "version track method estimator seed tasks chance matrix seen metrics cost"
    assert set(agreed.split()) <= scores.keys()
    assert scores["track"] == ("efcil" if kind == "shapes" else "mcit")
    assert scores["method"] == ("ewc" if kind == "shapes" else "ewc_dr")
    assert scores["seed"] == 1
    assert scores["estimator"] == run.method.describe()
    assert len(scores["tasks"]) == len(scores["chance"]) == len(scores["seen"]) == count
    assert [len(row) for row in scores["matrix"]] == list(range(1, count + 1))
    assert scores["matrix"] == run.rows
    metrics = {"A_last", "A_avg", "A_new", "BWT", "forgetting", "forgetting_transfer"}
    assert metrics <= scores["metrics"].keys()
    assert [len(row) for row in scores["metrics"]["forgetting_transfer"]] == list(range(count))
    assert scores["metrics"]["A_last"] == scores["seen"][-1]
    assert scores["cost"]["steps"] > 0
    assert scores["cost"]["bytes_held"] > 0
    assert ScoreMatrix.from_dict(scores).rows == run.result.matrix.rows


@pytest.mark.parametrize("kind", ["shapes", "pairs"])
def test_forgetting_is_measured_from_chance_for_tasks_and_from_nothing_for_classes(kind, request):
    run = request.getfixturevalue(kind)
    scores = read_scores(run[0] if isinstance(run, tuple) else run)
    floor = [0.0] * 3 if kind == "shapes" else scores["chance"]
    learned = scores["metrics"]["A_new"]
    transfer = scores["metrics"]["forgetting_transfer"]
    for row, lost in zip(scores["matrix"], transfer, strict=True):
        for j, share in enumerate(lost):
            above = learned[j] - floor[j]
            if above > 0:
                assert share == pytest.approx(100 * (learned[j] - row[j]) / above)
            else:
                # a task that was not learned at all has nothing to lose
                assert share is None


def test_scores_before_learning_are_kept_where_they_are_asked_for(shapes, pairs):
    assert len(read_scores(shapes[0])["before"]) == 3
    assert read_scores(shapes[0])["metrics"]["FWT"] is not None
    assert "before" not in read_scores(pairs)


def test_the_average_over_classes_seen_is_pooled_accuracy_over_all_of_them(shapes):
    run, _ = shapes
    plan = run.result.plan
    for index, state in enumerate(run.states):
        learner = plan.build_learner()
        learner.grow(plan.tasks[index].head)
        learner.load_state_dict(state)
        right = total = 0
        for task in plan.tasks[: index + 1]:
            examples = task.examples("eval")
            batch = task.collate(examples.__getitems__(range(len(examples))))
            with torch.no_grad():
                logits = learner.eval()(batch, task.head).logits
            assert logits.shape[1] == 2 * (index + 1)
            right += int((logits.argmax(1) == batch["labels"]).sum())
            total += len(examples)
        assert total == 20 * (index + 1)
        assert run.result.matrix.seen[index] == pytest.approx(100 * right / total)


class Interrupted(RuntimeError):
    pass


class Stops(Finetune):
    def begin_task(self, stage):
        if stage.index == 2:
            raise Interrupted
        return ()


def test_an_interrupted_run_leaves_what_was_known_until_then(tmp_path):
    with pytest.raises(Interrupted):
        learn(configure(SHAPES), tmp_path, method=Stops())
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    whole = learn(configure(SHAPES), tmp_path / "whole")
    assert scores["matrix"] == whole.rows[:2]
    assert len(scores["tasks"]) == 3
    assert not list(tmp_path.glob("*.tmp"))


class Diverges(Finetune):
    def after_step(self, stage, step):
        if stage.index == 2 and step.number == 1:
            with torch.no_grad():
                next(stage.learner.encoder.parameters()).fill_(torch.nan)


def test_a_diverged_run_says_where_and_leaves_what_was_known_until_then(tmp_path):
    config = configure(SHAPES, tasks__shapes__recipe__learning_rate=0.025)
    with pytest.raises(DivergedError, match=r"step 2 of 4 on shapes\[4-5\], learning rate 0.025"):
        learn(config, tmp_path, method=Diverges())
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert [len(row) for row in scores["matrix"]] == [1, 2]


# log and configuration


def test_every_line_of_the_log_is_json_with_an_event(shapes):
    run, _ = shapes
    lines = (run.result.output / "log.jsonl").read_text(encoding="utf-8").splitlines()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    entries = [json.loads(line, parse_constant=refuse) for line in lines]
    assert {entry["event"] for entry in entries} == {"step", "task", "warning"}
    assert [entry["scores"] for entry in entries if entry["event"] == "task"] == run.rows
    steps = [entry for entry in entries if entry["event"] == "step"]
    assert all({"time", "task", "step", "loss", "penalty"} <= entry.keys() for entry in steps)


def test_importance_is_kept_only_where_it_is_wanted(tmp_path):
    for wanted in (True, False):
        output = tmp_path / str(wanted)
        learn(
            configure(SHAPES, "l2_anchor", method__strength=1.0, checkpoint__importance=wanted),
            output,
        )
        kept = sorted(path.stem for path in (output / "importance").glob("*.safetensors"))
        assert kept == (["01-shapes[0-1]", "02-shapes[2-3]"] if wanted else [])


def test_a_penalty_too_stiff_for_sgd_is_said_and_logged(shapes):
    _, said = shapes
    warnings = [line for line in said if line.startswith("warning")]
    # before the second and the third task
    assert len(warnings) == 2
    assert "shapes[2-3]" in warnings[0]
    assert "proximal" in warnings[0]
    assert len([line for line in said if line.startswith("after ")]) == 3


def test_the_written_configuration_is_the_run(pairs, tmp_path):
    written = parse(RunConfig, read_yaml(pairs.result.output / "config.yaml"))
    assert written == pairs.result.plan.config
    again = learn(written, tmp_path)
    assert_identical(again.state, pairs.state)
    assert again.rows == pairs.rows
    provenance = json.loads((pairs.result.output / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["config"]["method"]["name"] == "ewc_dr"
    assert provenance["estimator"] == pairs.method.describe()


def test_the_model_that_was_chosen_is_written_down(tmp_path):
    config = replace(configure(SHAPES), model=replace(configure(SHAPES).model, name="auto"))
    assert resolve_plan(config).config.model.name == "resnet18"
    real = resolve_plan(parse(RunConfig, {"order": "nlvr2", "data_root": str(tmp_path)}))
    assert real.config.model.name == "dandelin/vilt-b32-mlm"
    small = resolve_plan(parse(RunConfig, {"order": "nlvr2"}), tmp_path)
    assert small.config.model.name == "embedded"


# Orders


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("nlvr2,vqa,nlvr2", "given twice in the order: nlvr2"),
        ("snli-ve,snli_ve", "given twice in the order: snli-ve"),
        ("shapes:5x4,nlvr2", "cannot be mixed"),
        ("shapes:5x4,cifar100:10x10", "one class-incremental data set"),
        ("shapes:5x4,shapes:5x4", "given twice"),
        ("", "no tasks are given"),
        ("shapes", "needs a split"),
        ("shapes:3x3", "9 classes where shapes has 20"),
        ("nlvr2:2x2", "takes no split"),
        ("nlvr", "did you mean 'nlvr2'"),
    ],
)
def test_orders_that_cannot_be_run_are_refused(order, message):
    with pytest.raises(ConfigError, match=message):
        resolve_plan(parse(RunConfig, {"order": order}))


def test_all_problems_come_in_one_error():
    data = {"order": "nlvr,vqa", "method": {"name": "ewcc"}, "tasks": {"vqa": {"minimun": 3}}}
    with pytest.raises(ConfigError) as caught:
        resolve_plan(parse(RunConfig, data))
    assert len(caught.value.problems) == 3


def test_options_of_an_unknown_task_or_method_are_refused_not_ignored():
    data = {
        "order": "nlvr2",
        "tasks": {"nlvr": {"recipe": {"epochs": 1}}},
        "methods": {"ewcdr": {"strength": 1}},
    }
    with pytest.raises(ConfigError) as caught:
        resolve_plan(parse(RunConfig, data))
    assert "unknown task 'nlvr'; did you mean 'nlvr2'" in str(caught.value)
    assert "unknown method 'ewcdr'; did you mean 'ewc_dr'" in str(caught.value)


def test_a_task_has_its_options_however_its_name_is_spelled():
    for order in ("snli-ve", "snli_ve"):
        for key in ("snli-ve", "snli_ve"):
            data = {"order": order, "tasks": {key: {"recipe": {"epochs": 7}}}}
            assert resolve_plan(parse(RunConfig, data)).tasks[0].recipe.epochs == 7


def test_options_of_a_method_s_own_come_on_top_of_those_by_name():
    data = {
        "order": SHAPES,
        "tasks": {"shapes": {"classes": 6}},
        "methods": {"online_ewc": {"strength": 5, "decay": 0.5}},
    }
    plan = resolve(parse(RunConfig, {**data, "method": {"name": "online_ewc", "strength": 7}}))
    assert (plan.method.strength, plan.method.decay) == (7, 0.5)
