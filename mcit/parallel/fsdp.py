"""Sharding as a launcher asks for it: FSDP2, through accelerate's variables.

`accelerate launch` hands its settings on in the environment. Those that a run follows are read
here; those that it cannot follow are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

GPU_FILE = "configs/accelerate/fsdp2.yaml"
WHOLE_FILE = "configs/accelerate/gpu8.yaml"
# parameters can be left out of the sharding from this version of torch on
FIRST_TORCH = (2, 7)
# other ways to divide parameters that `accelerate launch` knows, and why a run does not take them
OTHERS = {
    "ACCELERATE_USE_DEEPSPEED": (
        "DeepSpeed",
        "it keeps gradients in buffers of its own, where no method can add a penalty",
    ),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", "it has models of its own"),
}
# settings of FSDP that a run does not follow, as `accelerate` calls them, and what would do
UNUSED = {
    "FSDP_OFFLOAD_PARAMS": (
        "fsdp_offload_params",
        "set it to false; training.accumulate, model.gradient_checkpointing and LoRA save memory",
    ),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": (
        "fsdp_cpu_ram_efficient_loading",
        "set it to false: every process reads the weights from disk",
    ),
    "FSDP_ACTIVATION_CHECKPOINTING": (
        "fsdp_activation_checkpointing",
        "set it to false, and the run's own model.gradient_checkpointing to true",
    ),
}


def wants_sharding(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher wants the weights of a network divided among processes."""
    return is_set(environment, "ACCELERATE_USE_FSDP")


def find_sharding_problems(environment: Mapping[str, str]) -> list[str]:
    """Return what the launcher asks for that a run cannot do."""
    problems = []
    for name, (kind, reason) in OTHERS.items():
        if is_set(environment, name):
            problems.append(
                f"a run does not train with {kind}: {reason}; launch it with {GPU_FILE} (FSDP2), "
                f"or with {WHOLE_FILE} where the model fits one GPU"
            )
    if not wants_sharding(environment):
        return problems
    if environment.get("FSDP_VERSION", "1") != "2":
        problems.append(
            "a run does not train with FSDP1, which flattens parameters, so that none has an "
            f"importance of its own: set fsdp_version: 2, as in {GPU_FILE}"
        )
    for name, (setting, remedy) in UNUSED.items():
        if is_set(environment, name):
            problems.append(f"a run does not follow {setting}: {remedy}")
    if environment.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() == "false":
        problems.append(
            "a run does not follow fsdp_reshard_after_forward: false, which leaves weights whole "
            "after a task is scored: set it to true"
        )
    if int(environment.get("WORLD_SIZE", "1")) == 1:
        problems.append(
            "one process was started, and sharding divides weights among several: give "
            "--num_processes, or launch it with configs/accelerate/gpu1.yaml"
        )
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found < FIRST_TORCH:
        problems.append(
            f"sharding needs torch 2.7, found {torch.__version__}: update it, or launch with "
            f"{WHOLE_FILE}"
        )
    return problems


def is_set(environment: Mapping[str, str], name: str) -> bool:
    """Whether a variable says yes."""
    return environment.get(name, "").lower() in ("1", "true", "yes", "on")
