"""Any method with any classifier and transport: whole runs, resumed runs, refused combinations."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from killing import Clock, assert_same_end, kill_until_finished, start
from test_classifiers import draw
from tiny_run import assert_identical, configure, learn, resolve

from mcit.answering import Answering
from mcit.cli import main
from mcit.config.files import find_name_problems, load_config
from mcit.errors import ConfigError
from mcit.registry import CLASSIFIER, find_classifier, find_transport, list_names
from mcit.reports.groups import group_runs
from mcit.reports.runs import read_run

EVERY = "head,nearest_mean,lda,gaussian,ridge,svm"
SMALL = {
    "network": {"transport__hidden": 8, "transport__epochs": 2, "transport__draws": 50},
    "attack": {"transport__candidates": 4, "transport__iterations": 1},
    "displacement": {"transport__kernel": "fisher"},
    "ridge": {"transport__average": 0.5, "transport__looks": 3},
}


def set_up(method="finetune", classifier=EVERY, transport="ridge", **more):
    options = {"tasks__shapes__classes": 4, **SMALL.get(transport, {}), **more}
    names = {"classifier__name": classifier, "transport__name": transport}
    return configure("shapes:2x2", method, **names, **options)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """One training that six classifiers score, and the same with the head alone."""
    folder = tmp_path_factory.mktemp("scored")
    plain = configure("shapes:2x2", "finetune", tasks__shapes__classes=4)
    return learn(set_up(), folder / "every"), learn(plain, folder / "head"), folder


def test_classifiers_leave_the_training_alone(scored):
    every, head, _ = scored
    assert_identical(every.state, head.state)
    assert every.rows == head.rows


def test_every_classifier_has_its_row(scored):
    every, _, folder = scored
    scores = json.loads((folder / "every" / "scores.json").read_text())
    assert scores["classifier"] == "head"
    assert list(scores["classifiers"]) == EVERY.split(",")[1:]
    assert "statistics carried over: ridge" in scores["estimator"]
    for entry in scores["classifiers"].values():
        assert [len(row) for row in entry["matrix"]] == [1, 2]
    groups = group_runs([read_run(folder / "every")])
    names = [group.name for group in groups]
    assert names == ["finetune", *(f"finetune + {name}" for name in EVERY.split(",")[1:])]
    assert every.result.cost["bytes_held"] > 0


def test_a_classifier_alone_scores_as_it_does_among_others(scored, tmp_path):
    every, _, _ = scored
    alone = learn(set_up(classifier="lda"), tmp_path)
    assert alone.result.matrix.rows == every.result.others["lda"].rows
    (group,) = group_runs([read_run(tmp_path)])
    assert group.name == "finetune + lda"


def test_a_loaded_run_answers_as_it_was_scored(tmp_path):
    from mcit.checkpoint import read_checkpoint
    from mcit.runner.run_folder import find_newest
    from mcit.session import Session

    for name in ("gaussian", "svm"):
        config = set_up(classifier=name)
        run = learn(config, tmp_path / name)
        session = Session(resolve(config))
        stage = session.restore(read_checkpoint(find_newest(tmp_path / name)))
        again = [score.score for score in session.score(stage)]
        assert again == run.rows[-1]


@pytest.mark.parametrize("transport", ["attack", "network", "displacement", "ridge"])
def test_a_killed_run_ends_as_if_it_had_not_been(monkeypatch, tmp_path, transport):
    clock = Clock(monkeypatch)
    more = {"checkpoint__every_steps": 2, "model__channels_last": False}
    config = set_up(classifier="gaussian,head,svm", transport=transport, **more)
    start(config, tmp_path / "whole")
    kill_until_finished(clock, config, tmp_path / "killed", clock.ticks, 2, 0)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_statistics_of_a_frozen_network_need_no_transport(tmp_path):
    rows = []
    for transport in ("none", "displacement"):
        config = set_up("freeze_encoder", "lda", transport)
        run = learn(config, tmp_path / transport)
        rows.append(run.rows)
    assert rows[0] == rows[1]


def test_a_frozen_encoder_learns_the_first_task_and_nothing_after(tmp_path):
    refreshed = {"training__refresh_batchnorm": True}
    run = learn(set_up("freeze_encoder", "lda", "none", **refreshed), tmp_path)
    first, second = run.states
    encoder = [name for name in first if name.startswith("encoder.")]
    assert_identical({n: second[n] for n in encoder}, {n: first[n] for n in encoder})
    assert not torch.equal(second["heads.classes.layers.0.weight"][:2], torch.zeros(2, 32))


def test_a_run_of_the_command_line_names_classifier_and_transport(capsys):
    words = ["run", "--order", "shapes:5x4", "--method", "finetune", "--print-config"]
    code = main([*words, "--classifier", "gaussian", "--transport", "ridge",
                 "--set", "classifier.shrinkage=7", "--set", "transport.ridge=0.5"])  # fmt: skip
    printed = capsys.readouterr().out
    assert code == 0
    config = load_config(None, {"order": "shapes:2x3"})
    assert config.classifier is None
    assert "shrinkage: 7" in printed
    assert "ridge: 0.5" in printed


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"classifier": "lsa"}, "unknown classifier 'lsa'; did you mean 'lda'"),
        ({"transport": "bridge"}, "unknown transport 'bridge'; did you mean 'ridge'"),
        ({"classifier": "head,lda,lda"}, "classifiers named twice: lda"),
        ({"classifier": "head,,lda"}, "empty name"),
        (
            {"classifier": {"name": "lda", "shrink": 1}},
            r"unknown option 'classifier.shrink'|'classifier.shrink'",
        ),
        (
            {"classifier": {"name": "head,lda", "shrinkage": 1}},
            "it is not clear whose options",
        ),
    ],
)
def test_wrong_names_and_options_are_found_without_torch(given, problem):
    config = load_config(None, {"order": "shapes:2x3", **given})
    import re

    problems = " ".join(find_name_problems(config))
    assert re.search(problem, problems), problems


@pytest.mark.parametrize(
    ("classifier", "transport", "more", "problem"),
    [
        ("head", "ridge", {}, "the classifier 'head' has none"),
        ("gaussian", "ridge", {"classifier__power": 0.5}, "raised to a power"),
        ("lda", "none", {"classifier__shrinkage": 0.0}, "'shrinkage' must be above 0"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(classifier, transport, more, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(set_up(classifier=classifier, transport=transport, **more))


def test_tasks_with_heads_of_their_own_are_answered_by_them():
    tasks = [SimpleNamespace(track="mcit")]
    answering = Answering({"lda": find_classifier("lda")()}, find_transport("none")())
    (problem,) = answering.find_problems(tasks, None)
    assert "class-incremental" in problem


def test_options_by_name_reach_one_of_several_classifiers():
    config = set_up(classifier="head,lda", classifiers__lda__shrinkage=0.7)
    plan = resolve(config)
    assert plan.answering.classifiers["lda"].shrinkage == 0.7
    assert plan.experiment()["classifier"]["lda"]["shrinkage"] == 0.7
    assert plan.experiment()["transport"]["name"] == "ridge"


@pytest.mark.parametrize("name", list_names(CLASSIFIER))
def test_scores_have_a_column_for_every_class(name):
    from test_classifiers import answer

    rule = find_classifier(name)()
    if not rule.needs():
        return
    assert answer(rule, draw(4, 6, 5).abs(), draw(3, 5).abs()).shape == (3, 4)
