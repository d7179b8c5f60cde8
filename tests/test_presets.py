"""Presets of the class-incremental methods: what they set, what wins over them, runs repeated."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from mcit.arguments import Parser
from mcit.cli import main
from mcit.commands.run import add_options, read_config
from mcit.config.files import load_config, read_preset, read_yaml, to_yaml
from mcit.config.parse import override, parse, to_dict
from mcit.config.schema import PRESETS, RunConfig
from mcit.consolidating import ConsolidatingMethod
from mcit.errors import ConfigError
from mcit.registry import METHOD, find_method, list_names
from mcit.runner.plan import resolve

ROOT = Path(__file__).parent.parent
MINI = ["--config", "efcil/cifar100-mini"]
# The release's settings, one by one, as a command line without presets spells them.
SPELLED = ["unit=batch", "mode=train", "cap=1e-4"]


def config_of(*argv: str) -> RunConfig:
    parser = Parser()
    add_options(parser)
    return read_config(parser.parse_args(argv))


def method_of(*argv: str):
    return resolve(config_of(*argv)).method


def spelled_out(method: str, *changes: str):
    """The method of a configuration that knows no preset."""
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
    "argv", [MINI, ["--order", "cifar100:50+10x5"], [*MINI, "--preset", "release"]]
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
def test_the_exact_preset_measures_every_example_and_steps_implicitly(method):
    found = method_of("--order", "shapes:5x4", "--preset", "exact", "--method", method)
    estimator = found.estimator
    assert (estimator.unit, estimator.mode, estimator.cap) == ("example", "eval", None)
    assert estimator.score == find_method(method).estimator.score
    assert found.penalty == "proximal"
    assert found.merge == ("online" if method == "online_ewc" else "sum")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_every_method_with_a_strength_its_own(preset):
    strong = {
        name
        for name in list_names(METHOD)
        # some were published with a strength
        if any(f.name == "strength" and f.default is MISSING for f in fields(find_method(name)))
        # presets are of networks that start at random, and have no LoRA
        and not find_method(name).needs_lora
    }
    assert strong >= {"lwf", "si", "l2_anchor"}
    assert {
        name for name in list_names(METHOD) if issubclass(find_method(name), ConsolidatingMethod)
    } < strong
    settings = read_preset(preset)
    assert settings.keys() == {"methods", "training", "stiffness"}
    assert settings["methods"].keys() == strong
    assert all(options["strength"] > 0 for options in settings["methods"].values())


@pytest.mark.parametrize("method", ["finetune", "ewc_dr", "lwf"])
def test_the_release_refreshes_batchnorm_for_every_method_and_the_exact_preset_for_none(method):
    argv = ["--order", "shapes:5x4", "--method", method]
    assert config_of(*argv).training.refresh_batchnorm
    assert not config_of(*argv, "--preset", "exact").training.refresh_batchnorm
    assert not config_of(
        *argv, "--set", "training.refresh_batchnorm=false"
    ).training.refresh_batchnorm


def test_class_incremental_orders_have_the_release_unless_told():
    assert config_of("--order", "shapes:5x4").preset == "release"
    assert config_of("--order", "shapes:5x4", "--set", "preset=exact").preset == "exact"
    assert config_of("--order", "vqa,vcr").preset is None
    assert load_config().preset is None


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "efcil").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_setting_of_the_tables_names_its_preset(path):
    assert read_yaml(path)["preset"] == "release"


# --- what is given stands over a preset


def test_one_value_that_is_given_leaves_the_rest_of_the_preset():
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


def test_a_file_stands_over_a_preset(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "order: [shapes:5x4]\npreset: exact\nmethods: {ewc: {strength: 3}}\nmethod: ewc\n"
    )
    found = method_of("--config", str(mine))
    assert (found.strength, found.penalty) == (3, "proximal")


# --- a resolved configuration


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resolved_configuration_holds_everything_and_resolves_to_itself(tmp_path, preset):
    options = ["--preset", preset, "--method", "ewc", "--set", "method.estimator.samples=100"]
    plan = resolve(config_of("--order", "shapes:5x4", *options))
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(plan.config))
    again = resolve(config_of("--config", str(written)))
    assert again.config == plan.config
    assert again.method == plan.method
    assert to_yaml(again.config) == written.read_text()
    alone = resolve(parse(RunConfig, read_yaml(written)))  # without the layers of the command line
    assert alone.method == plan.method
    assert read_yaml(written)["methods"] == json.loads(json.dumps(read_preset(preset)["methods"]))


@pytest.mark.parametrize(("before", "after"), [("release", "exact"), ("exact", "release")])
def test_a_resolved_configuration_can_be_run_in_the_other_preset(tmp_path, before, after):
    argv = ["--order", "shapes:5x4", "--set", "methods.mas.strength=3"]
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(resolve(config_of(*argv, "--preset", before)).config))
    found = config_of("--config", str(written), "--preset", after)
    expected = config_of(*argv, "--preset", after)
    assert to_dict(found)["methods"] == to_dict(expected)["methods"]
    assert found.training == expected.training
    assert found.preset == after


# --- where there is none


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("argv", [["--order", "vqa,nlvr2"], ["--order", "vqa", "--data-root", "."]])
def test_vision_language_tasks_have_no_preset(preset, argv):
    with pytest.raises(
        ConfigError, match=f"preset '{preset}' is for class-incremental orders such as shapes:5x4"
    ):
        config_of(*argv, "--preset", preset)


def test_an_unknown_preset_is_answered_with_those_that_exist(capsys):
    with pytest.raises(
        ConfigError,
        match=r"'preset' is 'exat' .*did you mean 'exact'\? \(choices: release, exact\)",
    ):
        config_of("--order", "shapes:5x4", "--set", "preset=exat")
    with pytest.raises(SystemExit):
        main(["run", "--order", "shapes:5x4", "--preset", "exat"])
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


def test_a_run_says_its_preset(capsys, tmp_path):
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
        "preset release: ewc_dr, mean over batches of squared batch-mean gradients: score reversed"
        in printed
    )
