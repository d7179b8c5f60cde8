"""`mcit report`: tables, figures and one page of any number of runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcit.arguments import some_text
from mcit.errors import FolderError
from mcit.files import find_folder_problem, make_folder

HELP = "make tables, figures and a web page of any number of runs"
FORMATS = ("terminal", "markdown", "latex", "csv")
STYLES = ("screen", "paper")
# groups up to which the terminal shows each by itself
FEW = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit report`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=some_text,
        metavar="RUN",
        help="folder of a run, folder of several, or a CSV or JSON matrix of another toolkit",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder to write to (default: that of the one run, or report/ next to several)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="terminal",
        help="format of the tables that are printed (default: terminal)",
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        default="screen",
        help="figures for screens, or for a column of a paper (default: screen)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, write everything that can be made of them, and print the tables."""
    from mcit.reports.extras import check_extra
    from mcit.reports.runs import read_runs

    check_extra()
    skipped: list[str] = []
    runs = read_runs(arguments.runs, skipped)
    output = choose_output(runs, arguments.runs)
    if arguments.output:
        output = Path(arguments.output)
    make_folder(output, "--output")
    for name in ("tables", "figures"):
        problem = find_folder_problem(output / name, "--output")
        if problem is not None:
            raise FolderError(problem)
    # matplotlib takes seconds to import: a mistake is reported before
    from mcit.reports.report import write_report

    report = write_report(runs, output, arguments.given, style=arguments.style)
    print_report(report, arguments.format)
    for line in skipped:
        print(f"left out: {line}", file=_choose_stream(arguments.format))
    return 0


def choose_output(runs: Sequence[Any], given: Sequence[str]) -> Path:
    """Return the folder of one run, or `report/` in the folder that holds all of several."""
    from mcit.reports.runs import SCORES

    if len(runs) == 1 and runs[0].folder is not None:
        return runs[0].folder
    parents = [run.folder.resolve().parent for run in runs if run.folder is not None]
    for path in map(Path, given):
        if path.is_file() and path.name != SCORES:
            parents.append(path.resolve().parent)
    common = Path(os.path.commonpath(parents))
    if common == Path(common.anchor):
        # nothing but the root holds them all
        common = Path.cwd()
    return common / "report"


def print_report(report: Any, form: str) -> None:
    """Print the tables, then what to know before comparing, and what was written."""
    from mcit.reports.formats import format_csv, format_markdown_table
    from mcit.reports.latex import format_latex

    forms = {
        "markdown": ("## ", format_markdown_table),
        "latex": ("% ", format_latex),
        "csv": ("# ", format_csv),
    }
    stream = _choose_stream(form)
    if form == "terminal":
        _print_tables(report)
    else:
        mark, render = forms[form]
        for table in report.tables:
            print(f"{mark}{table.title}\n\n{render(table)}")
    for caveat in report.caveats:
        print(f"before comparing: {caveat}", file=stream)
    print(f"written to {report.folder}: report.md, report.html, tables/, figures/", file=stream)


def _print_tables(report: Any) -> None:
    from mcit.reports.formats import TableKind, print_tables

    shown = report.tables
    if len(report.groups) > FEW:
        shown = [table for table in shown if table.kind is not TableKind.MATRIX]
    print_tables(shown)
    left = len(report.tables) - len(shown)
    if left:
        print(f"{left} tables of one method each are in report.md\n")


def _choose_stream(form: str) -> Any:
    """Return where messages go: not among tables that another program reads."""
    return sys.stdout if form == "terminal" else sys.stderr
