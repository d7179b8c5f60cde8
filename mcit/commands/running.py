"""The options that say how and where runs are made, for `mcit sweep` and `mcit reproduce`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from mcit.arguments import number, some_text, split_list, whole_number
from mcit.commands.run import say_nothing
from mcit.errors import ConfigError
from mcit.files import find_folder_problem

if TYPE_CHECKING:
    from mcit.sweeps.executor import Executor
    from mcit.sweeps.jobs import Job
    from mcit.sweeps.running import Failure

# the package that each executor needs; the extra is called like the executor
PACKAGES = {"local": None, "ray": "ray", "slurm": "submitit"}
RETRIES = 3
# seconds that a file server may keep the lock of a machine that was lost
PATIENCE = 120.0
# variables of this machine that runs on others get too; secrets are not among them
FORWARDED = ("MCIT_PATH", "HF_HUB_OFFLINE", "WANDB_MODE", "MLFLOW_TRACKING_URI")


def add_running_options(parser: Any) -> None:
    """Add the options that say how runs are made."""
    parser.add_argument(
        "--executor",
        choices=tuple(PACKAGES),
        default="local",
        help="where runs take place: in processes on this machine (default), as tasks of Ray, or "
        "as an array job of SLURM",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="how many runs take place at once (default: 1, or one for each of --gpus; on a "
        "cluster as many as it has room for)",
    )
    parser.add_argument(
        "--threads",
        type=whole_number,
        default=1,
        metavar="N",
        help="threads of each run (default: 1; scores depend on it)",
    )
    parser.add_argument(
        "--gpus",
        type=split_list,
        default=[],
        help="comma-separated; each run gets one (default: no GPU is assigned)",
    )
    parser.add_argument(
        "--cpus-per-run",
        type=whole_number,
        metavar="N",
        help="CPUs that each run asks a cluster for (default: as many as --threads)",
    )
    parser.add_argument(
        "--gpus-per-run",
        type=number,
        metavar="N",
        help="GPUs that each run asks a cluster for: 0 (default), 1, or a fraction of one (Ray)",
    )
    parser.add_argument(
        "--retries",
        type=whole_number,
        metavar="N",
        help="how often a run is resumed after its node died or its time limit was reached "
        f"(default: {RETRIES})",
    )
    parser.add_argument(
        "--address",
        type=some_text,
        help="address of a running Ray cluster, such as auto or 10.0.0.1:6379 (default: "
        "RAY_ADDRESS, or Ray is started on this machine)",
    )
    parser.add_argument(
        "--slurm",
        type=some_text,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of sbatch, by submitit's name: time=MINUTES, partition=NAME, mem=32GB, ...; "
        "a run that reaches its time limit is requeued and resumed",
    )
    parser.add_argument(
        "--stage-cache",
        type=some_text,
        metavar="DIR",
        help="as in `mcit run`: stages that runs share are learned once",
    )


def find_running_problems(arguments: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options that say how and where runs are made."""
    problems = find_executor_problems(arguments)
    gpus = len(arguments.gpus)
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(f"--jobs must be at least 1, found {arguments.jobs}")
    if arguments.threads < 1:
        problems.append(f"--threads must be at least 1, found {arguments.threads}")
    if arguments.gpus and arguments.jobs and arguments.jobs > gpus:
        problems.append(f"--jobs {arguments.jobs} needs as many --gpus, found {gpus}")
    folders = {"--output": arguments.output, "--stage-cache": arguments.stage_cache}
    for option, folder in folders.items():
        problem = None
        if folder is not None:
            problem = find_folder_problem(Path(folder), option)
        if problem is not None:
            problems.append(problem)
    return problems


def find_executor_problems(arguments: argparse.Namespace) -> list[str]:
    """Return what does not go together with the executor, or is missing for it."""
    problems = []
    executor = arguments.executor
    package = PACKAGES[executor]
    if package is not None and find_spec(package) is None:
        problems.append(
            f"--executor {executor} needs {package}, which is not installed: run "
            f'pip install "mcit[{executor}]"'
        )
    if arguments.address and executor != "ray":
        problems.append("--address is for --executor ray: it names a running Ray cluster")
    if arguments.address and "://" in arguments.address:
        problems.append(
            f"--address {arguments.address} is a client's: start the sweep on a machine of the "
            "cluster, where --address auto finds it"
        )
    problems += find_slurm_problems(arguments)
    if executor == "local":
        for name in ("cpus_per_run", "gpus_per_run", "retries"):
            if getattr(arguments, name) is not None:
                option = name.replace("_", "-")
                problems.append(f"--{option} is for clusters; on this machine use --jobs or --gpus")
        return problems
    if arguments.gpus:
        problems.append(
            f"--gpus names GPUs of this machine; with --executor {executor} use --gpus-per-run 1"
        )
    if arguments.cpus_per_run is not None and arguments.cpus_per_run < 1:
        problems.append(f"--cpus-per-run must be at least 1, found {arguments.cpus_per_run}")
    if arguments.retries is not None and arguments.retries < 0:
        problems.append(f"--retries must be at least 0, found {arguments.retries}")
    gpus = arguments.gpus_per_run or 0
    if not 0 <= gpus <= 1:
        problems.append(
            f"--gpus-per-run must be from 0 to 1, found {gpus:g}: a run of a sweep is one process; "
            "start a run over several GPUs with accelerate launch"
        )
    return problems


def find_slurm_problems(arguments: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options of SLURM."""
    if arguments.executor != "slurm":
        if arguments.slurm:
            return [f"--slurm {arguments.slurm[0]} is for --executor slurm"]
        return []
    problems = []
    for text in arguments.slurm:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            problems.append(f"--slurm {text}: expected KEY=VALUE, such as partition=gpu")
    minutes = dict(text.partition("=")[::2] for text in arguments.slurm).get("time", "")
    if not minutes.isdecimal() or int(minutes) < 1:
        problems.append(
            "--executor slurm needs --slurm time=MINUTES, a whole number: a run that reaches it is "
            "requeued and resumed"
        )
    if arguments.gpus_per_run not in (None, 0, 1):
        problems.append(
            f"--gpus-per-run must be 0 or 1 with SLURM, found {arguments.gpus_per_run:g}"
        )
    if which("sbatch") is None:
        problems.append(
            "--executor slurm: there is no sbatch on this machine; start the sweep where jobs are "
            "submitted"
        )
    return problems


def check_gpus(gpus: Sequence[str]) -> None:
    """Raise a ConfigError if runs cannot have these GPUs."""
    if not gpus:
        return
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        listed = ",".join(gpus)
        raise ConfigError(
            [f"--gpus {listed}: torch finds no GPU here; leave --gpus out to run on the CPU"]
        )
    # with CUDA_VISIBLE_DEVICES set, numbers count all GPUs of the machine, not those torch finds
    beyond = [gpu for gpu in gpus if gpu.isdecimal() and int(gpu) >= count]
    if beyond and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise ConfigError([f"--gpus {beyond[0]}: torch finds {count} GPUs here, numbered from 0"])


def build_executor(
    arguments: argparse.Namespace, folder: Path, extra: Sequence[str] = ()
) -> Executor:
    """Return what makes the runs of a folder; extra: words that every run gets."""
    from mcit.sweeps.executor import RunSettings
    from mcit.sweeps.local import LocalPool

    if arguments.executor == "local":
        settings = RunSettings(arguments.threads, tuple(extra))
        at_once = arguments.jobs or len(arguments.gpus) or 1
        return LocalPool(settings, at_once, arguments.gpus)
    # SLURM hands the variables of this machine to its jobs
    forwarded = FORWARDED if arguments.executor == "ray" else ()
    environment = {name: os.environ[name] for name in forwarded if name in os.environ}
    if not arguments.gpus_per_run:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    settings = RunSettings(arguments.threads, tuple(extra), environment, patience=PATIENCE)
    cpus = arguments.cpus_per_run or arguments.threads
    retries = RETRIES if arguments.retries is None else arguments.retries
    if arguments.executor == "ray":
        from mcit.sweeps.ray import RayCluster

        address = arguments.address or os.environ.get("RAY_ADDRESS") or "local"
        gpus = arguments.gpus_per_run or 0
        return RayCluster(settings, address, cpus, gpus, retries, at_once=arguments.jobs)
    from mcit.sweeps.slurm import SlurmCluster

    return SlurmCluster(
        settings,
        folder=folder.absolute() / "slurm",
        parameters=read_slurm_parameters(arguments.slurm),
        cpus=cpus,
        gpus=int(arguments.gpus_per_run or 0),
        retries=retries,
        at_once=arguments.jobs,
    )


def read_slurm_parameters(texts: Sequence[str]) -> dict[str, str | int]:
    """Return the values of --slurm by name; digits are a number, as submitit wants them."""
    found: dict[str, str | int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        found[name] = int(value) if value.isdecimal() else value
    return found


def make_runs(
    jobs: Sequence[Job],
    arguments: argparse.Namespace,
    on_done: Callable[[Job], None] | None = None,
) -> list[Failure]:
    """Make the runs that are not complete yet, and return those that failed.

    on_done: is told of every run that is complete, as soon as it is.
    """
    from mcit.sweeps.running import run_jobs

    missing = find_missing(jobs)
    if not missing:
        return []
    check_data(missing)
    # the importance files of many runs would fill a disk
    extra = ["--set", "checkpoint.importance=false"]
    if arguments.stage_cache:
        extra += ["--stage-cache", arguments.stage_cache]
    executor = build_executor(arguments, missing[0].folder.parent, extra)
    return run_jobs(missing, executor, on_done=on_done)


def find_missing(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs whose runs are not complete yet."""
    from mcit.sweeps.jobs import find_state

    return [job for job in jobs if find_state(job) != "done"]


def check_data(jobs: Sequence[Job]) -> None:
    """Raise what is wrong with the data of the runs, once for each order and before any starts."""
    from mcit.runner.preparing import prepare_plan

    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.order, job)
    plans = [prepare_plan(job.plan.config, say_nothing) for job in first.values()]
    if any(plan.embedded for plan in plans):
        print("no --data-root: these runs use the embedded benchmark")


def explain_interruption(arguments: argparse.Namespace) -> int:
    """Print how to continue after Ctrl-C, and return the exit code."""
    line = f"mcit: stopped, and all runs with it; to continue: {arguments.given}"
    print(f"\n{line}", file=sys.stderr)
    return 130
