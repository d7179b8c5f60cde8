"""How a run was started: which processes belong to it, and whether they are those that were asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from accelerate import PartialState

from mcit.config import ConfigError

CPU_FILE = "configs/accelerate/cpu2.yaml"
# What `accelerate launch` sets for parameters that are not whole in any process.
SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def join_processes() -> PartialState:
    """Meet the processes that were started along with this one; what a run cannot do with them is an error.

    Without a GPU they meet over gloo: accelerate by itself would take each of them for the only one.
    """
    problems = find_problems(os.environ)
    if problems:
        raise ConfigError(problems)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"  # read by the Accelerator, which is made later
    state = PartialState(cpu=_is_set(os.environ, "ACCELERATE_USE_CPU"))
    if state.num_processes < started:
        raise ConfigError(
            [
                f"{started} processes were started and each takes itself for the only one ({state.device.type}); set "
                "ACCELERATE_USE_CPU=true to let them meet on CPUs"
            ]
        )
    return state


def find_problems(environment: Mapping[str, str]) -> list[str]:
    """What the launcher has asked for that the runner does not do."""
    return [
        f"the runner does not shard parameters ({kind}): heads grow between tasks, and the models it trains fit one "
        "device; launch it with configs/accelerate/gpu8.yaml (or --multi_gpu). In a loop of your own, "
        "ConsolidationManager and measure_importance do work on FSDP2 shards: see docs/scaling.md"
        for name, kind in SHARDING.items()
        if _is_set(environment, name)
    ]


def find_missing(environment: Mapping[str, str]) -> str | None:
    """A warning where `accelerate launch` was asked for several processes and has started one, as it does on CPUs.

    It then tells the process where to meet the others, but not how many there are.
    """
    launched = "ACCELERATE_DYNAMO_BACKEND" in environment and "MASTER_ADDR" in environment
    if not launched or any(name in environment for name in ("WORLD_SIZE", "LOCAL_RANK", *MPI_SIZES)):
        return None
    return (
        "accelerate launch seems to have been asked for several processes and has started one; the scores will be the "
        f"same, only later. To start several on CPUs: accelerate launch --config_file {CPU_FILE} --num_processes N ..."
    )


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes", "on")
