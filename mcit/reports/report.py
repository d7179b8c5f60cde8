"""Everything that is made of runs: tables in three forms, figures, a page in Markdown and one in HTML."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcit.reports.compare import find_differences
from mcit.reports.figures import (
    Drawing,
    FigureFile,
    draw_critical_difference,
    write_drawing,
    write_figures,
)
from mcit.reports.formats import (
    Table,
    escape_markdown,
    format_csv,
    format_latex,
    format_markdown_table,
    make_code_span,
)
from mcit.reports.html import write_html
from mcit.reports.runs import Group, Run, group_runs
from mcit.reports.significance import make_significance_tables, rank_groups
from mcit.reports.tables import make_tables

FORMS = {"md": format_markdown_table, "tex": format_latex, "csv": format_csv}


@dataclass(frozen=True)
class Report:
    """What was made, and the files that it is in."""

    groups: list[Group]
    tables: list[Table]
    warnings: list[str]
    files: list[Path]


def write_report(runs: Sequence[Run], output: Path, command: str) -> Report:
    """Write report.md, report.html, tables/ and figures/ into a folder."""
    groups, warnings = group_runs(runs), find_differences(runs)
    tables = make_all_tables(groups)
    (output / "tables").mkdir(parents=True, exist_ok=True)
    files = []
    for table in tables:
        for ending, write in FORMS.items():
            files.append(output / "tables" / f"{table.name}.{ending}")
            files[-1].write_text(write(table), encoding="utf-8")
    figures = [
        *write_figures(groups, output / "figures"),
        *_write_ranks(groups, output / "figures"),
    ]
    files += [path for figure in figures for path in (figure.svg, figure.png, figure.pdf)]
    pages = [output / "report.md", output / "report.html"]
    page = format_page(groups, tables, figures, warnings, command)
    pages[0].write_text(page, encoding="utf-8")
    write_html(pages[1], groups, tables, figures, warnings, command)
    return Report(groups, tables, warnings, [*pages, *files])


def make_all_tables(groups: Sequence[Group]) -> list[Table]:
    """Comparisons, whether their differences mean anything, then each method by itself and the cost."""
    made = make_tables(groups)
    compared = [table for table in made if table.name.startswith(("comparison", "splits"))]
    return [
        *compared,
        *make_significance_tables(groups),
        *(table for table in made if table not in compared),
    ]


def format_page(
    groups: Sequence[Group],
    tables: Sequence[Table],
    figures: Sequence[FigureFile],
    warnings: Sequence[str],
    command: str,
) -> str:
    """The report in Markdown; its figures are in `figures/` beside it."""
    runs = [run for group in groups for run in group.runs]
    alone = len(groups) == 1
    title = tables[0].title if alone else f"Report of {len(runs)} runs"
    lines = [f"# {escape_markdown(title)}", ""]
    if warnings:
        lines += [
            "Before comparing:",
            "",
            *(f"- {escape_markdown(warning)}" for warning in warnings),
            "",
        ]
    for number, table in enumerate(tables):
        if not alone or number:
            lines += [f"## {escape_markdown(table.title)}", ""]
        lines.append(format_markdown_table(table))
    lines += ["## Figures", ""] if figures else []
    for figure in figures:
        title, caption = escape_markdown(figure.title), escape_markdown(figure.caption)
        lines += [f"![{title}](figures/{figure.png.name})", "", f"{title}. {caption}", ""]
    lines += _list_runs(runs) if len(runs) > 1 else []
    return "\n".join(
        [*lines, "Made by:", "", *(f"    {line}" for line in command.splitlines()), ""]
    )


def _list_runs(runs: Sequence[Run]) -> list[str]:
    lines = ["## Runs", ""]
    for run in runs:
        command = run.passport.get("command")
        if command:
            made = make_code_span(shlex.join(command))
        else:
            made = escape_markdown(f"from {run.scores.get('file', 'elsewhere')}")
        lines.append(f"- {escape_markdown(run.label)}: {made}")
    return [*lines, ""]


def _write_ranks(groups: Sequence[Group], folder: Path) -> list[FigureFile]:
    found = rank_groups(groups)
    if found is None:
        return []
    drawn = draw_critical_difference(found.methods, found.ranks, found.difference)
    caption = (
        f"Mean ranks by A_avg over {found.blocks} {found.kind}, 1 is best. A bar joins methods whose ranks lie within "
        f"Nemenyi's critical difference at 0.05, {found.difference:.3f}."
    )
    return [write_drawing(Drawing("critical-difference", "Mean ranks", caption, drawn), folder)]
