"""Everything that is made of runs: tables, figures, a page in Markdown and one in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcit.files import write_text
from mcit.reports.caveats import find_caveats
from mcit.reports.extras import check_extra
from mcit.reports.formats import Table, TableKind, format_csv, format_markdown_table
from mcit.reports.groups import group_runs
from mcit.reports.latex import format_latex
from mcit.reports.page import Report, format_markdown, make_page
from mcit.reports.runs import Run
from mcit.reports.tables import make_tables

FORMS = {"md": format_markdown_table, "tex": format_latex, "csv": format_csv}


def write_report(runs: Sequence[Run], output: Path, command: str, style: str = "screen") -> Report:
    """Write report.md, report.html, tables/ and figures/ into a folder."""
    check_extra()
    # they import scipy and matplotlib, which only reports need
    from mcit.reports.figures import write_figures
    from mcit.reports.significance import compare, make_significance_tables

    groups = group_runs(runs)
    comparison = compare(groups)
    tables = [*make_tables(groups), *make_significance_tables(comparison)]
    tables.sort(key=_find_place)
    (output / "tables").mkdir(parents=True, exist_ok=True)
    for table in tables:
        for ending, render in FORMS.items():
            write_text(output / "tables" / f"{table.name}.{ending}", render(table))
    figures = write_figures(groups, comparison, output / "figures", style)
    report = Report(groups, tables, figures, find_caveats(groups), command=command, folder=output)
    write_text(output / "report.md", format_markdown(report))
    write_text(output / "report.html", make_page(report))
    return report


def _find_place(table: Table) -> int:
    """Return where a table stands: comparisons come before tables of one group each."""
    return list(TableKind).index(table.kind)
