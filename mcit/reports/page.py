"""A report as a page: in Markdown, and as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import yaml

import mcit
from mcit.reports.caveats import Caveat
from mcit.reports.formats import (
    Cell,
    Row,
    Table,
    TableKind,
    escape_markdown,
    format_markdown_table,
    is_best,
)
from mcit.reports.groups import Group
from mcit.reports.runs import Run
from mcit.reports.summary import Summary, summarize_settings

if TYPE_CHECKING:
    from mcit.reports.figures.style import FigureFile

# notes up to which they are shown unfolded
FEW_NOTES = 2


@dataclass(frozen=True)
class Report:
    """What was made, and the files that it is in."""

    groups: list[Group]
    tables: list[Table]
    figures: list[FigureFile]
    caveats: list[Caveat]
    # the command that made it
    command: str
    folder: Path

    @property
    def runs(self) -> list[Run]:
        """Every run once, however many classifiers scored it."""
        runs = [run for group in self.groups for run in group.runs]
        return [run for run in runs if run.classifier is None]


def format_markdown(report: Report) -> str:
    """Return the report in Markdown; its figures are in `figures/` next to it."""
    title = f"Report of {len(report.runs)} runs"
    if len(report.groups) == 1:
        title = report.tables[0].title
    lines = [f"# {escape_markdown(title)}", ""]
    if report.caveats:
        listed = [f"- {escape_markdown(str(caveat))}" for caveat in report.caveats]
        lines += ["Before comparing:", "", *listed, ""]
    for table in report.tables:
        if table.title != title:
            lines += [f"## {escape_markdown(table.title)}", ""]
        lines.append(format_markdown_table(table))
    for figure in report.figures:
        caption = escape_markdown(f"{figure.title}. {figure.caption}")
        lines += [f"![](figures/{figure.png.name})", "", caption, ""]
    lines += ["## Runs", ""]
    for run in report.runs:
        command = shlex.join(run.provenance.get("command", ())) or "(made elsewhere)"
        words = " ".join(command.split())
        # indented text is code, whatever it holds
        lines += [f"- {escape_markdown(run.label)}", "", f"      {words}", ""]
    made_by = [f"    {line}" for line in report.command.splitlines()]
    return "\n".join([*lines, "Made by:", "", *made_by, ""])


def make_page(report: Report) -> str:
    """Return the report in HTML: the answer first, what it rests on folded below."""
    summaries = summarize_settings(report.groups)
    opening = {figure.opens: _show_figure(figure) for figure in report.figures}
    others = [figure for figure in report.figures if not figure.opens]
    own = [table for table in report.tables if table.kind is TableKind.MATRIX]
    compared = [table for table in report.tables if table not in own]
    if len(report.groups) == 1:
        compared = own + compared
        own = []
    caveats = _show_caveats(report.caveats)
    answers = []
    for summary in summaries:
        answers.append(_show_summary(summary, opening.get(summary.setting.name, ""), caveats))
        # they are said once
        caveats = ""
    sections = [
        _fold("Tables", map(_show_table, compared), unfolded=True),
        _fold("Figures", map(_show_figure, others)),
        _fold("Method by method", map(_show_table, own)),
        _fold("Runs", map(_show_run, report.runs)),
        _fold("How this report was made", [_show_text(report.command)]),
    ]
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_read("page.html")).substitute(
        title=escape(" · ".join(dict.fromkeys(group.label for group in report.groups))),
        version=escape(mcit.__version__),
        style=_read("page.css"),
        script=script,
        # the only script that the page's policy lets run
        script_hash=f"sha256-{digest}",
        body="\n".join([*answers, *sections]),
    )


def _show_summary(summary: Summary, picture: str, caveats: str) -> str:
    where = summary.setting.name
    if summary.setting.embedded:
        where += " · embedded benchmark"
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in summary.remarks)
    return (
        f'<section class="answer"><div><p class="setting">{escape(where)}</p>'
        f"<h1>{escape(summary.headline)}</h1>{remarks}{caveats}</div>{picture}</section>"
    )


def _show_caveats(caveats: Sequence[Caveat]) -> str:
    """Return what to know before comparing."""
    if not caveats:
        return ""
    listed = ""
    for caveat in caveats:
        listed += f'<li class="{caveat.severity.value}">{escape(caveat.text)}</li>'
    return f'<aside class="caveats"><h2>Before you compare</h2><ul>{listed}</ul></aside>'


def _show_table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in table.columns)
    # rows to compare with are not sorted with the results
    references = "".join(_show_row(table, row) for row in table.rows if row.reference)
    results = "".join(_show_row(table, row) for row in table.rows if not row.reference)
    notes = "".join(f"<p>{escape(note.text)}</p>" for note in table.notes)
    if len(table.notes) > FEW_NOTES:
        notes = f"<details><summary>{len(table.notes)} notes</summary>{notes}</details>"
    return (
        f'<div class="block"><h3>{escape(table.title)}</h3>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f'<table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{references}</tbody><tbody>{results}</tbody></table></div>"
        f'<div class="notes">{notes}</div></div>'
    )


def _show_row(table: Table, row: Row) -> str:
    label, *texts = map(escape, table.texts(row))
    cells = [f'<th scope="row">{label}</th>']
    for text, cell in zip(texts, row.cells, strict=True):
        key = ""
        if isinstance(cell, Cell) and not math.isnan(cell.mean):
            key = f' data-value="{cell.mean:.10g}"'
        kind = ' class="best"' if is_best(cell) else ""
        cells.append(f"<td{kind}{key}>{text}</td>")
    kind = ' class="reference"' if row.reference else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _show_figure(figure: FigureFile) -> str:
    """Return a figure as an image: its own file cannot run a script or fetch anything there."""
    data = base64.b64encode(figure.svg.read_bytes()).decode()
    return (
        f'<figure class="block"><img alt="{escape(figure.title)}" '
        f'src="data:image/svg+xml;base64,{data}">'
        f"<figcaption><b>{escape(figure.title)}.</b> {escape(figure.caption)}</figcaption></figure>"
    )


def _show_run(run: Run) -> str:
    provenance = {key: value for key, value in run.provenance.items() if key != "config"}
    stiffness = zip(run.tasks, run.scores.diagnoses, strict=False)
    texts = {
        "Estimator": run.scores.estimator,
        "Stiffness": "\n".join(f"after {task}: {diagnosis}" for task, diagnosis in stiffness),
        "Command": shlex.join(run.provenance.get("command", ())),
        "Configuration": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "Provenance": json.dumps(provenance, indent=1, ensure_ascii=False),
    }
    # an empty mapping is written {}
    known = {name: text for name, text in texts.items() if text.strip("{}\n")}
    folds = [_fold(name, [_show_text(text)]) for name, text in known.items()]
    return _fold(run.label, folds)


def _fold(title: str, parts: Iterable[str], unfolded: bool = False) -> str:
    """Return a part of the page that folds; nothing if it has nothing to show."""
    inside = "".join(parts)
    if not inside:
        return ""
    state = " open" if unfolded else ""
    return (
        f"<details{state}><summary>{escape(title)}</summary>"
        f'<div class="inside">{inside}</div></details>'
    )


def _show_text(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def _read(name: str) -> str:
    return files("mcit.reports").joinpath(name).read_text(encoding="utf-8")
