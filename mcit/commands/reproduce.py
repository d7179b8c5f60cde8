"""`mcit reproduce`: a table as a ledger of commands, figures and what was measured here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcit.arguments import number, parse_seeds, some_text, split_list
from mcit.commands.run import describe_data_root
from mcit.commands.sweep import add_running_options, check_gpus, check_running_options
from mcit.config import ConfigError

HELP = "the paper's tables, and small ones of our own: commands, costs, and whether the figures were met"
EPILOG = """
  mcit reproduce                                            the tables there are
  mcit reproduce cifar100                                   plan, cost and commands; nothing is run
  mcit reproduce shapes --run                               minutes, needs no data
  mcit reproduce cifar100 --data-root DIR --only ewc,ewc_dr --setting bigstart-10 --run --gpus 0,1

Runs that are complete are found in --output and --runs and are not repeated. The exit code is 1 where a run failed or a
figure differs.
"""
SIGNS = {"agrees": "agrees", "differs": "DIFFERS", "not run": "not run", "no figure": "no figure"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    parser.add_argument(
        "table", nargs="?", type=some_text, help="which one; without it, all are listed"
    )
    parser.add_argument(
        "--only",
        type=split_list,
        default=[],
        metavar="METHOD,...",
        help="these methods (default: all)",
    )
    parser.add_argument(
        "--setting",
        type=split_list,
        default=[],
        metavar="NAME,...",
        help="these settings (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=split_list,
        default=[],
        help="other seeds than the table's: 1,2,3 or 1-3 (default: the table's)",
    )
    parser.add_argument(
        "--data-root",
        dest="data_root",
        type=some_text,
        metavar="DIR",
        help="folder of the official data",
    )
    parser.add_argument(
        "--output",
        type=lambda text: Path(some_text(text)),
        metavar="DIR",
        help="folder of the runs (default: runs/reproduce-TABLE)",
    )
    parser.add_argument(
        "--runs",
        type=lambda text: Path(some_text(text)),
        action="append",
        default=[],
        metavar="DIR",
        help="another folder with runs to take in",
    )
    parser.add_argument("--run", action="store_true", help="make the runs that are missing")
    add_running_options(parser)
    parser.add_argument("--stage-cache", type=some_text, metavar="DIR", help="as in `mcit run`")
    parser.add_argument(
        "--teraflops",
        type=number,
        default=10.0,
        help="speed that the cost is estimated for (default: 10)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="make what was measured the figures of a table of ours",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the plan and its cost, make what is asked for, and judge."""
    from mcit.reproduce import ledger as ledgers

    if arguments.table is None:
        _refuse_options_without_table(arguments)
        _list_tables()
        return 0
    ledger = ledgers.read_ledger(arguments.table)
    _check(arguments, ledger)
    # from here on torch is needed, which takes seconds to import: a typo is told before
    check_gpus(arguments.gpus)
    from mcit.reproduce.cost import describe_cost

    output = arguments.output or Path("runs") / f"reproduce-{arguments.table}"
    cells, folders = _make_cells(ledger, output, arguments), [output, *arguments.runs]
    cells = ledgers.find_runs(cells, folders)
    print(f"{ledger.title}\n{ledger.source}; data: {ledger.data or 'none needed'}")
    print(f"{describe_cost(ledger, cells, arguments.teraflops)}\n")
    failed = []
    if arguments.run:
        try:
            failed = _run(cells, arguments)
        except KeyboardInterrupt:
            print(
                f"\nmcit: stopped, and all runs with it; to go on: {arguments.given}",
                file=sys.stderr,
            )
            return 130
        cells = ledgers.find_runs(cells, folders)
    if arguments.record:
        _record(ledger, cells)
        cells = ledgers.find_runs(_make_cells(ledger, output, arguments), folders)
    _show(ledger, cells, output if arguments.run else None, arguments)
    differs = any(
        cell.judge(m, ledger.tolerance) == "differs" for cell in cells for m in ledger.metrics
    )
    return 1 if failed or differs else 0


def _make_cells(ledger: Any, output: Path, arguments: argparse.Namespace) -> list[Any]:
    from mcit.commands.sweep import read_options
    from mcit.reproduce.ledger import make_cells

    chosen = (arguments.setting, arguments.only, parse_seeds(arguments.seeds))
    return make_cells(ledger, output, read_options, *chosen, data_root=arguments.data_root)


def _run(cells: Sequence[Any], arguments: argparse.Namespace) -> list[Any]:
    from mcit.commands.sweep import make_runs

    found = {(cell.setting, cell.method, run.seed) for cell in cells for run in cell.runs}
    missing = [
        job
        for cell in cells
        for job in cell.jobs
        if (cell.setting, cell.method, job.seed) not in found
    ]
    return make_runs(missing, arguments)


def _show(
    ledger: Any, cells: Sequence[Any], output: Path | None, arguments: argparse.Namespace
) -> None:
    """The table on the terminal, and as a file where runs were asked for."""
    from mcit.reports.tables import format_markdown_table, print_tables

    table = make_table(ledger, cells)
    print_tables([table])
    commands = list_commands(cells)
    print("\n".join(["commands:", *(f"  {line}" for line in commands)]))
    if output is not None:
        text = [f"# {table.title}", "", format_markdown_table(table), "Commands:", ""]
        text += [*(f"    {line}" for line in commands), "", f"Made by `{arguments.given}`.", ""]
        output.mkdir(parents=True, exist_ok=True)
        (output / "ledger.md").write_text("\n".join(text), encoding="utf-8")
        print(f"written to {output / 'ledger.md'}")


def make_table(ledger: Any, cells: Sequence[Any]) -> Any:
    """One row for each figure: what it should be, what it is here, and whether that is within the tolerance."""
    from mcit.reports.tables import Table

    paper = ledger.figures == "paper_tables.json"
    header = [
        "setting",
        "method",
        "metric",
        "paper" if paper else "recorded",
        "here",
        "difference",
        "runs",
        "verdict",
    ]
    rows, counts = [], dict.fromkeys(SIGNS, 0)
    for cell in cells:
        for metric in ledger.metrics:
            figure, found, verdict = (
                cell.figures[metric],
                cell.measured(metric),
                cell.judge(metric, ledger.tolerance),
            )
            counts[verdict] += 1
            difference = (
                "" if found is None or figure is None else f"{round(found - figure, 2) + 0.0:+.2f}"
            )
            shown = [
                "–" if figure is None else f"{figure:.2f}",
                "not run" if found is None else f"{found:.2f}",
            ]
            runs = f"{len(cell.runs)} of {len(cell.jobs)}"
            rows.append(
                [cell.setting, cell.method, metric, *shown, difference, runs, SIGNS[verdict]]
            )
    notes = [", ".join(f"{count} {name}" for name, count in counts.items() if count)]
    notes.append(f"tolerance {ledger.tolerance:g} points: {ledger.tolerance_basis}")
    notes += [f"deviation: {text}" for text in ledger.deviations]
    notes += [
        f"{m}: {note}"
        for m in dict.fromkeys(c.method for c in cells)
        for note in ledger.methods[m].notes
    ]
    return Table("ledger", ledger.title, header, rows, notes)


def list_commands(cells: Sequence[Any]) -> list[str]:
    """The command of every cell, with the first of its seeds and a note of the others."""
    lines = []
    for cell in cells:
        seeds = ", ".join(str(job.seed) for job in cell.jobs[1:])
        lines.append(f"{cell.jobs[0].command}{f'  # and with --seed {seeds}' if seeds else ''}")
    return lines


def _record(ledger: Any, cells: Sequence[Any]) -> None:
    from mcit.files import write_json
    from mcit.reproduce import ledger as ledgers

    path = ledgers.PLACES[0] / ledger.figures
    write_json(path, ledgers.record(ledger, cells))
    print(f"recorded in {path}")


def _refuse_options_without_table(arguments: argparse.Namespace) -> None:
    from mcit.reproduce.ledger import ledger_names

    given = [
        name
        for name in ("run", "record", "only", "setting", "seeds", "output")
        if getattr(arguments, name)
    ]
    if given:
        listed = ", ".join(ledger_names())
        raise ConfigError(
            [f"--{given[0]} needs the name of a table: mcit reproduce TABLE (tables: {listed})"]
        )


def _check(arguments: argparse.Namespace, ledger: Any) -> None:
    """Raise all that is wrong with the options, as far as that is known without torch."""
    from mcit.reproduce.ledger import choose

    problems = check_running_options(arguments)
    try:
        choose(ledger, arguments.setting, arguments.only)
    except ConfigError as error:
        problems += error.problems
    for option in ("only", "setting", "seeds"):
        words = getattr(arguments, option)
        twice = [word for word in dict.fromkeys(words) if words.count(word) > 1]
        problems += [f"--{option} lists {word!r} twice; once is enough" for word in twice]
    missing = [folder for folder in arguments.runs if not folder.is_dir()]
    problems += [
        f"--runs {str(folder)!r} is no folder; give one that holds runs" for folder in missing
    ]
    parse_seeds(arguments.seeds)
    # a plan may be printed with any word for the folder
    if arguments.run and arguments.data_root and not Path(arguments.data_root).is_dir():
        problems.append(describe_data_root(arguments.data_root))
    if arguments.run and ledger.data and not arguments.data_root:
        problems.append(f"--run needs --data-root: {ledger.data}")
    if arguments.record and ledger.figures == "paper_tables.json":
        problems.append(
            f"the figures of {arguments.table} are the paper's: --record is for tables of our own"
        )
    if arguments.record and (arguments.only or arguments.setting or arguments.seeds):
        problems.append("--record takes the whole table: leave out --only, --setting and --seeds")
    if not arguments.teraflops > 0:
        problems.append(f"--teraflops must be above 0, found {arguments.teraflops:g}")
    if problems:
        raise ConfigError(problems)


def _list_tables() -> None:
    from mcit.reproduce.ledger import ledger_names, read_ledger

    names = ledger_names()
    for name in names:
        ledger = read_ledger(name)
        print(
            f"{name:{max(map(len, names))}}  {ledger.title} (data: {ledger.data or 'none needed'})"
        )
