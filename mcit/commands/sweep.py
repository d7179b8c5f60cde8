"""`mcit sweep`: strengths, methods, seeds and orders as a grid of runs, compared at the end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mcit.arguments import parse_seeds, some_text, split_list, whole_number
from mcit.commands.run import say_nothing
from mcit.commands.running import (
    add_running_options,
    check_data,
    check_gpus,
    explain_interruption,
    find_missing,
    find_running_problems,
    make_runs,
)
from mcit.config.parse import parse
from mcit.config.schema import PRESETS
from mcit.errors import ConfigError
from mcit.files import write_json
from mcit.reports.extras import check_extra
from mcit.spelling import suggest
from mcit.sweeps.grid import Grid, find_problems, find_repeated, parse_strengths, read_grid

if TYPE_CHECKING:
    from mcit.sweeps.jobs import Job
    from mcit.sweeps.selection import Choice

HELP = "run a grid of strengths, methods, seeds and orders, and compare them"
EPILOG = """
  mcit sweep --order vqa,nlvr2,snli-ve,vcr --methods finetune,ewc,ewc_dr --strengths 100,300,1000
  mcit sweep grid.yaml --output runs/grid --dry-run

A grid file has the same names: order or orders, methods (a list, or a section that gives each its
strengths: `ewc: [300, 1000]`), strengths, seeds, config, preset, recipe, data_root, tracker, set.
Options of the command line override the file. Runs that are complete are not repeated and
interrupted runs are resumed: the same command continues a sweep.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit sweep`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
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
        help="strengths to try, for all methods that have one, or for METHOD (default: configured)",
    )
    parser.add_argument(
        "--seeds", type=split_list, help="comma-separated, or a range: 1,2,3 or 1-3 (default: 1-3)"
    )
    parser.add_argument("--config", type=some_text, help="as in `mcit run`, for every run")
    parser.add_argument("--preset", choices=PRESETS, help="as in `mcit run`")
    parser.add_argument("--recipe", type=some_text, help="as in `mcit run`")
    parser.add_argument("--data-root", type=some_text, metavar="DIR", help="as in `mcit run`")
    parser.add_argument(
        "--tracker",
        type=some_text,
        help="as in `mcit run`; the runs form a group, named after --output",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in `mcit run`"
    )
    parser.add_argument(
        "--output",
        type=some_text,
        default="runs/sweep",
        metavar="DIR",
        help="folder of all runs (default: runs/sweep)",
    )
    choosing = parser.add_argument_group("choosing strengths")
    choosing.add_argument(
        "--select",
        type=whole_number,
        nargs="?",
        const=2,
        metavar="TASKS",
        help="choose the strength of each method by its mean A_t over the first TASKS tasks "
        "(default: 2); later tasks are not looked at",
    )
    choosing.add_argument(
        "--select-seeds",
        type=split_list,
        default=[],
        help="choose strengths on these seeds, and report on --seeds",
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
        help="method whose stiffness --match gives to the others (default: the first that has one)",
    )
    running = parser.add_argument_group("running")
    add_running_options(running)
    running.add_argument(
        "--dry-run", action="store_true", help="print the plan, check the data, and stop"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check the grid, match strengths if that is asked for, and make the runs."""
    grid = build_grid(arguments)
    problems = find_option_problems(arguments, grid)
    problems += find_problems(grid)
    if problems:
        raise ConfigError(problems)
    # a sweep ends with a report, hours later
    check_extra()
    # from here on torch is needed, which takes seconds to import: a typo is reported before
    check_gpus(arguments.gpus)
    if arguments.match:
        matched = match_stiffness(grid, arguments)
        if matched is None:
            return 0
        grid = matched
    return run_grid(grid, arguments)


def run_grid(grid: Grid, arguments: argparse.Namespace) -> int:
    """Plan, make the runs that are missing, choose strengths, and report; return the exit code."""
    from mcit.sweeps.jobs import plan_jobs
    from mcit.sweeps.selection import check_seen, keep_chosen
    from mcit.sweeps.summary import print_plan, write_summary

    output = Path(arguments.output)
    jobs = plan_jobs(grid, output)
    candidates = jobs
    if arguments.select_seeds:
        seeds = parse_seeds(arguments.select_seeds)
        candidates = plan_jobs(replace(grid, seeds=seeds), output)
    if arguments.select is not None:
        check_seen(jobs, arguments.select)
    print_plan(candidates, jobs, arguments.select)
    if arguments.dry_run:
        check_data(find_missing([*candidates, *jobs]))
        return 0
    picked: list[str] = []
    try:
        failed = make_runs(candidates, arguments)
        if arguments.select is not None:
            choices, picked = select_strengths(candidates, grid, arguments)
            jobs = keep_chosen(jobs, choices)
        if arguments.select_seeds:
            failed += make_runs(jobs, arguments)
    except KeyboardInterrupt:
        return explain_interruption(arguments)
    write_summary(
        candidates,
        jobs,
        matched=bool(arguments.match),
        picked=picked,
        output=output,
        command=arguments.given,
    )
    return 1 if failed else 0


def build_grid(arguments: argparse.Namespace) -> Grid:
    """Return the grid of the file, with the options of the command line over it."""
    data: dict[str, Any] = {"methods": {}, "set": []}
    if arguments.grid:
        data = _read_file(arguments.grid)
    methods = data["methods"]
    if arguments.methods:
        problems = find_repeated("--methods", arguments.methods)
        if problems:
            raise ConfigError(problems)
        methods = {name: methods.get(name, {}) for name in arguments.methods}
    shared, own = parse_strengths(arguments.strengths, list(methods))
    if shared:
        data["strengths"] = shared
        own = {name: own.get(name, []) for name in methods}
    for name, strengths in own.items():
        methods[name] = {**methods[name], "strengths": strengths}
    data["methods"] = methods
    if arguments.order:
        data["orders"] = arguments.order
    if arguments.seeds:
        data["seeds"] = parse_seeds(arguments.seeds)
    for name in ("config", "preset", "recipe", "data_root", "tracker"):
        if getattr(arguments, name) is not None:
            data[name] = getattr(arguments, name)
    if data.get("tracker"):
        # one group for the runs of a sweep; in quotes, for a folder may be called 2024
        group = json.dumps(Path(arguments.output).resolve().name)
        data["set"] = [f"tracker_group={group}", *data["set"]]
    data["set"] = [*data["set"], *arguments.set]
    return parse(Grid, data)


def find_option_problems(arguments: argparse.Namespace, grid: Grid) -> list[str]:
    """Return what is wrong with the options of a sweep, without its runs."""
    problems = find_running_problems(arguments)
    if arguments.select is None and arguments.select_seeds:
        problems.append("--select-seeds is for --select: it names the seeds that choose strengths")
    if arguments.select is not None and arguments.match:
        problems.append(
            "--select chooses a strength for each method, --match one stiffness for all: use one "
            "of them"
        )
    if arguments.reference and not arguments.match:
        problems.append(
            "--reference is for --match: it names the method whose stiffness all others get"
        )
    both = sorted({*parse_seeds(arguments.select_seeds)} & {*grid.seeds})
    if both:
        listed = ", ".join(map(str, both))
        problems.append(
            f"--select-seeds and --seeds share {listed}: the seeds that choose a strength must "
            f"not be reported; choose others"
        )
    return problems


def select_strengths(
    jobs: Sequence[Job], grid: Grid, arguments: argparse.Namespace
) -> tuple[list[Choice], list[str]]:
    """Return the strengths that are picked and the lines that say how; write both to a file."""
    from mcit.sweeps.jobs import find_state
    from mcit.sweeps.selection import describe_rule, select

    done = [job for job in jobs if find_state(job) == "done"]
    choices = select(done, arguments.select)
    rule = describe_rule(arguments.select)
    lines = [f"selection: {rule}."]
    for choice in choices:
        where = f"{choice.order}: " if len(grid.orders) > 1 else ""
        lines.append(f"{where}{choice.describe()}")
    if choices and not arguments.select_seeds:
        lines.append(
            "strengths are chosen on the seeds that are reported, which flatters the results; "
            "--select-seeds keeps the two apart"
        )
    print("\n  ".join(lines))
    record = {
        "rule": rule,
        "seeds_reported": list(grid.seeds),
        "choices": [choice.to_dict() for choice in choices],
    }
    write_json(Path(arguments.output) / "selection.json", record)
    return choices, lines


def match_stiffness(grid: Grid, arguments: argparse.Namespace) -> Grid | None:
    """Return the grid with strengths of equal stiffness; None if a dry run does not know them."""
    from mcit.consolidating import ConsolidatingMethod
    from mcit.registry import find_method
    from mcit.sweeps.stiffness import EXPLANATION, describe_match, match_strengths

    methods = [name for name in grid.methods if issubclass(find_method(name), ConsolidatingMethod)]
    reference = _choose_reference(grid, methods, arguments.reference)
    stiffness = _measure(grid, methods, arguments)
    if stiffness is None:
        listed = ", ".join(methods)
        print(
            f"would first measure the mean stiffness of {listed} after the first task, and then "
            "plan"
        )
        return None
    strengths = grid.methods[reference].strengths or grid.strengths
    matched = match_strengths(stiffness, reference, strengths)
    print("\n".join([*describe_match(stiffness, reference, matched), EXPLANATION]))
    sections = {}
    for name, section in grid.methods.items():
        own = matched.get(name, section.strengths)
        sections[name] = replace(section, strengths=own)
    return replace(grid, methods=sections, strengths=())


def _choose_reference(grid: Grid, methods: Sequence[str], asked: str | None) -> str:
    """Return the method whose stiffness all get; raise if the grid cannot be matched with it."""
    reference = asked
    if asked is None and methods:
        reference = methods[0]
    if reference is None or len(methods) < 2 or reference not in methods:
        listed = ", ".join(methods) or "none"
        raise ConfigError(
            [
                "--match needs two methods that hold weights by importance, the reference among "
                f"them; found {listed}"
            ]
        )
    if len(grid.orders) > 1:
        raise ConfigError(
            ["--match takes one order: another first task has another stiffness; give one of them"]
        )
    if not (grid.methods[reference].strengths or grid.strengths):
        raise ConfigError(
            [f"--match needs strengths for the reference, such as --strengths {reference}=100,300"]
        )
    return reference


def _measure(
    grid: Grid, methods: Sequence[str], arguments: argparse.Namespace
) -> dict[str, float] | None:
    """Return the mean stiffness of each method at strength 1, with the first seed.

    What an earlier start measured is not repeated; a dry run measures nothing and returns None.
    """
    from mcit.runner.preparing import prepare_plan
    from mcit.sweeps.jobs import plan_jobs
    from mcit.sweeps.stiffness import StiffnessFile, measure_stiffness

    output = Path(arguments.output)
    file = StiffnessFile(output / "stiffness.json")
    sections = {name: replace(grid.methods[name], strengths=(1.0,)) for name in methods}
    alone = replace(grid, methods=sections, seeds=grid.seeds[:1])
    jobs = plan_jobs(alone, output)
    missing = [job for job in jobs if file.find(job.method, job.plan.experiment()) is None]
    if missing and arguments.dry_run:
        check_data(missing)
        return None
    with TemporaryDirectory(prefix="mcit-") as scratch:
        cache = Path(arguments.stage_cache or scratch)
        for job in missing:
            print(f"measuring the mean stiffness of {job.method} after the first task", flush=True)
            plan = prepare_plan(job.plan.config, say_nothing)
            mean = measure_stiffness(plan, cache, progress=True)
            file.add(job.method, job.plan.experiment(), mean)
    means = {job.method: file.find(job.method, job.plan.experiment()) for job in jobs}
    return {method: mean for method, mean in means.items() if mean is not None}


def _read_file(name: str) -> dict[str, Any]:
    path = Path(name)
    if not path.exists():
        near = suggest(name, [str(other) for other in Path().glob("*.yaml")])
        hint = "items of a list such as --methods are joined by commas, without spaces"
        raise ConfigError([f"no grid file {name!r}{near} ({hint})"])
    return read_grid(path)
