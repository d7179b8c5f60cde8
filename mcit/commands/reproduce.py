"""`mcit reproduce`: expected results, the commands behind them, and what was measured here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcit.arguments import number, parse_seeds, some_text, split_list
from mcit.commands import study
from mcit.commands.running import (
    add_running_options,
    check_gpus,
    explain_interruption,
    find_running_problems,
    make_runs,
)
from mcit.config.files import describe_data_root, list_configs
from mcit.errors import ConfigError
from mcit.files import make_folder, write_json, write_text
from mcit.reproduce.expected import ExpectedResults, find_unknown, list_tables, read_expected
from mcit.sweeps.grid import find_repeated

if TYPE_CHECKING:
    from mcit.reproduce.cells import Cell

HELP = "list or run the tables of papers, and small tables of our own, and compare the numbers"
EPILOG = """
  mcit reproduce                                            lists the tables
  mcit reproduce cifar100                                   plan, cost and commands; nothing is run
  mcit reproduce shapes --run                               minutes, needs no data
  mcit reproduce study                                      what the studies of `mcit study` found
  mcit reproduce cifar100 --data-root DIR --only ewc,ewc_dr --setting bigstart-10 --run --gpus 0,1

Runs that are complete are found in --output and --runs and are not repeated. The exit code is 1 if
a run failed or a number differs from the expected one.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit reproduce`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "table", nargs="?", type=some_text, help="name of a table; without it, all are listed"
    )
    parser.add_argument(
        "--only",
        type=split_list,
        default=[],
        metavar="METHOD,...",
        help="only these methods (default: all)",
    )
    parser.add_argument(
        "--setting",
        type=split_list,
        default=[],
        metavar="NAME,...",
        help="only these settings (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=split_list,
        default=[],
        help="seeds, such as 1,2,3 or 1-3 (default: those of the table)",
    )
    parser.add_argument(
        "--data-root", type=some_text, metavar="DIR", help="folder of the official data"
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder of the runs (default: runs/reproduce-TABLE)",
    )
    parser.add_argument(
        "--runs",
        type=some_text,
        action="append",
        default=[],
        metavar="DIR",
        help="another folder in which to look for finished runs",
    )
    parser.add_argument("--run", action="store_true", help="start the runs that are missing")
    add_running_options(parser)
    parser.add_argument(
        "--teraflops",
        type=number,
        default=10.0,
        help="speed of the machine for which costs are estimated (default: 10)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="store the measured numbers as the expected ones (tables of our own only)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the plan and its cost, make the runs that are asked for, and judge."""
    if arguments.table is None:
        return show_tables(arguments)
    if arguments.table.startswith("study"):
        return reproduce_studies(arguments)
    table = read_expected(arguments.table)
    problems = find_option_problems(arguments, table)
    if problems:
        raise ConfigError(problems)
    # from here on torch is needed, which takes seconds to import: a typo is reported before
    check_gpus(arguments.gpus)
    from mcit.reproduce.cells import count_verdicts, find_runs, record
    from mcit.reproduce.cost import describe_cost

    output = Path(arguments.output or f"runs/reproduce-{arguments.table}")
    folders = [output, *map(Path, arguments.runs)]
    cells = find_runs(plan_cells(table, output, arguments), folders)
    print(f"{table.title}\n{table.source}; data: {table.data or 'none needed'}")
    print(f"{describe_cost(table, cells, arguments.teraflops)}\n")
    failed = []
    if arguments.run:
        try:
            failed = make_runs([job for cell in cells for job in cell.missing], arguments)
        except KeyboardInterrupt:
            return explain_interruption(arguments)
        cells = find_runs(cells, folders)
    if arguments.record:
        write_json(table.path, record(table, cells))
        print(f"recorded in {table.path}")
        cells = find_runs(plan_cells(table, output, arguments), folders)
    show_cells(table, cells)
    if arguments.run:
        write_cells(table, cells, output / "expected.md", command=arguments.given)
    differs = count_verdicts(table, cells)["differs"]
    return 1 if failed or differs else 0


def reproduce_studies(arguments: argparse.Namespace) -> int:
    """Show or repeat the study of a plan in configs/, or of all for the name `study`."""
    names = [name for name in list_configs() if name.startswith("study-")]
    if arguments.table != "study":
        names = [arguments.table]
    for option in ("record", "only", "setting", "seeds", "runs"):
        if getattr(arguments, option):
            raise ConfigError([f"--{option} is for tables; a study is repeated whole"])
    problems = find_running_problems(arguments)
    if problems:
        raise ConfigError(problems)
    check_gpus(arguments.gpus)
    try:
        return max([study.reproduce(name, arguments) for name in names], default=0)
    except KeyboardInterrupt:
        return explain_interruption(arguments)


def show_tables(arguments: argparse.Namespace) -> int:
    """List the tables; raise if an option was given that needs one."""
    names = list_tables()
    for option in ("run", "record", "only", "setting", "seeds", "output"):
        if getattr(arguments, option):
            listed = ", ".join(names)
            raise ConfigError(
                [f"--{option} needs the name of a table: mcit reproduce TABLE (tables: {listed})"]
            )
    width = max(map(len, names))
    for name in names:
        table = read_expected(name)
        print(f"{name:{width}}  {table.title} (data: {table.data or 'none needed'})")
    return 0


def find_option_problems(arguments: argparse.Namespace, table: ExpectedResults) -> list[str]:
    """Return what is wrong with the options, as far as is known without torch."""
    problems = find_running_problems(arguments)
    problems += find_unknown(table, arguments.setting, arguments.only)
    for option in ("only", "setting", "seeds"):
        problems += find_repeated(f"--{option}", getattr(arguments, option))
    for folder in arguments.runs:
        if not Path(folder).is_dir():
            problems.append(f"--runs {folder!r} is not a directory; give one that holds runs")
    # a plan may be printed with any word for the folder
    if arguments.run and arguments.data_root and not Path(arguments.data_root).is_dir():
        problems.append(describe_data_root(arguments.data_root))
    if arguments.run and table.data and not arguments.data_root:
        problems.append(f"--run needs --data-root: {table.data}")
    if arguments.record and table.published:
        problems.append(
            f"the numbers of {arguments.table} are the paper's: --record is for tables of our own"
        )
    if arguments.record and (arguments.only or arguments.setting or arguments.seeds):
        problems.append("--record takes the whole table: leave out --only, --setting and --seeds")
    if not arguments.teraflops > 0:
        problems.append(f"--teraflops must be above 0, found {arguments.teraflops:g}")
    try:
        parse_seeds(arguments.seeds)
    except ConfigError as error:
        problems += error.problems
    return problems


def plan_cells(table: ExpectedResults, output: Path, arguments: argparse.Namespace) -> list[Cell]:
    """Return the cells that the options ask for."""
    from mcit.reproduce.cells import make_cells

    return make_cells(
        table,
        output,
        settings=arguments.setting,
        methods=arguments.only,
        seeds=parse_seeds(arguments.seeds),
        data_root=arguments.data_root,
    )


def show_cells(table: ExpectedResults, cells: Sequence[Cell]) -> None:
    """Print the table and its commands."""
    from mcit.reports.formats import print_tables
    from mcit.reproduce.cells import tabulate

    print_tables([tabulate(table, cells)])
    print("commands:")
    for command in list_commands(cells):
        print(f"  {command}")


def write_cells(table: ExpectedResults, cells: Sequence[Cell], path: Path, *, command: str) -> None:
    """Write the table and its commands in Markdown; command: the one that was typed."""
    from mcit.reports.formats import format_markdown_table
    from mcit.reproduce.cells import tabulate

    lines = [f"# {table.title}", "", format_markdown_table(tabulate(table, cells))]
    lines += ["Commands:", ""]
    lines += [f"    {command}" for command in list_commands(cells)]
    lines += ["", f"Made by `{command}`.", ""]
    make_folder(path.parent, "--output")
    write_text(path, "\n".join(lines))
    print(f"written to {path}")


def list_commands(cells: Sequence[Cell]) -> list[str]:
    """Return the command of every cell with the first of its seeds, and a note of the others."""
    commands = []
    for cell in cells:
        first, *others = cell.jobs
        command = first.command
        if others:
            seeds = ", ".join(str(job.seed) for job in others)
            command += f"  # and with --seed {seeds}"
        commands.append(command)
    return commands
