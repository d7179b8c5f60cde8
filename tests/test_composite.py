"""Methods in combination: hooks in order, losses that add up, one name, and clashes by name."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from killing import Clock, assert_same_end, kill_until_finished, start
from tiny_run import assert_identical, begin_points, configure, go_on, learn, make_points, resolve
from torch.testing import assert_close

from mcit.composite import compose
from mcit.config.files import find_name_problems
from mcit.config.parse import Selection
from mcit.errors import ConfigError
from mcit.method import Method
from mcit.methods.ewc import Ewc
from mcit.methods.finetune import Finetune
from mcit.methods.joint import Joint
from mcit.methods.lwf import Lwf
from mcit.methods.mas import Mas
from mcit.methods.replay import Replay
from mcit.registry import find_method
from mcit.reports.runs import read_run
from mcit.runner.stage_cache import StageCache
from mcit.session import Session

ORDER = {"tasks__shapes__classes": 4}


def learn_points(method):
    """The weights after two tasks over points."""
    stage, trainer = begin_points(make_points([2, 3]), method, log_every=1000)
    trainer.fit(stage, method)
    method.end_task(stage)
    stage = go_on(stage, method, trainer)
    trainer.fit(stage, method)
    return dict(stage.learner.named_parameters())


def join(*parts: Method) -> Method:
    return compose([type(part) for part in parts])(*parts)


def test_a_part_that_is_switched_off_leaves_the_other_bit_for_bit():
    together = learn_points(join(Lwf(strength=3.0), Ewc(strength=0.0)))
    assert_identical(together, learn_points(Lwf(strength=3.0)))
    together = learn_points(join(Lwf(strength=0.0), Ewc(strength=50.0)))
    assert_identical(together, learn_points(Ewc(strength=50.0)))
    off = learn_points(join(Lwf(strength=0.0), Ewc(strength=0.0)))
    assert_identical(off, learn_points(Finetune()))


def test_penalties_and_extra_losses_of_all_parts_count():
    """A step of plain gradient descent is the sum of what each part adds to that of finetuning."""
    recipe = {"epochs": 1, "batch_size": 64, "momentum": 0.0}

    def step(method):
        stage, trainer = begin_points(make_points([2, 3], **recipe), method, log_every=1000)
        trainer.fit(stage, method)
        method.end_task(stage)
        stage = go_on(stage, method, trainer)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            # away from the anchor, where the penalty pulls and the old network says otherwise
            for parameter in stage.learner.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        trainer.fit(stage, method)
        return torch.cat([p.detach().flatten() for p in stage.learner.parameters()])

    plain = step(Finetune())
    lwf = step(Lwf(strength=3.0)) - plain
    ewc = step(Ewc(strength=50.0)) - plain
    both = step(join(Lwf(strength=3.0), Ewc(strength=50.0))) - plain
    assert float(lwf.abs().max()) > 1e-3
    assert float(ewc.abs().max()) > 1e-3
    assert_close(both, lwf + ewc, rtol=1e-4, atol=1e-6)


@dataclass
class Last(Finetune):
    """Wants to see what all others have done."""

    name = "last"
    comes_last = True


@dataclass
class Answers(Finetune):
    """Was published with a classifier."""

    name = "answered"
    answers = Selection("lda")


@dataclass
class Also(Answers):
    """With another."""

    name = "also"
    answers = Selection("ridge")


@dataclass
class Hooked(Finetune):
    """Is called like a hook."""

    name = "end_task"


@dataclass
class Loses(Finetune):
    """Has a loss of its own."""

    name = "loses"
    first_task_is_finetuning = False

    def loss(self, stage, task, batch, output):
        return output.logits.sum()


@dataclass
class AlsoLoses(Loses):
    """Inherits its loss."""

    name = "also_loses"


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ((Loses, Ewc, AlsoLoses), "'loses' and 'also_loses' cannot be combined.* the loss itself"),
        ((Ewc, Mas), "'ewc' and 'mas' .* the importance that the run reports"),
        ((Joint, Lwf), "'joint' is a bound .* leave it out of 'joint\\+lwf'"),
        ((Last, Lwf), "'last' .* must come last: write 'lwf\\+last' instead of 'last\\+lwf'"),
        ((Answers, Replay, Also), "'answered' and 'also' .* which classifier answers"),
        ((Lwf, Hooked), "'end_task' is called like a member that every method has"),
    ],
)
def test_a_clash_is_refused_by_name(methods, message):
    with pytest.raises(ConfigError, match=message):
        compose(methods)


def test_what_one_part_has_the_combination_has():
    made = compose([Lwf, Answers, Replay])
    assert made.name == "lwf+answered+replay"
    assert made.answers == Selection("lda")
    assert not compose([Lwf, Loses]).first_task_is_finetuning
    assert compose([Lwf, Ewc]).first_task_is_finetuning


def test_options_go_by_the_names_of_the_parts_and_the_run_s_own_come_on_top():
    options = {
        "methods__lwf__strength": 3.0,
        "methods__ewc__strength": 7.0,
        "method__ewc__strength": 9.0,
    }
    config = configure("shapes:2x2", "lwf+ewc", **options, **ORDER)
    assert find_name_problems(config) == []
    plan = resolve(config)
    assert [part.strength for part in plan.method.parts()] == [3.0, 9.0]
    assert plan.experiment()["method"]["name"] == "lwf+ewc"
    assert plan.experiment()["method"]["ewc"]["strength"] == 9.0


def test_every_strength_that_is_missing_is_told():
    with pytest.raises(ConfigError) as error:
        resolve(configure("shapes:2x2", "lwf+ewc", **ORDER))
    assert [problem.split(":")[0] for problem in error.value.problems] == [
        "methods.lwf.strength is not set",
        "methods.ewc.strength is not set",
    ]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("lwf+ewk", {}, "unknown method 'ewk'; did you mean 'ewc'"),
        ("lwf+", {}, "empty name; remove the extra \\+"),
        ("ewc_lo+ewc-lo", {}, "names 'ewc_lo' twice"),
        ("lwf+ewc", {"method__strength": 3.0}, "set method.lwf.strength, method.ewc.strength"),
        ("lwf+ewc", {"method__ewc__temperature": 3.0}, "unknown key 'method.ewc.temperature'"),
        ("lwf+ewc", {"method__lwf": 3.0}, "method.lwf must be a section of options, found 3.0"),
    ],
)
def test_wrong_names_and_options_show_before_torch_is_loaded(method, options, message):
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(find_name_problems(configure("shapes:2x2", method, **options)))


def configure_both(**more):
    strengths = {"methods__lwf__strength": 3.0, "methods__ewc_lo__strength": 10.0}
    usual = {"checkpoint__every_steps": 2, "model__channels_last": False}
    return configure("shapes:2x2", "lwf+ewc_lo", **{**strengths, **usual, **ORDER, **more})


def test_a_killed_run_of_a_combination_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    config = configure_both()
    start(config, tmp_path / "whole")
    assert kill_until_finished(clock, config, tmp_path / "killed", clock.ticks, 2, 0)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_results_reports_and_memory_treat_it_as_one_method(tmp_path):
    run = learn(configure_both(), tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["method"] == "lwf+ewc_lo"
    assert scores["estimator"].startswith("lwf: distillation")
    assert "; ewc_lo: " in scores["estimator"]
    held = [part.bytes_held() for part in run.method.parts()]
    assert all(held)
    assert scores["cost"]["bytes_held"] == sum(held)
    assert read_run(tmp_path).experiment["method.ewc_lo.strength"] == 10.0


def test_the_first_task_is_shared_with_finetuning_and_strengths_are_told_apart(tmp_path):
    keys = []
    for options in ({}, {"methods__lwf__strength": 4.0}):
        plan = resolve(configure_both(**options))
        session = Session(plan)
        cache = StageCache(tmp_path, plan, session.trainer, session.learner)
        keys.append((cache._fit_key(session.stage(0)), cache._key(session.stage(0))))
    assert keys[0][0] == keys[1][0] is not None
    assert keys[0][1] != keys[1][1]


def test_a_combination_is_found_by_its_name():
    assert find_method("lwf+ewc-lo").name == "lwf+ewc_lo"
