"""Two flavours of the class-incremental methods: what they set, what wins over them, and that a run can be repeated."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from mcit.cli import _parser, main
from mcit.commands.run import FLAVOURS, read_config, read_flavour
from mcit.config import ConfigError, RunConfig, override, parse, read_yaml, to_dict, to_yaml
from mcit.methods._consolidating import Consolidating
from mcit.registry import find_method, method_names
from mcit.runner.plan import resolve

ROOT = Path(__file__).parent.parent
MINI = ["--config", "efcil/cifar100-mini"]
# The release's settings, one by one, as a command line without flavours spells them.
SPELLED = ["unit=batch", "mode=train", "cap=1e-4"]


def config_of(*argv: str) -> RunConfig:
    return read_config(_parser().parse_args(["run", *argv]))


def method_of(*argv: str):
    return resolve(config_of(*argv)).method


def spelled_out(method: str, *changes: str):
    """The method of a configuration that knows no flavour."""
    settings = [f"method.estimator.{setting}" for setting in SPELLED] + [
        f"method.{change}" for change in changes
    ]
    data = override({"order": "shapes:5x4", "method": {"name": method}}, settings)
    return resolve(parse(RunConfig, data)).method


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ewc", ["merge=share", "strength=1000"]),
        ("ewc_dr", ["merge=share", "strength=10000"]),
        ("ewc_lo", ["merge=share", "strength=10000"]),
        ("mas", ["merge=share", "strength=10000"]),
        ("online_ewc", ["strength=10000"]),
    ],
)
@pytest.mark.parametrize(
    "argv", [MINI, ["--order", "cifar100:50+10x5"], [*MINI, "--flavour", "release"]]
)
def test_without_options_a_method_is_the_releases(method, changes, argv):
    found = method_of(*argv, "--method", method)
    assert found == spelled_out(method, *changes)
    assert found.describe() == spelled_out(method, *changes).describe()


def test_options_that_say_the_same_change_nothing():
    settings = [f"method.estimator.{setting}" for setting in SPELLED] + [
        "method.merge=share",
        "method.strength=10000",
    ]
    argv = [word for setting in settings for word in ("--set", setting)]
    assert method_of(*MINI, "--method", "ewc_dr", *argv) == method_of(*MINI, "--method", "ewc_dr")


@pytest.mark.parametrize("method", ["ewc", "ewc_dr", "ewc_lo", "mas", "online_ewc"])
def test_the_exact_flavour_measures_every_example_and_steps_implicitly(method):
    found = method_of("--order", "shapes:5x4", "--flavour", "exact", "--method", method)
    estimator = found.estimator
    assert (estimator.unit, estimator.mode, estimator.cap) == ("example", "eval", None)
    assert estimator.score == find_method(method).estimator.score
    assert found.penalty == "proximal"
    assert found.merge == ("online" if method == "online_ewc" else "sum")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_flavour_gives_every_method_with_a_strength_its_own(flavour):
    strong = {
        name
        for name in method_names()
        if "strength" in {field.name for field in fields(find_method(name))}
    }
    assert strong >= {"lwf", "si", "l2_anchor"}
    assert {
        name for name in method_names() if issubclass(find_method(name), Consolidating)
    } < strong
    settings = read_flavour(flavour)
    assert settings.keys() == {"methods", "training"}
    assert settings["methods"].keys() == strong
    assert all(options["strength"] > 0 for options in settings["methods"].values())


@pytest.mark.parametrize("method", ["finetune", "ewc_dr", "lwf"])
def test_the_release_refreshes_batchnorm_for_every_method_and_the_exact_flavour_for_none(method):
    argv = ["--order", "shapes:5x4", "--method", method]
    assert config_of(*argv).training.refresh_batchnorm
    assert not config_of(*argv, "--flavour", "exact").training.refresh_batchnorm
    assert not config_of(
        *argv, "--set", "training.refresh_batchnorm=false"
    ).training.refresh_batchnorm


def test_class_incremental_orders_have_the_release_unless_told():
    assert config_of("--order", "shapes:5x4").flavour == "release"
    assert config_of("--order", "shapes:5x4", "--set", "flavour=exact").flavour == "exact"
    assert config_of("--order", "vqa,vcr").flavour is None
    assert config_of().flavour is None


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "efcil").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_setting_of_the_tables_names_its_flavour(path):
    assert read_yaml(path)["flavour"] == "release"


# --- what is given stands over a flavour


def test_one_value_that_is_given_leaves_the_rest_of_the_flavour():
    release = method_of(*MINI, "--method", "ewc_dr")
    changed = method_of(
        *MINI,
        "--method",
        "ewc_dr",
        "--set",
        "method.estimator.cap=1e-3",
        "--set",
        "method.strength=5",
    )
    assert (changed.strength, changed.estimator.cap) == (5, 1e-3)
    assert (changed.merge, changed.estimator.unit) == (release.merge, release.estimator.unit)
    assert method_of(*MINI, "--method", "ewc", "--set", "methods.ewc.strength=7").strength == 7


def test_a_file_stands_over_a_flavour(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "order: [shapes:5x4]\nflavour: exact\nmethods: {ewc: {strength: 3}}\nmethod: ewc\n"
    )
    found = method_of("--config", str(mine))
    assert (found.strength, found.penalty) == (3, "proximal")


# --- a resolved configuration


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_resolved_configuration_holds_everything_and_resolves_to_itself(tmp_path, flavour):
    options = ["--flavour", flavour, "--method", "ewc", "--set", "method.estimator.samples=100"]
    plan = resolve(config_of("--order", "shapes:5x4", *options))
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(plan.config))
    again = resolve(config_of("--config", str(written)))
    assert again.config == plan.config
    assert again.method == plan.method
    assert to_yaml(again.config) == written.read_text()
    alone = resolve(parse(RunConfig, read_yaml(written)))  # without the layers of the command line
    assert alone.method == plan.method
    assert read_yaml(written)["methods"] == json.loads(json.dumps(read_flavour(flavour)["methods"]))


@pytest.mark.parametrize(("before", "after"), [("release", "exact"), ("exact", "release")])
def test_a_resolved_configuration_can_be_run_in_the_other_flavour(tmp_path, before, after):
    argv = ["--order", "shapes:5x4", "--set", "methods.mas.strength=3"]
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(resolve(config_of(*argv, "--flavour", before)).config))
    found = config_of("--config", str(written), "--flavour", after)
    expected = config_of(*argv, "--flavour", after)
    assert to_dict(found)["methods"] == to_dict(expected)["methods"]
    assert found.training == expected.training
    assert found.flavour == after


# --- where there is none


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("argv", [["--order", "vqa,nlvr2"], ["--order", "vqa", "--data-root", "."]])
def test_vision_language_tasks_have_no_flavour(flavour, argv):
    with pytest.raises(
        ConfigError, match=f"flavour '{flavour}' is for class-incremental orders such as shapes:5x4"
    ):
        config_of(*argv, "--flavour", flavour)


def test_an_unknown_flavour_is_answered_with_those_that_exist(capsys):
    with pytest.raises(
        ConfigError,
        match=r"'flavour' is 'exat' .*did you mean 'exact'\? \(choices: release, exact\)",
    ):
        config_of("--order", "shapes:5x4", "--set", "flavour=exat")
    with pytest.raises(SystemExit):
        main(["run", "--order", "shapes:5x4", "--flavour", "exat"])
    assert (
        "unknown choice 'exat'; did you mean 'exact'? (choices: release, exact)"
        in capsys.readouterr().err
    )


# --- the drawings' own network


def test_drawings_have_a_small_network_unless_told():
    assert resolve(config_of("--order", "shapes:5x4")).config.model.width == 16
    assert (
        resolve(config_of("--order", "shapes:5x4", "--set", "model.width=8")).config.model.width
        == 8
    )
    assert resolve(config_of("--order", "cifar100:10x10")).config.model.width == 64
    assert resolve(config_of(*MINI)).config.model.width == 16


def test_a_run_says_its_flavour(capsys, tmp_path):
    argv = ["run", "--order", "shapes:2x1", "--method", "ewc_dr", "--quiet", "--dry-run"]
    for change in (
        "tasks.shapes.classes=2",
        "tasks.shapes.first_epochs=1",
        "tasks.shapes.later_epochs=1",
    ):
        argv += ["--set", change]
    assert main([*argv, "--set", "model.width=4"]) == 0
    printed = capsys.readouterr().out
    assert (
        "flavour release: ewc_dr, mean over batches of squared batch-mean gradients: score reversed"
        in printed
    )
