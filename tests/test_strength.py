"""Methods are compared like with like: strength 0 is finetuning, and no strength is chosen by
nobody."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import (
    Run,
    assert_identical,
    begin_points,
    configure,
    copy_state,
    learn,
    make_points,
    moved,
    write_world,
)
from torch import nn

from mcit.cli import main
from mcit.config.files import load_config, read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.consolidating import ConsolidatingMethod, TaskForward
from mcit.data.splits import order_classes
from mcit.errors import ConfigError
from mcit.estimator import Estimator
from mcit.importance import measure_importance
from mcit.method import Outcome
from mcit.methods.ewc import Ewc
from mcit.methods.finetune import Finetune
from mcit.methods.lwf import Lwf
from mcit.models.learner import Learner
from mcit.registry import METHOD, find_method, list_names
from mcit.runner.plan import resolve
from mcit.sweeps.grid import Grid, MethodGrid
from mcit.sweeps.jobs import plan_jobs

ROOT = Path(__file__).parent.parent
# methods whose strength has to be chosen; published together with a classifier, some have one
STRONG = [
    name
    for name in list_names(METHOD)
    if any(
        field.name == "strength" and field.default is MISSING for field in fields(find_method(name))
    )
    # no configuration that ships has LoRA
    and not find_method(name).needs_lora
]
# every configuration that ships, and how it is read: as it is, with sizes made small
VISION_LANGUAGE = ("embedded", "climb")
CLASS_INCREMENTAL = ("release", "exact", "cifar100-mini")
PARTS = [
    "model.width=4",
    "model.channels_last=false",
    "tasks.{0}.classes=4",
    "tasks.{0}.recipe.batch_size=16",
]
PARTS += ["tasks.{0}.first_epochs=1", "tasks.{0}.later_epochs=1"]
FEW_WORDS = ["tasks.vqa.minimum=1", "tasks.vqa.recipe.epochs=1", "tasks.nlvr2.recipe.epochs=1"]
PAIRS = [(preset, method) for preset in (*VISION_LANGUAGE, *CLASS_INCREMENTAL) for method in STRONG]


def write_cifar(folder: Path, classes: int, each: int) -> None:
    """The first classes of the usual order as folders of images."""
    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        for label in order_classes(100, 1993)[:classes]:
            home = folder / part / str(label)
            home.mkdir(parents=True)
            for number in range(each):
                pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(home / f"{number}.png")


class Presets:
    """Runs in the configurations that ship, in small; each is made once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.world = write_world(folder)
        self.made: dict[tuple[str, ...], Run] = {}
        write_cifar(folder / "cifar", classes=4, each=12)

    def read(self, preset: str, method: str, *changes: str) -> RunConfig:
        """The preset's configuration for a method, with further assignments."""
        options = {"method": method, "order": "vqa,nlvr2"}
        model = f"model.name={self.world['model.name']}"
        root = self.world["data_root"]
        if preset == "embedded":
            config = load_config(None, options, [*FEW_WORDS, model, *changes])
            # its settings, on fewer examples
            return replace(config, data_root=root)
        if preset == "climb":
            small = [*FEW_WORDS, model, "tasks.vqa.answers=null", "training.workers=0"]
            return load_config("climb", {**options, "data_root": root}, [*small, *changes])
        if preset == "cifar100-mini":
            small = [change.format("cifar100") for change in PARTS]
            options = {"method": method, "order": "cifar100:2x2"}
            options["data_root"] = str(self.folder / "cifar")
            return load_config("efcil/cifar100-mini", options, [*small, *changes])
        small = [change.format("shapes") for change in PARTS]
        options = {"method": method, "order": "shapes:2x2", "preset": preset}
        return load_config(None, options, [*small, *changes])

    def __call__(self, preset: str, method: str, *changes: str) -> Run:
        key = (preset, method, *changes)
        if key not in self.made:
            config = self.read(preset, method, *changes)
            self.made[key] = learn(config, self.folder / f"run-{len(self.made)}")
        return self.made[key]


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    return Presets(tmp_path_factory.mktemp("presets"))


# --- strength 0


@pytest.mark.parametrize(("preset", "method"), PAIRS)
def test_strength_zero_is_finetuning_bit_for_bit_in_every_configuration(presets, preset, method):
    plain = presets(preset, "finetune")
    held = presets(preset, method, "method.strength=0")
    if isinstance(held.method, ConsolidatingMethod):
        # it did measure
        assert held.method.manager.importance
    assert held.rows == plain.rows
    for found, expected in zip(held.states, plain.states, strict=True):
        # BatchNorm's statistics too
        assert_identical(found, expected)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "efcil").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_class_incremental_file_has_the_settings_that_are_run_here(path):
    for method in STRONG:
        found = resolve(load_config(path, {"method": method}))
        usual = resolve(load_config("efcil/cifar100-mini", {"method": method}))
        assert found.method == usual.method
        assert found.config.training.refresh_batchnorm


# --- the refresh


def is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def test_a_refresh_moves_the_statistics_of_batchnorm_and_nothing_else(tmp_path):
    with_it = learn(configure("shapes:2x3", training__refresh_batchnorm=True), tmp_path / "with")
    without = learn(configure("shapes:2x3"), tmp_path / "without")
    for refreshed, plain in zip(with_it.states, without.states, strict=True):
        assert moved(plain, refreshed) == {name for name in plain if is_statistic(name)}


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_refresh_leaves_the_statistics_that_the_releases_importance_pass_leaves(
    tmp_path, precision
):
    """The same bits, so that results of the release's methods are those that its own code gives."""
    config = configure(
        "shapes:1x6", training__refresh_batchnorm=True, training__mixed_precision=precision
    )
    refreshed = learn(config, tmp_path / "with")
    measured = learn(
        configure("shapes:1x6", training__mixed_precision=precision),
        tmp_path / "without",
        method=MeasuringLast(),
    )
    assert_identical(measured.state, refreshed.state)


class MeasuringLast(Finetune):
    """Finetuning with the release's importance pass after every task."""

    def end_task(self, stage) -> Outcome:
        measure_importance(
            stage.learner,
            stage.load(stage.task, "train"),
            Estimator(unit="batch", mode="train", update_buffers=True),
            forward=TaskForward(stage.task),
        )
        return Outcome()


def test_a_method_that_takes_no_steps_is_not_refreshed(tmp_path):
    run = learn(configure("shapes:2x3", "joint", training__refresh_batchnorm=True), tmp_path)
    assert_identical(run.states[1], run.states[0])


def test_a_network_without_batchnorm_is_spared_the_pass(monkeypatch):
    passes = []
    forward = Learner.forward
    monkeypatch.setattr(
        Learner, "forward", lambda *arguments: passes.append(1) or forward(*arguments)
    )
    method = Finetune()
    stage, trainer = begin_points(make_points([2, 2]), method, refresh_batchnorm=True)
    steps = trainer.fit(stage, method)
    assert len(passes) == steps


def test_a_refresh_puts_gradients_modes_and_random_states_back():
    method = Finetune()
    stage, trainer = begin_points(make_points([2, 2]), method, refresh_batchnorm=True)
    stage.learner.encoder.l1 = nn.Sequential(
        stage.learner.encoder.l1, nn.BatchNorm1d(7), nn.Dropout(0.5)
    )
    trainer.fit(stage, method)
    after = torch.get_rng_state()
    plain = Finetune()
    other, quiet = begin_points(make_points([2, 2]), plain)
    other.learner.encoder.l1 = nn.Sequential(
        other.learner.encoder.l1, nn.BatchNorm1d(7), nn.Dropout(0.5)
    )
    quiet.fit(other, plain)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(parameter.requires_grad for parameter in stage.learner.parameters())
    assert stage.learner.training
    assert moved(copy_state(other.learner), copy_state(stage.learner)) == {
        name for name in copy_state(stage.learner) if is_statistic(name)
    }


@pytest.mark.parametrize("preset", CLASS_INCREMENTAL)
def test_the_last_task_is_not_measured(presets, preset):
    run = presets(preset, "ewc_dr", "method.strength=0")
    assert [path.name[:2] for path in (run.result.output / "importance").iterdir()] == ["01"]


def test_an_importance_pass_that_would_refresh_for_one_method_alone_is_refused(capsys):
    argv = ["run", "--order", "shapes:2x2", "--method", "ewc_dr"]
    assert main([*argv, "--set", "method.estimator.update_buffers=true"]) == 2
    message = capsys.readouterr().err
    assert "method.estimator.update_buffers is true" in message
    assert "set training.refresh_batchnorm=true, which does so for every method" in message


# --- a strength that nobody chose


@pytest.mark.parametrize("method", STRONG)
def test_a_method_without_a_strength_is_refused_before_anything_is_built(method):
    config = parse(RunConfig, {"order": "shapes:5x4", "method": method})
    with pytest.raises(ConfigError) as error:
        resolve(config)
    (problem,) = error.value.problems
    assert problem.startswith(
        f"method.strength is not set: no configuration gives one for '{method}' "
    )
    assert "--set method.strength=..." in problem
    assert "`mcit sweep --strengths ... --select`" in problem


def test_the_command_line_says_that_no_strength_was_chosen_and_writes_nothing(
    presets, tmp_path, capsys
):
    argv = ["run", "--order", "vqa,nlvr2", "--data-root", presets.world["data_root"]]
    assert main([*argv, "--method", "ewc_dr", "--output", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "method.strength is not set: no configuration gives one for 'ewc_dr'" in message
    assert not (tmp_path / "run").exists()


def test_a_configuration_that_gives_others_a_strength_is_named(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("order: [vqa, nlvr2]\ndata_root: .\nmethods: {ewc: {strength: 3}}\n")
    with pytest.raises(ConfigError, match="not set: the configuration gives none for 'mas'"):
        resolve(load_config(mine, {"method": "mas"}))
    assert resolve(load_config(mine, {"method": "ewc"})).method.strength == 3


def test_a_misspelled_strength_is_reported_next_to_the_missing_one():
    config = parse(RunConfig, {"order": "shapes:5x4", "method": {"name": "ewc", "strenght": 3}})
    with pytest.raises(
        ConfigError, match=r"(?s)'method.strenght'; did you mean 'strength'.*strength is not set"
    ):
        resolve(config)


OWN_OPTIONS = {"order": "shapes:5x4", "method": "own_method"}
OWN = """
from dataclasses import dataclass

from {parent} import {base}


@dataclass
class Own({base}):
    name = "own_method"
"""


@pytest.fixture
def write_own(tmp_path, monkeypatch):
    """Puts a method of one's own where it is found, until the test is over."""
    import sys

    import mcit.methods

    folder = tmp_path / "methods"
    folder.mkdir()
    monkeypatch.setattr(mcit.methods, "__path__", [*mcit.methods.__path__, str(folder)])

    def write(parent: str, base: str) -> None:
        (folder / "own_method.py").write_text(OWN.format(parent=parent, base=base))

    yield write
    sys.modules.pop("mcit.methods.own_method", None)
    vars(mcit.methods).pop("own_method", None)


def test_a_method_of_ones_own_is_told_what_the_preset_gives_its_parent(write_own):
    write_own("mcit.methods.ewc_dr", "EwcDr")
    with pytest.raises(ConfigError) as error:
        resolve(load_config(None, OWN_OPTIONS))
    (problem,) = error.value.problems
    assert problem.startswith(
        "method.strength is not set: configs/presets/release.yaml gives none for 'own_method'."
    )
    given = {"strength": 10000, "merge": "share", "penalty": "gradient"}
    given["estimator"] = {"unit": "batch", "mode": "train", "cap": 1e-4}
    assert f"It inherits from 'ewc_dr', whose options there are {json.dumps(given)}" in problem
    assert "do not reach it" in problem
    found = resolve(load_config(None, OWN_OPTIONS, ["method.strength=5"]))
    assert found.method.strength == 5


def test_a_method_of_ones_own_without_a_parent_that_has_options_hears_of_none(write_own):
    write_own("mcit.consolidating", "ConsolidatingMethod")
    with pytest.raises(ConfigError, match=r"gives none for 'own_method'\. Pass --set"):
        resolve(load_config(None, OWN_OPTIONS))


def test_a_method_that_cannot_learn_the_tasks_is_told_so_and_not_that_it_lacks_a_strength():
    with pytest.raises(ConfigError) as error:
        resolve(load_config(None, {"order": "vqa,nlvr2", "method": "olora"}))
    assert "works on LoRA pairs" in str(error.value)
    assert "not set" not in str(error.value)


@pytest.mark.parametrize("cls", [Ewc, Lwf])
def test_a_library_user_must_give_a_strength_too(cls):
    with pytest.raises(TypeError, match="strength"):
        cls()


@pytest.mark.parametrize(("preset", "method"), PAIRS)
def test_every_configuration_gives_every_method_of_its_track_a_strength(presets, preset, method):
    strength = resolve(presets.read(preset, method)).method.strength
    assert strength == "auto" or strength > 0


# --- sweeps


def test_a_sweep_without_strengths_refuses_a_method_that_has_none(write_own, tmp_path):
    write_own("mcit.methods.ewc", "Ewc")
    grid = Grid(
        {"own_method": MethodGrid(), "finetune": MethodGrid()}, orders=("shapes:5x4",), seeds=(1, 2)
    )
    with pytest.raises(ConfigError) as error:
        plan_jobs(grid, tmp_path)
    # once for all seeds
    assert len(error.value.problems) == 1
    jobs = plan_jobs(replace(grid, strengths=(3.0, 5.0)), tmp_path)
    assert [(job.method, job.strength) for job in jobs if job.seed == 1] == [
        ("own_method", 3.0),
        ("own_method", 5.0),
        ("finetune", None),
    ]


# --- where the strengths of CLiMB's sequence come from


def test_the_strength_of_ewc_is_climbs_weight_in_the_unit_of_single_examples():
    """CLiMB's loop in float64, with gradients that average to zero: what its weight 100 pulls with,
    in our unit."""
    given = read_yaml(ROOT / "configs" / "climb.yaml")["methods"]["ewc"]["strength"]
    draw = torch.Generator().manual_seed(0)
    equivalent = []
    # 1 % of VQAv2, NLVR2 and SNLI-VE, and their batches
    for examples, size in ((4437, 64), (863, 32), (5295, 64)):
        batches = math.ceil(examples / size)
        # of 400 weights
        gradients = torch.randn(400, batches, size, dtype=torch.float64, generator=draw)
        # gradients are never zeroed between batches
        summed = gradients.mean(dim=2).cumsum(dim=1)
        fisher = summed.square().sum(dim=1) / (batches * size)
        importance = gradients.square().mean(dim=(1, 2))
        # the derivative of 100 * fisher * (weight - anchor)^2
        pull = 2 * 100 * fisher.mean()
        equivalent.append(float(pull / importance.mean()))
    assert min(equivalent) * 0.9 <= given <= max(equivalent)
