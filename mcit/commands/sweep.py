"""`mcit sweep`: strengths, methods, seeds and orders as a grid of runs, with one table at the end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcit.arguments import OptionParser, parse_seeds, some_text, split_list, whole_number
from mcit.commands.run import FLAVOURS, find_early_problems
from mcit.config import ConfigError, RunConfig, suggest
from mcit.folders import find_folder_problem

HELP = "run a grid of strengths, methods, seeds and orders, and compare them"
EPILOG = """
  mcit sweep --order vqa,nlvr2,snli-ve,vcr --methods finetune,ewc,ewc_dr --strengths 100,300,1000 --seeds 1,2,3 --jobs 2
  mcit sweep grid.yaml --output runs/grid --dry-run

A grid file has the same names: order or orders, methods (a list, or a section that gives each its strengths:
`ewc: [300, 1000]`), strengths, seeds, config, flavour, data_root, set. Options given here stand over the file. Runs
that are complete are not repeated and runs that were interrupted go on: the same command continues a sweep.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    parser.add_argument(
        "grid", nargs="?", type=some_text, help="a YAML file that describes the grid"
    )
    parser.add_argument(
        "--order", action="append", help="tasks in order; give it again for another order"
    )
    parser.add_argument("--methods", type=split_list, help="comma-separated (see `mcit list`)")
    parser.add_argument(
        "--strengths",
        action="append",
        default=[],
        metavar="[METHOD=]S,S,...",
        help="for every method that has one, or for the method named (default: what is configured)",
    )
    parser.add_argument(
        "--seeds", type=split_list, help="comma-separated, or a range: 1,2,3 or 1-3 (default: 1-3)"
    )
    parser.add_argument("--config", type=some_text, help="as in `mcit run`, for every run")
    parser.add_argument("--flavour", choices=FLAVOURS, help="as in `mcit run`")
    parser.add_argument(
        "--data-root", dest="data_root", type=some_text, metavar="DIR", help="as in `mcit run`"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in `mcit run`"
    )
    parser.add_argument(
        "--output",
        type=lambda text: Path(some_text(text)),
        default=Path("runs/sweep"),
        metavar="DIR",
        help="folder of all runs (default: %(default)s)",
    )
    parser.add_argument(
        "--stage-cache",
        type=some_text,
        metavar="DIR",
        help="as in `mcit run`: stages that runs share are learned once",
    )
    choosing = parser.add_argument_group("choosing strengths")
    choosing.add_argument(
        "--select",
        type=whole_number,
        nargs="?",
        const=2,
        metavar="TASKS",
        help="pick each method's strength by the mean of A_t over the first so many tasks, 2 unless said; "
        "later tasks are not looked at",
    )
    choosing.add_argument(
        "--select-seeds", type=split_list, help="pick on these seeds, and report on --seeds"
    )
    choosing.add_argument(
        "--match",
        choices=("stiffness",),
        help="give all methods the reference's mean stiffness after the first task",
    )
    choosing.add_argument(
        "--reference",
        type=some_text,
        metavar="METHOD",
        help="for --match (default: the first that has a strength)",
    )
    running = parser.add_argument_group("running")
    add_running_options(running)
    running.add_argument(
        "--dry-run", action="store_true", help="print the plan, check the data, and stop"
    )


def add_running_options(parser: Any) -> None:
    """How runs are made, here and in `mcit reproduce`."""
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="runs at once (default: 1, or one for each of --gpus)",
    )
    parser.add_argument(
        "--threads",
        type=whole_number,
        default=1,
        metavar="N",
        help="of each run (default: 1; scores depend on it)",
    )
    parser.add_argument(
        "--gpus",
        type=split_list,
        default=[],
        help="comma-separated; each run gets one (default: no GPU is assigned)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan, run what is missing, choose, report."""
    from dataclasses import replace

    from mcit.sweeps import grid as grids

    grid = build_grid(arguments)
    output = arguments.output
    _check(arguments, grid)
    # from here on torch is needed, which takes seconds to import: a typo is told before
    check_gpus(arguments.gpus)
    from mcit.sweeps.summary import print_plan, write_summary

    if arguments.match:
        grid = _match(grid, arguments)
        if grid is None:
            return 0
    jobs = candidates = grids.plan_jobs(grid, output, read_options)
    if arguments.select_seeds:
        candidates = grids.plan_jobs(
            replace(grid, seeds=parse_seeds(arguments.select_seeds)), output, read_options
        )
    _check_select(arguments.select, jobs)
    print_plan(candidates, jobs, arguments.select)
    if arguments.dry_run:
        check_data(find_missing([*candidates, *jobs]))
        return 0
    try:
        failed = make_runs(candidates, arguments)
        choices, picked = (
            _select(candidates, arguments.select, grid, output) if arguments.select else ([], [])
        )
        jobs = grids.keep_chosen(jobs, choices)
        failed += make_runs(jobs, arguments) if arguments.select_seeds else []
    except KeyboardInterrupt:
        print(
            f"\nmcit: stopped, and all runs with it; to go on: {arguments.given}", file=sys.stderr
        )
        return 130
    write_summary(candidates, jobs, bool(arguments.match), picked, output, arguments.given)
    return 1 if failed else 0


def build_grid(arguments: argparse.Namespace) -> Any:
    """The grid file, and the options of the command line over it."""
    from mcit.sweeps import grid as grids

    if arguments.grid and not Path(arguments.grid).exists():
        near = suggest(arguments.grid, [str(path) for path in Path().glob("*.yaml")])
        hint = "items of a list such as --methods are joined by commas, without spaces"
        raise ConfigError([f"no grid file {arguments.grid!r}{near} ({hint})"])
    data = grids.read_grid(Path(arguments.grid)) if arguments.grid else {}
    if arguments.order:
        data["orders"] = arguments.order
    if arguments.methods:
        known = data.get("methods", {})
        names = grids.refuse_twice("--methods", arguments.methods)
        data["methods"] = {name: known.get(name, {}) for name in names}
    shared, own = grids.parse_strengths(arguments.strengths, list(data.get("methods", {})))
    if shared:
        data["strengths"] = shared
        data["methods"] = {
            name: {**known, "strengths": []} for name, known in data.get("methods", {}).items()
        }
    for method, strengths in own.items():
        data["methods"][method] = {**data["methods"][method], "strengths": strengths}
    if arguments.seeds is not None:
        data["seeds"] = list(parse_seeds(arguments.seeds))
    for name in ("config", "flavour", "data_root"):
        if getattr(arguments, name) is not None:
            data[name] = getattr(arguments, name)
    changes = data.get("set", [])
    data["set"] = [*(changes if isinstance(changes, list) else [changes]), *arguments.set]
    data.setdefault("methods", {})
    return grids.make_grid(data)


def read_options(options: Sequence[str]) -> RunConfig:
    """The configuration that options of `mcit run` stand for."""
    from mcit.commands import run as command

    parser = OptionParser(prog="mcit run")
    command.add_options(parser)
    return command.read_config(parser.parse_args(options))


def make_runs(jobs: Sequence[Any], arguments: argparse.Namespace) -> list[Any]:
    """Make those that are not complete yet; gives the failures."""
    from mcit.sweeps.jobs import run_jobs

    missing = find_missing(jobs)
    check_data(missing)
    extra = ["--set", "checkpoint.importance=false"]  # the files of many runs would fill a disk
    extra += ["--stage-cache", arguments.stage_cache] if arguments.stage_cache else []
    at_once = arguments.jobs or len(arguments.gpus) or 1
    return run_jobs(missing, at_once, arguments.threads, arguments.gpus, extra)


def find_missing(jobs: Sequence[Any]) -> list[Any]:
    """Return the runs that are not complete yet."""
    from mcit.sweeps.jobs import find_state

    return [job for job in jobs if find_state(job) != "done"]


def check_data(jobs: Sequence[Any]) -> None:
    """Raise what is wrong with the data of the runs, once for each order and before any of them is started."""
    from mcit.commands.run import mute, prepare

    for order in dict.fromkeys(job.order for job in jobs):
        plan = prepare(next(job.config for job in jobs if job.order == order), mute)
        if plan.embedded:
            print(
                "no --data-root: these runs use the embedded benchmark (generated scenes, a small ViLT)"
            )


def check_running_options(arguments: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options that say how runs are made."""
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(f"--jobs must be at least 1, found {arguments.jobs}")
    if arguments.threads < 1:
        problems.append(f"--threads must be at least 1, found {arguments.threads}")
    if arguments.gpus and arguments.jobs and arguments.jobs > len(arguments.gpus):
        problems.append(
            f"--jobs {arguments.jobs} needs as many --gpus, found {len(arguments.gpus)}"
        )
    for option, folder in (
        ("--output", arguments.output),
        ("--stage-cache", arguments.stage_cache),
    ):
        problem = None if folder is None else find_folder_problem(Path(folder), option)
        if problem is not None:
            problems.append(problem)
    return problems


def check_gpus(gpus: Sequence[str]) -> None:
    """Raise a ConfigError if runs cannot have these GPUs; torch is asked, which takes seconds to import."""
    if not gpus:
        return
    import torch

    there = torch.cuda.device_count()
    if there == 0:
        raise ConfigError(
            [
                f"--gpus {','.join(gpus)}: torch finds no GPU here; leave --gpus out to run on the CPU"
            ]
        )
    # with CUDA_VISIBLE_DEVICES set, numbers count all GPUs of the machine and not those that torch finds
    beyond = [gpu for gpu in gpus if gpu.isdecimal() and int(gpu) >= there]
    if beyond and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise ConfigError(
            [f"--gpus {beyond[0]}: torch finds {there} GPUs here, which count from 0"]
        )


def _check(arguments: argparse.Namespace, grid: Any) -> None:
    """Raise all that is wrong with a sweep, as far as that is known without torch."""
    problems = check_running_options(arguments)
    if arguments.select is None and arguments.select_seeds:
        problems.append("--select-seeds is for --select: it says which seeds pick a strength")
    if arguments.select is not None and arguments.match:
        problems.append(
            "--select picks each method's own strength and --match one for all: use one of them"
        )
    if arguments.reference and not arguments.match:
        problems.append("--reference is for --match: it says whose stiffness all methods get")
    both = sorted({*parse_seeds(arguments.select_seeds or [])} & {*grid.seeds})
    if both:
        listed = ", ".join(map(str, both))
        reason = "what picks a strength must not report on it"
        problems.append(f"--select-seeds and --seeds share {listed}: {reason}; choose other seeds")
    problems += _find_run_problems(grid)
    if problems:
        raise ConfigError(problems)


def _find_run_problems(grid: Any) -> list[str]:
    """Return what is wrong with the runs of a grid: names, keys, folders, and what is said twice."""
    from mcit.sweeps import grid as grids

    found: dict[str, None] = {}
    for order in grid.orders or (None,):
        for method in grid.methods:
            try:
                config = read_options(grids.make_options(grid, order, method, grid.seeds[0]))
                found |= dict.fromkeys(find_early_problems(config))
            except ConfigError as error:
                found |= dict.fromkeys(error.problems)
    return [*found, *grids.find_conflicts(grid)]


def _check_select(select: int | None, jobs: Sequence[Any]) -> None:
    """Refuse to pick by more tasks than there are, or by so few that all strengths are alike."""
    from mcit.runner.plan import resolve
    from mcit.sweeps.grid import LEAST_SEEN

    if select is None:
        return
    if select < LEAST_SEEN:
        raise ConfigError(
            [
                f"--select needs at least {LEAST_SEEN} tasks, found {select}: after the first, all strengths are alike"
            ]
        )
    fewest = min(len(resolve(job.config).tasks) for job in jobs)
    if select > fewest:
        raise ConfigError(
            [f"--select {select}: the order has {fewest} tasks; pick by as many or fewer"]
        )


def _match(grid: Any, arguments: argparse.Namespace) -> Any:
    """The grid with strengths of equal stiffness; None where a dry run would have to measure them."""
    from dataclasses import replace

    from mcit.sweeps import grid as grids
    from mcit.sweeps import stiffness

    methods = [name for name in grid.methods if grids.has_options(name, "strength", "manager")]
    reference = arguments.reference or next(iter(methods), None)
    if len(methods) < 2 or reference not in methods:
        listed = ", ".join(methods) or "none"
        raise ConfigError(
            [
                f"--match needs two methods that hold weights by importance, the reference among them; found {listed}"
            ]
        )
    if len(grid.orders) > 1:
        raise ConfigError(
            [
                "--match takes one order, for another first task has another stiffness; give one of them"
            ]
        )
    strengths = grid.methods[reference].strengths or grid.strengths
    if not strengths:
        raise ConfigError(
            [f"--match needs strengths of the reference, such as --strengths {reference}=100,300"]
        )
    measured = _measure(grid, methods, arguments)
    if measured is None:
        print(
            f"would measure the mean stiffness of {', '.join(methods)} after the first task, then plan the runs"
        )
        return None
    matched = stiffness.match_strengths(measured, reference, strengths)
    print(
        "\n".join([*stiffness.describe_match(measured, reference, matched), stiffness.EXPLANATION])
    )
    own = {
        name: replace(m, strengths=matched.get(name, m.strengths))
        for name, m in grid.methods.items()
    }
    return replace(grid, methods=own, strengths=())


def _measure(
    grid: Any, methods: Sequence[str], arguments: argparse.Namespace
) -> dict[str, float] | None:
    """Mean stiffness at strength 1 by method, with the first seed; what an earlier start measured is not repeated."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from mcit.commands.run import mute, prepare
    from mcit.sweeps import grid as grids
    from mcit.sweeps import stiffness
    from mcit.sweeps.jobs import identify

    measured, found = stiffness.Measured(arguments.output / "stiffness.json"), {}
    alone = {name: replace(grid.methods[name], strengths=(1.0,)) for name in methods}
    with TemporaryDirectory(prefix="mcit-") as scratch:
        cache = Path(arguments.stage_cache or scratch)
        for job in grids.plan_jobs(
            replace(grid, methods=alone, seeds=grid.seeds[:1]), arguments.output, read_options
        ):
            identity = identify(job.config)
            mean = measured.find(job.method, identity)
            if mean is None and arguments.dry_run:
                check_data([job])
                return None
            if mean is None:
                print(
                    f"measuring the mean stiffness of {job.method} after the first task", flush=True
                )
                mean = stiffness.measure_stiffness(prepare(job.config, mute), cache, progress=True)
                measured.add(job.method, identity, mean)
            found[job.method] = mean
    return found


def _select(jobs: Sequence[Any], seen: int, grid: Any, output: Path) -> tuple[list[Any], list[str]]:
    """What is picked, and the lines that say how."""
    from mcit.files import write_json
    from mcit.sweeps import grid as grids
    from mcit.sweeps.jobs import find_state

    choices = grids.select([job for job in jobs if find_state(job) == "done"], seen)
    rule = grids.describe_rule(seen)
    lines = [f"selection: {rule}."]
    for choice in choices:
        lines.append(
            f"{choice.order + ': ' if choice.order and len(grid.orders) > 1 else ''}{choice.describe()}"
        )
    reused = sorted({seed for choice in choices for seed in choice.seeds} & {*grid.seeds})
    if reused:
        lines.append(
            "picked on the seeds that are reported, which flatters them; --select-seeds keeps the two apart"
        )
    print("\n  ".join(lines))
    record = {
        "rule": rule,
        "seeds_reported": list(grid.seeds),
        "choices": [choice.to_dict() for choice in choices],
    }
    write_json(output / "selection.json", record)
    return choices, lines
