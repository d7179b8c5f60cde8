"""The files in configs/accelerate/ as accelerate reads them, and what a run makes of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from mcit.config.files import find_config
from mcit.errors import ConfigError
from mcit.parallel.fsdp import find_sharding_problems, wants_sharding
from mcit.parallel.launch import choose_precision, find_missing, join_processes

FOLDER = Path(__file__).parent.parent / "configs" / "accelerate"
EXPECTED = {
    "cpu2": (DistributedType.MULTI_GPU, 2, 1, "no"),
    "fsdp2": (DistributedType.FSDP, 8, 1, "bf16"),
    "fsdp2_cpu2": (DistributedType.FSDP, 2, 1, "no"),
    "gpu1": (DistributedType.NO, 1, 1, "bf16"),
    "gpu8": (DistributedType.MULTI_GPU, 8, 1, "bf16"),
    "nodes2": (DistributedType.MULTI_GPU, 16, 2, "bf16"),
}


def plan_launch(*options: str):
    """What `accelerate launch` would do: its options, and whether it starts several processes."""
    arguments = launch_command_parser().parse_args([*options, "program.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    return arguments, (arguments.multi_gpu or arguments.use_fsdp) and not arguments.cpu


@pytest.fixture(autouse=True)
def no_launch(monkeypatch, tmp_path):
    """Neither this process's own launcher nor the user's default configuration has a say."""
    for name in (
        "WORLD_SIZE",
        "LOCAL_RANK",
        "RANK",
        "MASTER_ADDR",
        "ACCELERATE_DYNAMO_BACKEND",
        "ACCELERATE_USE_CPU",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "accelerate.commands.launch.default_config_file", str(tmp_path / "none.yaml")
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_the_file(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert isinstance(config, ClusterConfig)
    found = (
        config.distributed_type,
        config.num_processes,
        config.num_machines,
        config.mixed_precision,
    )
    assert found == EXPECTED[name]


def test_every_file_is_expected():
    assert {path.stem for path in FOLDER.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize(("options", "count"), [((), "2"), (("--num_processes", "3"), "3")])
def test_the_file_for_cpus_starts_as_many_processes_as_it_says(options, count):
    arguments, several = plan_launch("--config_file", str(FOLDER / "cpu2.yaml"), *options)
    environment = prepare_multi_gpu_env(arguments)
    assert several
    assert arguments.nproc_per_node == count
    assert find_missing({**environment, "WORLD_SIZE": count, "LOCAL_RANK": "0"}) is None
    assert not find_sharding_problems(environment)


def test_two_nodes_share_the_processes():
    arguments, several = plan_launch(
        "--config_file", str(FOLDER / "nodes2.yaml"), "--machine_rank", "1"
    )
    prepare_multi_gpu_env(arguments)
    assert several
    assert (arguments.nproc_per_node, arguments.nnodes, arguments.node_rank) == ("8", "2", 1)


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2_cpu2"])
def test_the_files_for_sharding_ask_for_nothing_that_a_run_cannot_do(monkeypatch, name):
    arguments, several = plan_launch("--config_file", str(FOLDER / f"{name}.yaml"))
    environment = prepare_multi_gpu_env(arguments)
    assert several
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    launched = {**environment, "WORLD_SIZE": arguments.nproc_per_node}
    assert wants_sharding(launched)
    assert not find_sharding_problems(launched)


@pytest.mark.parametrize("options", [("--cpu", "--num_processes", "2"), ("--num_processes", "2")])
def test_a_launch_that_starts_one_process_of_several_is_reported(options):
    arguments, several = plan_launch(*options)
    _, environment = prepare_simple_launcher_cmd_env(arguments)
    assert not several
    assert "--config_file configs/accelerate/cpu2.yaml" in find_missing(environment)


@pytest.mark.parametrize(
    "options", [("--cpu", "--num_processes", "1"), ("--config_file", str(FOLDER / "gpu1.yaml"))]
)
def test_a_launch_of_one_process_is_not_reported(options):
    _, environment = prepare_simple_launcher_cmd_env(plan_launch(*options)[0])
    assert find_missing(environment) is None
    assert not find_sharding_problems(environment)


def test_a_process_without_a_launcher_is_not_reported():
    assert find_missing({"MASTER_ADDR": "10.0.0.1"}) is None


def test_processes_that_take_themselves_for_the_only_one_are_stopped(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "no")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    with pytest.raises(
        ConfigError, match="2 processes were started, but each works as if it were alone"
    ):
        join_processes()


@pytest.mark.parametrize(
    ("instructions", "expected"), [((), "no"), (("avx512_bf16",), "bf16"), (("amx_bf16",), "bf16")]
)
def test_precision_auto_is_bf16_where_the_processor_multiplies_in_it(
    monkeypatch, instructions, expected
):
    present = dict.fromkeys(instructions, True)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: present)
    assert choose_precision("auto") == expected


@pytest.mark.parametrize("asked", ["no", "bf16", "fp16"])
def test_a_precision_that_is_asked_for_is_not_changed(asked):
    assert choose_precision(asked) == asked


def test_without_one_it_is_what_the_launcher_says(monkeypatch):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    assert choose_precision(None) == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert choose_precision(None) == "bf16"


def test_they_are_not_taken_for_configurations_of_runs():
    with pytest.raises(ConfigError, match="no configuration file 'gpu8'") as error:
        find_config("gpu8")
    assert "accelerate" not in str(error.value)
