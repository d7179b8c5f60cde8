"""Runs on a network that two processes divide (FSDP2): what one process learns, bit by bit resumed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_run
import torch
from killing import assert_same_end, read_weights, start, stop_after
from launched_runs import collect
from safetensors.torch import load_file, save_file
from tiny_llava import ORDER as INSTRUCTIONS
from tiny_llava import write_text_world
from tiny_run import Run, assert_identical, assert_near, configure, learn, write_world
from torch import nn

from mcit.config.parse import parse, to_dict
from mcit.config.schema import RunConfig
from mcit.consolidating import ConsolidatingMethod
from mcit.errors import ConfigError
from mcit.importance import Importance
from mcit.parallel.launch import join_processes
from mcit.parallel.sharded import full, is_sharded
from mcit.runner.preparing import prepare_plan
from mcit.session import RunSession

ROOT = Path(__file__).parent.parent
# 17 examples in batches of 8: the last one leaves a process without an example
ORDER = "vqa,vcr"
# as in test_processes.py: steps of SGD are as near as the gradients are
SMOOTH = {
    f"tasks__{name}__recipe__{key}": value
    for name in ORDER.split(",")
    for key, value in (("optimizer", "sgd"), ("learning_rate", 0.01))
}
# all weights of a ViLT train, and their parts are held
HEADS = {
    "ewc_lo": {
        "method__strength": 1.0,
        "training__accumulate": 3,
        "training__clip_norm": 1.0,
        # 13 examples of two processes: one of them scores none of the last batch
        "training__eval_batch_size": 2,
    },
    "online_ewc": {"method__strength": 10.0, "method__estimator__unit": "batch"},
    "si": {"method__strength": 10.0},
    "replay": {"method__fraction": 0.5, "method__frequency": 2},
}
# 24 examples in batches of 23; the adapters train, whole in every process, on a divided LLaVA
IN_WORDS = {
    "tasks__instruction__recipe__optimizer": "sgd",
    "tasks__instruction__recipe__batch_size": 23,
}
WORDS = {"ewc_lo": {"method__strength": 1.0}, "olora": {"method__strength": 0.01}}
RUNS = [*(f"heads {name}" for name in HEADS), *(f"words {name}" for name in WORDS)]
RESUMED = ("heads si", "heads adamw")
# inside the second task
STEPS = 5
LAUNCHED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "WORLD_SIZE": "2"}


def make_whole(run: Run) -> None:
    """Put whole tensors in place of this process's parts."""
    method = run.method
    if isinstance(method, ConsolidatingMethod):
        manager = method.manager
        for values in (manager.importance, manager.anchor):
            values.update({name: full(value) for name, value in values.items()})


def copy_whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """All of a learner's state, of which some must have been divided."""
    state = module.state_dict()
    assert any(is_sharded(tensor) for tensor in state.values())
    return {name: full(tensor.detach()).clone() for name, tensor in state.items()}


def work(folder: Path) -> None:
    """What each of the two processes does: every run, and one that is stopped and resumed."""
    rank = join_processes().process_index
    tiny_run.copy_state = copy_whole
    listed = json.loads((folder / "runs.json").read_text())
    configs = {name: parse(RunConfig, data) for name, data in listed.items()}
    sys.path.insert(0, str(ROOT / "scripts"))
    from measure_divided import measure_divided

    rows = measure_divided(tiny_run.resolve(configs.pop("counted")))
    (folder / f"scaling-{rank}.json").write_text(json.dumps(rows))
    for name, config in configs.items():
        run = learn(config, folder / name / ("whole" if rank == 0 else "other"))
        make_whole(run)
        save_file(collect(run), folder / name / f"{rank}.tensors")
        (folder / name / f"{rank}.json").write_text(json.dumps(run.rows))
        if name in RESUMED:
            stop_after(STEPS if rank else 0, config, folder / name / "stopped")
            start(config, folder / name / "stopped", resume=True)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """All runs in two processes, and their configurations."""
    folder = tmp_path_factory.mktemp("sharded-runs")
    world = write_world(folder)
    configs = {f"heads {n}": configure(ORDER, n, world, **SMOOTH, **o) for n, o in HEADS.items()}
    text_world = write_text_world(folder)
    configs["heads adamw"] = configure(ORDER, "ewc", world, method__strength=10.0)
    for name, options in WORDS.items():
        configs[f"words {name}"] = configure(INSTRUCTIONS, name, text_world, **IN_WORDS, **options)
    configs["counted"] = configure(
        ORDER, "ewc", world, method__strength=1.0, method__estimator__samples=8
    )
    (folder / "runs.json").write_text(json.dumps({n: to_dict(c) for n, c in configs.items()}))
    code = "import sys, pathlib, test_sharded_runs as t; t.work(pathlib.Path(sys.argv[1]))"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **LAUNCHED, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    running = []
    for rank in ("0", "1"):
        mine = {**environment, "RANK": rank, "LOCAL_RANK": rank}
        command = [sys.executable, "-c", code, str(folder)]
        running.append(subprocess.Popen(command, env=mine, stderr=subprocess.PIPE, text=True))
    try:
        problems = [process.communicate(timeout=900)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], problems
    return folder, configs


def find_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_divided_network_learns_what_a_whole_one_learns(launched, tmp_path, name):
    folder, configs = launched
    alone = learn(configs[name], tmp_path)
    found = load_file(folder / name / "0.tensors")
    assert_near(found, collect(alone), 1e-5)
    assert json.loads((folder / name / "0.json").read_text()) == alone.rows
    assert_identical(load_file(folder / name / "1.tensors"), found)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_divided_run_that_was_stopped_ends_as_if_it_had_not_been(launched, name):
    folder, _ = launched
    assert_same_end(folder / name / "stopped", folder / name / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads ewc_lo", "words ewc_lo"])
def test_a_divided_run_writes_whole_tensors(launched, name):
    folder, _ = launched
    assert not (folder / name / "other").exists()
    state = load_file(folder / name / "0.tensors")
    weights = {
        name.removeprefix("learner/tensors/"): tensor
        for name, tensor in read_weights(folder / name / "whole").items()
    }
    assert_identical(weights, {key: state[key] for key in weights})
    (file,) = (folder / name / "whole" / "importance").glob("*.safetensors")
    held = Importance.load(file).values
    # of the first of two tasks, which is all that is held at the end
    assert_identical(held, {key: state[f"importance/{key}"] for key in held})


@pytest.mark.slow
def test_divided_weights_are_sent_and_held_as_the_formulas_say(launched):
    rows = json.loads((launched[0] / "scaling-0.json").read_text())
    assert len(rows) == 7
    for row in rows:
        # the norm of the gradient is a number more, in steps that are logged
        more = 2 if row["what"] == "steps, all-reduced" else 0
        assert row["expected"] <= row["counted"] <= row["expected"] + more, row


def launch_as(monkeypatch, **more: str) -> None:
    for name, value in {**LAUNCHED, **more}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("order", "method", "options", "problem"),
    [
        ("shapes:2x3", "finetune", {}, "class-incremental runs are not sharded"),
        ("vqa,vcr", "gpm", {}, "method 'gpm' needs whole weights .*ewc_dr, ewc_lo, finetune"),
        (
            "vqa,vcr",
            "lwf+ewc",
            {"methods__lwf__strength": 1.0, "methods__ewc__strength": 1.0},
            "method 'lwf'",
        ),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_data_are_read(
    monkeypatch, order, method, options, problem
):
    launch_as(monkeypatch)
    config = configure(
        order, method, {"model.name": "embedded"} if "vqa" in order else None, **options
    )
    with pytest.raises(ConfigError, match=problem):
        prepare_plan(config, print)


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("FSDP_VERSION", "1", "FSDP1, which flattens parameters.*fsdp_version: 2"),
        ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params: set it to false"),
        ("FSDP_CPU_RAM_EFFICIENT_LOADING", "True", "fsdp_cpu_ram_efficient_loading"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "model.gradient_checkpointing to true"),
        ("FSDP_RESHARD_AFTER_FORWARD", "false", "fsdp_reshard_after_forward: false"),
        ("WORLD_SIZE", "1", "one process was started"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed: it keeps gradients.*fsdp2.yaml"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "Megatron-LM"),
    ],
)
def test_settings_that_a_run_cannot_follow_are_refused_by_name(
    monkeypatch, variable, value, problem
):
    launch_as(monkeypatch, **{variable: value})
    with pytest.raises(ConfigError, match=problem):
        join_processes()


def test_stages_are_not_shared_by_divided_runs(monkeypatch, tmp_path):
    launch_as(monkeypatch)
    plan = tiny_run.resolve(configure("shapes:2x3"))
    with pytest.raises(ConfigError, match="leave --stage-cache out"):
        RunSession(plan, tmp_path / "run", cache=tmp_path / "cache")
