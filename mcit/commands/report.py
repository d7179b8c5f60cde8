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
from mcit.folders import find_folder_problem, make_folder

HELP = "make the tables, figures and page of any number of runs"
FORMATS = ("terminal", "markdown", "latex", "csv")
FEW = 4  # groups up to which the terminal shows each by itself


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `mcit report`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=some_text,
        metavar="RUN",
        help="folder of a run, folder that holds several, or a CSV or JSON matrix of another toolkit",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder to write to (default: that of the one run, or report/ beside several)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="terminal", help="what is printed (default: terminal)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, write everything that can be made of them, and print the tables."""
    from mcit.reports.runs import read_runs

    skipped: list[str] = []
    runs = read_runs(arguments.runs, skipped)
    output = Path(arguments.output) if arguments.output else choose_output(runs, arguments.runs)
    make_folder(output, "--output")
    for name in ("tables", "figures"):
        problem = find_folder_problem(output / name, "--output")
        if problem is not None:
            raise FolderError(problem)
    # late: matplotlib and scipy take seconds to import, and what is wrong with the runs is told before
    from mcit.reports.report import write_report

    report = write_report(runs, output, arguments.given)
    show(report, output, arguments.format)
    for line in skipped:
        print(
            f"left out: {line}", file=sys.stdout if arguments.format == "terminal" else sys.stderr
        )
    return 0


def choose_output(runs: Sequence[Any], given: Sequence[str]) -> Path:
    """The folder of one run; `report/` in the folder that holds all of several, or here if nothing but / does."""
    from mcit.reports.runs import SCORES

    if len(runs) == 1 and runs[0].folder is not None:
        return runs[0].folder
    parents = [run.folder.resolve().parent for run in runs if run.folder is not None]
    parents += [
        Path(path).resolve().parent
        for path in given
        if Path(path).is_file() and Path(path).name != SCORES
    ]
    common = Path(os.path.commonpath(parents))
    return (Path.cwd() if common == Path(common.anchor) else common) / "report"


def show(report: Any, output: Path, form: str) -> None:
    """Print the tables, then what to know before comparing and what was written; these aside if others read on."""
    from mcit.reports.formats import format_csv, format_latex, format_markdown_table, print_tables

    writers = {"markdown": format_markdown_table, "latex": format_latex, "csv": format_csv}
    aside = sys.stdout if form == "terminal" else sys.stderr
    if form == "terminal":
        shown = [
            t
            for t in report.tables
            if len(report.groups) <= FEW or not t.name.startswith("matrix-")
        ]
        print_tables(shown)
        if len(shown) < len(report.tables):
            print(f"{len(report.tables) - len(shown)} tables of one method each are in report.md\n")
    else:
        mark = {"markdown": "## ", "latex": "% ", "csv": "# "}[form]
        print(
            "\n".join(f"{mark}{table.title}\n\n{writers[form](table)}" for table in report.tables),
            end="",
        )
    for warning in report.warnings:
        print(f"before comparing: {warning}", file=aside)
    names = ", ".join(dict.fromkeys(_name(path.relative_to(output)) for path in report.files))
    print(f"written to {output}: {names}", file=aside)


def _name(path: Path) -> str:
    """A file of its own name; those of a folder together."""
    return path.name if len(path.parts) == 1 else f"{path.parts[0]}/"
