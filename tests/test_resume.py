"""A run that was killed and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import (
    Clock,
    Killed,
    assert_same_end,
    kill_until_finished,
    read_scores,
    read_weights,
    start,
    stop_after,
)
from tiny_run import assert_identical, assert_near, configure, resolve, write_world

from mcit.checkpoint import (
    CheckpointError,
    Draft,
    list_checkpoints,
    read_checkpoint,
    read_state,
)
from mcit.config.options import Kind, list_options
from mcit.config.schema import CheckpointConfig, RunConfig
from mcit.errors import DivergedError, FolderError, OutOfMemory
from mcit.methods.finetune import Finetune
from mcit.models.learner import Learner
from mcit.registry import METHOD, find_method, has_option, list_names
from mcit.runner.checkpointer import Checkpointer
from mcit.runner.interruption import Interrupted, Interruption
from mcit.runner.run_folder import RunLog, find_newest, lock_folder
from mcit.sequence import run as run_sequence
from mcit.training.trainer import Trainer

DOCS = Path(__file__).parent.parent / "docs"
OPTIONS = {
    "replay": {"method__fraction": 0.3, "method__frequency": 2},
    "adapters": {"method__rank": 2},
    "freeze_bottom": {"method__layers": 1},
    "dgg": {"method__alpha": 0.5},
    "keeplora": {"model__lora__rank": 2},
    "moelora": {"model__lora__rank": 4, "model__lora__experts": 2},
    "icarl": {"method__exemplars": 4},
    "der": {"method__size": 10},
    # the distances of a batch are added up: smaller steps
    "ssre": {"tasks__shapes__recipe__learning_rate": 1e-3},
    "efc": {"tasks__shapes__recipe__learning_rate": 1e-3},
    # a batch of 16 has a covariance of 8 features
    "adagauss": {"model__bottleneck": 8, "transport": {"name": "network", "epochs": 1}},
    "gatf": {"model__bottleneck": 8},
    # figures of the documentation are as good as any images
    "muc": {"method__outside": str(DOCS), "method__epochs": 2},
}
NOT_ON_PAIRS = ("lwf_mc", "muc", "icarl", "der", "pass", "ssre", "fetril", "fecam", "efc", "ldc")
NOT_ON_PAIRS += ("adc", "dpcr", "adagauss", "gatf")
# their network starts at random, and has no LoRA
NEEDS_LORA = [name for name in list_names(METHOD) if find_method(name).needs_lora]
NOT_ON_SHAPES = ("adapters", "freeze_bottom", "single", *NEEDS_LORA)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def configure_method(order, method, world=None, **more):
    usual = {"checkpoint__every_steps": 2, "training__log_every": 3}
    if world is None:
        usual |= {"model__channels_last": False, "tasks__shapes__recipe__learning_rate": 0.01}
    options = OPTIONS.get(method, {})
    if has_option(METHOD, method, "strength"):
        options = {"method__strength": 10.0, **options}
    if method in NEEDS_LORA:
        options = {"model__lora__rank": 2, **options}
    return configure(order, method, world, **{**usual, **options, **more})


def check_kills(clock, config, folder, kills=3, seed=0):
    start(config, folder / "whole")
    total = clock.ticks
    places = kill_until_finished(clock, config, folder / "killed", total, kills, seed)
    assert_same_end(folder / "killed", folder / "whole")
    return places


@pytest.mark.parametrize(
    "method", [name for name in list_names(METHOD) if name not in NOT_ON_PAIRS]
)
def test_a_killed_run_ends_as_if_it_had_not_been_on_pairs(clock, world, tmp_path, method):
    config = configure_method("vcr,nlvr2", method, world)
    assert check_kills(clock, config, tmp_path)


@pytest.mark.parametrize(
    "method", [name for name in list_names(METHOD) if name not in NOT_ON_SHAPES]
)
def test_a_killed_run_ends_as_if_it_had_not_been_where_one_head_grows(clock, tmp_path, method):
    three = method in ("ewc", "si", "replay")  # what is held is merged once there are three
    order, classes = ("shapes:3x2", 6) if three else ("shapes:2x2", 4)
    config = configure_method(order, method, tasks__shapes__classes=classes)
    assert check_kills(clock, config, tmp_path)


def test_a_killed_run_with_strength_auto_ends_as_if_it_had_not_been(clock, tmp_path):
    options = {"method__strength": "auto", "method__stiffness": 0.5, "tasks__shapes__classes": 6}
    config = configure_method("shapes:3x2", "ewc", **options)
    assert check_kills(clock, config, tmp_path)


def test_a_killed_run_with_rotation_labels_ends_as_if_it_had_not_been(clock, tmp_path):
    options = {"recipe": "rotations", "tasks__shapes__classes": 4}
    config = configure_method("shapes:2x2", "finetune", **options)
    assert check_kills(clock, config, tmp_path)


def test_workers_draw_again_what_they_had_drawn(tmp_path):
    """Loader workers augment with random states of their own."""
    options = {"tasks__shapes__classes": 4, "training__workers": 1}
    config = configure_method("shapes:2x2", "finetune", checkpoint__keep=9, **options)
    start(config, tmp_path / "whole")
    stop_after(3, config, tmp_path / "stopped")
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize(("every", "newest"), [(3, "00-fit-00000003"), (2, "00-fit-00000004")])
@pytest.mark.parametrize("method", ["finetune", "ewc_dr"])
def test_a_run_killed_while_batchnorm_is_refreshed_ends_as_if_it_had_not_been(
    tmp_path, monkeypatch, method, every, newest
):
    options = {
        "tasks__shapes__classes": 4,
        "training__refresh_batchnorm": True,
        "checkpoint__every_steps": every,
    }
    config = configure_method("shapes:2x2", method, **options)
    start(config, tmp_path / "whole")
    forward, passes = Learner.forward, []

    def die(*arguments):
        passes.append(1)
        if len(passes) == 6:  # four steps, and then four batches of the refresh
            raise Killed
        return forward(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "forward", die)
        with pytest.raises(Killed):
            start(config, tmp_path / "killed")
    assert list_checkpoints(tmp_path / "killed" / "checkpoints")[0].name == newest
    start(config, tmp_path / "killed", resume=True)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_a_run_stopped_between_the_last_step_and_the_refresh_has_both_to_go_on_with(tmp_path):
    options = {
        "tasks__shapes__classes": 4,
        "training__refresh_batchnorm": True,
        "checkpoint__every_steps": None,
    }
    config = configure_method("shapes:2x2", "ewc_dr", **options)
    start(config, tmp_path / "whole")
    stop_after(8, config, tmp_path / "stopped")  # four steps a task
    names = [path.name for path in list_checkpoints(tmp_path / "stopped" / "checkpoints")]
    assert names == ["01-fit-00000004", "00-done"]
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_weights_in_another_layout_go_on_too(tmp_path):
    options = {"tasks__shapes__classes": 4, "model__channels_last": True, "model__width": 8}
    config = configure_method("shapes:2x2", "si", **options)
    start(config, tmp_path / "whole")
    stop_after(6, config, tmp_path / "stopped")
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_batches_in_parts_and_several_tasks_at_once_go_on_in_the_middle_of_an_epoch(
    world, tmp_path
):
    more = {f"tasks__{name}__recipe__epochs": 2 for name in ("vcr", "nlvr2")}
    config = configure_method("vcr,nlvr2", "joint", world, training__accumulate=3, **more)
    start(config, tmp_path / "whole")
    for steps in (5, 3):
        stop_after(steps, config, tmp_path / "stopped", resume=steps == 3)
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


# Being asked to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_step_saves_and_stops(tmp_path, number, request):
    # the tests themselves may have been started under nohup, where SIGHUP is ignored
    before = signal.signal(number, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(number, before))
    config = configure_method(
        "shapes:2x2", "ewc", tasks__shapes__classes=4, checkpoint__every_steps=None
    )
    stop_after(7, config, tmp_path, number)  # four steps a task
    names = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["01-fit-00000003", "00-done"]


def test_a_run_that_ignores_the_end_of_its_terminal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interruption().listening() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.asked
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_that_a_launcher_passes_on_counts_once_and_a_later_one_again(monkeypatch):
    def press_twice() -> None:
        with Interruption().listening() as interruption, interruption.held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        press_twice()
    monkeypatch.setattr("mcit.runner.interruption.SAME_MOMENT", 0.0)
    with pytest.raises(KeyboardInterrupt):
        press_twice()


def test_a_signal_outside_of_steps_stops_at_once_and_loses_nothing(tmp_path, monkeypatch):
    config = configure_method("shapes:2x2", "finetune", tasks__shapes__classes=4)
    start(config, tmp_path / "whole")
    monkeypatch.setattr(Trainer, "evaluate_each", lambda *_: signal.raise_signal(signal.SIGTERM))
    with Interruption().listening() as interruption, pytest.raises(Interrupted):
        start(config, tmp_path / "stopped", interruption=interruption)
    monkeypatch.undo()
    assert find_newest(tmp_path / "stopped").name == "00-fitted"
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


# What is refused


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run on shapes that was stopped in its second task, its configuration, and the same run not
    stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    config = configure_method("shapes:2x2", "ewc", tasks__shapes__classes=4)
    stop_after(7, config, folder / "run")
    start(config, folder / "whole")
    return folder, config


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of the stopped run."""
    shutil.copytree(stopped[0] / "run", tmp_path / "run")
    return tmp_path / "run"


def test_a_resumed_run_says_where_it_goes_on_and_notes_it(stopped, run):
    said = []
    start(stopped[1], run, said.append, resume=True)
    assert said[0] == "resumed after 3 of 4 steps of shapes[2-3] (task 2 of 2)"
    provenance = json.loads((run / "provenance.json").read_text())
    assert [entry["from"] for entry in provenance["resumed"]] == [
        "after 3 of 4 steps of shapes[2-3] (task 2 of 2)"
    ]
    assert provenance["config"]["method"]["name"] == "ewc"
    assert_same_end(run, stopped[0] / "whole")


def test_a_run_stopped_inside_a_later_task_resumes_with_a_stage_cache(stopped, run, tmp_path):
    folder, config = stopped
    start(config, run, resume=True, cache=tmp_path / "cache")
    assert_same_end(run, folder / "whole")


def test_time_adds_up_over_the_parts_of_a_run(stopped, run):
    before = read_state(find_newest(run)).result["cost"]
    result = start(stopped[1], run, resume=True)
    assert before["fit_seconds"] > 0
    assert result.cost["fit_seconds"] > before["fit_seconds"]
    assert result.cost["steps"] == 8


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_is_taken(stopped, run):
    newest, before = list_checkpoints(run / "checkpoints")
    with (newest / "optimizer.safetensors").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    said = []
    start(stopped[1], run, said.append, resume=True)
    assert said[0].startswith(
        f"warning: checkpoint {newest} is damaged: optimizer.safetensors has changed since it was"
    )
    assert said[1].startswith("resumed after")
    assert before.name == "01-fit-00000002"
    assert_same_end(run, stopped[0] / "whole")


def test_a_run_without_a_whole_checkpoint_is_not_begun_anew_in_silence(stopped, run):
    for path in list_checkpoints(run / "checkpoints"):
        (path / "state.json").unlink()
    with pytest.raises(
        FolderError, match=r"every checkpoint in .* is damaged; start again with --overwrite"
    ):
        start(stopped[1], run, resume=True)
    assert (run / "scores.json").is_file()


def list_times(folder):
    """When each file was changed; a lock is taken in any case."""
    files = [path for path in folder.rglob("*") if path.name not in (".lock", ".lock.pid")]
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 2}, "seed: 1 -> 2"),
        ({"method__strength": 3.0}, "method.strength: 10.0 -> 3.0"),
        ({"training__accumulate": 2}, "training.accumulate: 1 -> 2"),
        # workers draw the augmentation from random states of their own
        ({"training__workers": 1}, "training.workers: 0 -> 1"),
        (
            {"tasks__shapes__recipe__learning_rate": 0.3},
            "tasks.shapes[0-1].recipe.learning_rate: 0.01 -> 0.3",
        ),
    ],
)
def test_another_configuration_is_refused_with_the_differences(run, changes, words):
    before = list_times(run)
    other = configure_method("shapes:2x2", "ewc", **{"tasks__shapes__classes": 4, **changes})
    with pytest.raises(FolderError) as caught:
        start(other, run, resume=True)
    assert words in str(caught.value)
    assert list_times(run) == before


def find_as(run, **changes):
    """Look for the checkpoint to resume from as a run would whose identity differs; return what is
    said."""
    newest = read_state(find_newest(run))
    names = ("experiment", "data", "launch", "origin", "provenance")
    identity = {name: {**getattr(newest, name), **changes.get(name, {})} for name in names}
    said = []
    assert Checkpointer(run, CheckpointConfig(), identity).find(said.append) is not None
    return said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"processes": 2}, r"launch\.processes: 1 -> 2"),
        ({"precision": "bf16"}, r'launch\.precision: "no" -> "bf16"'),
    ],
)
def test_other_processes_or_precision_are_refused(run, changes, words):
    with pytest.raises(FolderError, match=words):
        find_as(run, launch=changes)


def test_other_data_are_refused_by_the_part_that_differs(run):
    parts = dict(read_state(find_newest(run)).data["shapes[0-1]"])
    parts["train images"] = {"content": "abc", "times": ""}
    with pytest.raises(
        FolderError,
        match=r"was started with data that differ .*:\n  - shapes\[0-1\]: train images differ\n",
    ):
        find_as(run, data={"shapes[0-1]": parts})


def test_other_software_is_named_in_a_warning(run):
    (line,) = find_as(run, origin={"torch": "9.9"})
    assert "written by other software" in line
    assert "9.9" in line


# What may change

# of kind SPEED or PLACE: a value other than that of the run
OTHER_PLACES = {
    "training.log_every": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.every_minutes": 5.0,
    "checkpoint.keep": 1,
    "checkpoint.background": True,
    "checkpoint.importance": False,
    "exemplar_free": True,
    "data_root": "elsewhere",
    "single": "single",
    "tracker": "tensorboard",
    "tracker_group": "a sweep",
    "output": "elsewhere",
}


def list_kinds(*kinds):
    return {option.name for option in list_options(RunConfig) if option.kind in kinds}


def configure_stopped(**changes):
    """The configuration of the stopped run with some options changed."""
    options = {name.replace(".", "__"): value for name, value in changes.items()}
    return configure_method("shapes:2x2", "ewc", **{"tasks__shapes__classes": 4, **options})


def test_every_option_that_only_says_how_fast_or_where_is_among_these():
    # workers decide where batches are augmented: they have tests of their own
    assert {*OTHER_PLACES, "training.workers"} == list_kinds(Kind.SPEED, Kind.PLACE)


@pytest.mark.parametrize("name", OTHER_PLACES)
def test_an_option_of_speed_or_place_may_change_and_results_are_the_same_bits(
    stopped, run, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    single = {"tasks": ["shapes[0-1]"], "chance": [50.0], "matrix": [[90.0]], "method": "single"}
    Path("single").mkdir()
    Path("single/scores.json").write_text(json.dumps(single))
    start(configure_stopped(**{name: OTHER_PLACES[name]}), run, resume=True)
    found, expected = (read_scores(folder) for folder in (run, stopped[0] / "whole"))
    for part in ("matrix", "seen", "details", "stiffness"):
        assert found[part] == expected[part]
    assert_identical(read_weights(run), read_weights(stopped[0] / "whole"))


def test_options_of_rounding_are_those_that_change_the_last_digits():
    assert list_kinds(Kind.ROUNDING) == {
        "model.attention",
        "model.gradient_checkpointing",
        "model.channels_last",
        "training.accumulate",
        "training.eval_batch_size",
    }


@pytest.mark.parametrize(
    "changes", [{"training.eval_batch_size": 7}, {"model.channels_last": True}]
)
def test_an_option_of_rounding_may_change_and_the_change_is_recorded(stopped, run, changes):
    start(configure_stopped(**changes), run, resume=True)
    (resumption,) = json.loads((run / "provenance.json").read_text())["resumed"]
    ((name, value),) = changes.items()
    before = {"training.eval_batch_size": "not given", "model.channels_last": "false"}[name]
    assert resumption["changed"] == [f"{name}: {before} -> {json.dumps(value)}"]
    found, expected = (read_scores(folder)["matrix"] for folder in (run, stopped[0] / "whole"))
    # ten images of each of two classes: at most one falls on the other side
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=5.0)


def test_tasks_that_draw_nothing_may_go_on_with_smaller_parts_and_other_workers(world, tmp_path):
    smooth = {
        f"tasks__{name}__recipe__{key}": value
        for name in ("vcr", "nlvr2")
        for key, value in (("optimizer", "sgd"), ("learning_rate", 0.01))
    }
    config = configure_method("vcr,nlvr2", "finetune", world, **smooth)
    start(config, tmp_path / "whole")
    stop_after(2, config, tmp_path / "stopped")
    less = {"training__accumulate": 2, "training__workers": 1}
    other = configure_method("vcr,nlvr2", "finetune", world, **smooth, **less)
    start(other, tmp_path / "stopped", resume=True)
    provenance = json.loads((tmp_path / "stopped" / "provenance.json").read_text())
    (resumption,) = provenance["resumed"]
    assert resumption["changed"] == ["training.accumulate: 1 -> 2", "training.workers: 0 -> 1"]
    # the next resumption begins where this one was
    assert "accumulate: 2" in (tmp_path / "stopped" / "config.yaml").read_text()
    assert_near(read_weights(tmp_path / "stopped"), read_weights(tmp_path / "whole"), 1e-5)


@pytest.mark.parametrize(
    ("hook", "order", "words"),
    [
        ("fit", "vcr", "--set training.accumulate=2"),
        ("evaluate_each", "vcr", "--set training.eval_batch_size=64"),
        ("fit", "shapes:2x2", "start another with a smaller batch_size"),
    ],
)
def test_a_run_that_is_out_of_memory_says_how_to_go_on(
    world, tmp_path, monkeypatch, hook, order, words
):
    def run_out(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    if order == "vcr":
        config = configure_method(order, "finetune", world)
    else:
        config = configure_method(order, "finetune", tasks__shapes__classes=4)
    monkeypatch.setattr(Trainer, hook, run_out)
    with pytest.raises(OutOfMemory) as caught:
        start(config, tmp_path / "run")
    assert "Tried to allocate 2.00 GiB" in str(caught.value)
    assert words in str(caught.value)


# What a method is asked


@dataclass
class Recorder(Finetune):
    """Finetuning that notes which hooks are called."""

    calls: list = field(default_factory=list, init=False)

    def begin_task(self, stage):
        self.calls.append(("begin_task", stage.index))
        return super().begin_task(stage)

    def restore(self, stage, state):
        self.calls.append(("restore", stage.index))
        super().restore(stage, state)


@pytest.mark.parametrize(
    ("steps", "newest", "calls"),
    [
        (3, "00-fit-00000003", [("restore", 0), ("begin_task", 1)]),
        # the fourth step is the last of the first task
        (4, "00-fitted", [("restore", 0), ("begin_task", 1)]),
        (7, "01-fit-00000003", [("restore", 1)]),
    ],
)
def test_a_method_is_restored_once_and_begins_no_task_that_was_begun(
    tmp_path, steps, newest, calls
):
    config = configure_method("shapes:2x2", "finetune", tasks__shapes__classes=4)
    stop_after(steps, config, tmp_path)
    assert find_newest(tmp_path).name == newest
    plan = replace(resolve(config), method=Recorder())
    run_sequence(plan, tmp_path, resume=True, progress=False, say=lambda line: None)
    assert plan.method.calls == calls


# Folders


def test_a_checkpoint_of_another_version_is_refused_and_kept(stopped, run, monkeypatch):
    monkeypatch.setattr("mcit.checkpoint.FORMAT", "mcit checkpoint 3")
    with pytest.raises(CheckpointError, match="resume with the version that wrote it"):
        start(stopped[1], run, resume=True)
    assert len(list_checkpoints(run / "checkpoints")) == 2


def test_two_runs_in_one_folder_are_refused(stopped, run):
    with (
        lock_folder(run),
        pytest.raises(FolderError, match=f"is in use by another run .*process {os.getpid()}"),
    ):
        start(stopped[1], run, resume=True)
    start(stopped[1], run, resume=True)  # the lock has gone with its holder


def test_a_folder_that_holds_a_run_is_not_begun_anew_unless_told_to(stopped, run):
    (run / "notes.txt").write_text("mine")
    (run / "importance").mkdir(exist_ok=True)
    (run / "importance" / "09-of-another-run.safetensors").touch()
    (run / "figures").mkdir()
    (run / "figures" / "of-another-run.png").touch()
    with pytest.raises(FolderError, match="already holds a run"):
        start(stopped[1], run)
    assert len(list_checkpoints(run / "checkpoints")) == 2
    start(stopped[1], run, overwrite=True)
    assert_same_end(run, stopped[0] / "whole")
    assert (run / "notes.txt").read_text() == "mine"
    assert not any((run / "figures").iterdir())


def test_nothing_to_resume_is_a_run_from_the_beginning(stopped, tmp_path):
    said = []
    start(stopped[1], tmp_path / "run", said.append, resume=True)
    assert "starting from the beginning" in said[0]
    assert_same_end(tmp_path / "run", stopped[0] / "whole")


def test_a_full_disk_stops_the_run_which_goes_on_when_there_is_room(stopped, tmp_path, monkeypatch):
    fsync, left = os.fsync, [12]

    def fill(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fsync(handle)

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(CheckpointError, match="No space left on device"):
        start(stopped[1], tmp_path / "run")
    monkeypatch.undo()
    assert list_checkpoints(tmp_path / "run" / "checkpoints")
    start(stopped[1], tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", stopped[0] / "whole")


@pytest.mark.parametrize("steps", [2, 7])
def test_a_run_saved_while_it_trains_goes_on_to_the_same_bits(stopped, tmp_path, steps):
    """What is written is the state when it was taken, though the next steps change it meanwhile."""
    config = configure_stopped(**{"checkpoint.background": True, "checkpoint.every_steps": 1})
    stop_after(steps, config, tmp_path / "run")
    newest, before = list_checkpoints(tmp_path / "run" / "checkpoints")
    shutil.rmtree(newest)
    start(config, tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", stopped[0] / "whole")
    assert before.name == {2: "00-fit-00000001", 7: "01-fit-00000002"}[steps]


def test_a_checkpoint_that_cannot_be_written_while_it_trains_stops_the_run(
    stopped, tmp_path, monkeypatch
):
    config = configure_stopped(**{"checkpoint.background": True, "checkpoint.every_steps": 1})
    write = Draft.write

    def fail(draft, *arguments):
        if draft.path.name != "01-fit-00000002":
            return write(draft, *arguments)
        raise CheckpointError("no room")

    monkeypatch.setattr(Draft, "write", fail)
    with pytest.raises(CheckpointError, match="no room"):
        start(config, tmp_path / "run")
    monkeypatch.undo()
    assert find_newest(tmp_path / "run").name == "01-fit-00000001"
    start(config, tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", stopped[0] / "whole")


def test_a_failed_checkpoint_does_not_hide_the_error_that_ends_a_run(tmp_path, monkeypatch):
    def fail(draft, *arguments):
        raise CheckpointError("no room")

    def is_due(checkpointer, taken):
        # the first step is saved, and the second one dies before anybody has looked
        if taken == 2:
            raise Killed
        return True

    config = configure_stopped(**{"checkpoint.background": True, "checkpoint.every_steps": 1})
    monkeypatch.setattr(Draft, "write", fail)
    said = []
    monkeypatch.setattr(Checkpointer, "is_due", is_due)
    with pytest.raises(Killed):
        start(config, tmp_path / "run", said.append)
    assert said[-1] == "warning: no room"


def test_checkpoints_of_a_task_share_what_its_steps_leave_alone(stopped):
    newest, before = list_checkpoints(stopped[0] / "run" / "checkpoints")
    assert before.name == "01-fit-00000002"
    held, again = (path / "method.safetensors" for path in (newest, before))
    assert held.samefile(again)
    assert not (newest / "learner.safetensors").samefile(before / "learner.safetensors")


def test_what_a_checkpoint_counts_on_is_on_the_disk_before_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    start(configure_method("shapes:2x2", "ewc", tasks__shapes__classes=4), tmp_path / "run")
    first = next(number for number, name in enumerate(flushed) if "00-done" in name)
    for name in (
        "log.jsonl",
        "scores.json.tmp",
        "provenance.json.tmp",
        "importance/01-shapes[0-1].safetensors",
    ):
        assert str(tmp_path / "run" / name) in flushed[:first]


def test_a_log_on_a_full_disk_says_how_to_go_on():
    with pytest.raises(
        FolderError,
        match=r"/dev/full could not be written: No space left .* continue with --resume",
    ):
        RunLog(Path("/dev/full"))({"event": "step"})


def test_an_output_that_cannot_be_made_is_refused(stopped, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot be written to .*; choose another --output"):
        start(stopped[1], tmp_path / "file" / "run")


# Numbers that go wrong


def test_a_diverged_run_names_stiffness_and_the_last_good_checkpoint(tmp_path):
    config = configure_method("shapes:2x2", "ewc", tasks__shapes__classes=4, method__strength=1e12)
    with pytest.raises(DivergedError) as caught:
        start(config, tmp_path)
    message = str(caught.value)
    for words in (
        "of 4 on shapes[2-3], learning rate",
        "mean stiffness",
        "lower the strength",
        "last good checkpoint",
    ):
        assert words in message
    assert message.rsplit("is ", 1)[1] in (
        str(path) for path in list_checkpoints(tmp_path / "checkpoints")
    )
    assert len(read_scores(tmp_path)["matrix"]) == 1
    weights = read_checkpoint(find_newest(tmp_path)).learner.tensors
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_an_infinite_gradient_is_seen_without_clipping_and_never_saved(tmp_path, monkeypatch):
    finish = Trainer._finish_step

    def spoil(trainer, work):
        if work.step.number == 1:
            next(work.stage.learner.encoder.parameters()).grad[0].fill_(torch.inf)
        finish(trainer, work)

    monkeypatch.setattr(Trainer, "_finish_step", spoil)
    for every, words in ((1, "the gradient is"), (50, "is nan|not finite")):
        config = configure_method(
            "shapes:2x2", "finetune", tasks__shapes__classes=4, training__log_every=every
        )
        with pytest.raises(DivergedError, match=words):
            start(config, tmp_path / str(every))
        assert list_checkpoints(tmp_path / str(every) / "checkpoints") == []
