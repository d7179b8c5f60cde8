"""The report as one HTML file that needs nothing else: the answer first, everything it rests on folded below."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import yaml

import mcit
from mcit.reports.answer import Answer, answer_groups, format_bytes, format_seconds
from mcit.reports.charts import break_name, draw_curves, draw_matrix, make_curve
from mcit.reports.formats import CHANCE, Table
from mcit.reports.runs import Group, Run
from mcit.reports.svg import embed_svg

if TYPE_CHECKING:
    from mcit.reports.figures import FigureFile

NOTE = "note: "  # what marks a warning that is none
NUMBER = re.compile(r"[-+−]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?(?![\w.])", re.IGNORECASE)


def write_html(
    path: Path,
    groups: Sequence[Group],
    tables: Sequence[Table],
    figures: Sequence[FigureFile],
    warnings: Sequence[str],
    command: str,
) -> None:
    """Write the report: one file, no network, no server; a reader sees the old one or the new one, never half of it."""
    draft = path.with_name(path.name + ".tmp")
    text = make_page(groups, tables, figures, warnings, command)
    # What cannot be encoded, such as half of a surrogate pair in a task's name, becomes a character reference.
    draft.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
    draft.replace(path)


def make_page(
    groups: Sequence[Group],
    tables: Sequence[Table],
    figures: Sequence[FigureFile],
    warnings: Sequence[str],
    command: str,
) -> str:
    """The text of the report."""
    answers = answer_groups(groups)
    own = [
        table for table in tables if table.name.startswith("matrix-") and len(groups) > 1
    ]  # of one group each
    compared = [_show_table(table) for table in tables if table not in own]
    sections = [
        _fold(
            "Comparison" if len(groups) > 1 else "Scores",
            _describe_size(groups),
            compared,
            unfolded=True,
        ),
        _fold(
            "Figures",
            _count(figures, "figure"),
            [_show_figure(n, f) for n, f in enumerate(figures, start=1)],
        ),
        _fold(
            "Method by method",
            "scores with forgetting transfer",
            [_show_table(table) for table in own],
        ),
        _fold(
            "Runs",
            "scores, estimator, stiffness, configuration",
            _show_runs(groups),
            _count_runs(groups) == 1,
        ),
        _fold("How this report was made", "", [_show_command(command)]),
    ]
    body = [_show_answer(answer, warnings, number == 0) for number, answer in enumerate(answers)]
    body += [f'<div class="sections">{"".join(sections)}</div>']
    script = _read("page.js")
    return Template(_read("page.html")).substitute(
        title=escape(_make_title(groups)),
        version=escape(mcit.__version__),
        style=_read("page.css"),
        script=script,
        script_hash=_hash_script(script),
        body="\n".join(body),
    )


def read_number(cell: str) -> float | None:
    """The number that a cell such as `80.2 ± 1.3 (4.1)` begins with, None for words."""
    found = NUMBER.match(cell.strip().lstrip("*"))
    return float(found[0].replace("−", "-").replace(",", "")) if found else None


def _show_answer(answer: Answer, warnings: Sequence[str], first: bool) -> str:
    heading = "h1" if first else "h2"
    tasks = " → ".join(answer.groups[0].tasks)
    shown = tasks if len(tasks) <= 80 else answer.setting
    shown += " · embedded benchmark" if answer.groups[0].runs[0].embedded else ""
    cost, *others = answer.remarks or [""]
    return (
        f'<section class="answer"><div><p class="setting">{escape(shown)}</p>'
        f'<{heading} class="headline">{_set_prose(answer.headline)}</{heading}>'
        f'<p class="cost">{_set_prose(cost)}</p><p class="remarks">{_set_prose(" ".join(others))}</p>'
        f"{_show_warnings(warnings if first else [])}</div>{_draw_answer(answer)}</section>"
    )


def _set_prose(text: str) -> str:
    """Escaped, with every number on one line with its unit."""
    return escape(re.sub(r"(?<=\d) (?=(%|±|s|min|h|MiB)(?!\w))|(?<=±) ", "\u00a0", text))


def _show_warnings(warnings: Sequence[str]) -> str:
    """What to know before comparing; what is but a note comes last, in smaller type."""
    if not warnings:
        return ""
    serious = [f"<li>{escape(warning)}</li>" for warning in warnings if NOTE not in warning]
    notes = [f'<li class="note">{escape(warning)}</li>' for warning in warnings if NOTE in warning]
    listed = "".join([*serious, *notes])
    return f'<aside class="warnings"><h2>Before you compare</h2><ul>{listed}</ul></aside>'


def _draw_answer(answer: Answer) -> str:
    """The curves of a setting, where there is more than a point to draw."""
    groups = [group for group in answer.groups if group.runs[0].matrix.rows]
    if len(answer.groups[0].tasks) < 2 or not groups:
        return ""
    leaders = {leader.label for leader in answer.leaders}
    curves = [make_curve(group, group.variant in leaders) for group in groups]
    pooled = groups[0].runs[0].track == "efcil"
    what = "Accuracy over all classes seen" if pooled else "Average over the tasks seen"
    return draw_curves(curves, answer.groups[0].tasks, what)


def _show_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    pinned = [
        number for number, row in enumerate(table.rows) if row[0] == CHANCE
    ]  # not sorted with the results
    bodies = [pinned, [number for number in range(len(table.rows)) if number not in pinned]]
    rows = "".join(
        f"<tbody>{''.join(_show_row(table, row) for row in body)}</tbody>"
        for body in bodies
        if body
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    if len(table.notes) > 2:
        notes = f"<details><summary>{len(table.notes)} notes</summary>{notes}</details>"
    shown = f'<table class="sortable"><thead><tr>{head}</tr></thead>{rows}</table>'
    return (
        f'<div class="block"><h3>{escape(table.title)}</h3>{_scroll(table.title, shown)}'
        f'<div class="notes">{notes}</div></div>'
    )


def _show_row(table: Table, row: int) -> str:
    cells = []
    for column, cell in enumerate(table.rows[row]):
        value = read_number(cell) if table.values is None else table.values[row][column]
        key = "" if value is None else f' data-value="{value:.10g}"'
        classes = ["best"] if (row, column) in table.best else []
        classes += ["words"] if value is None and len(cell) > 24 else []
        kind = f' class="{" ".join(classes)}"' if classes else ""
        tag, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
        text = break_name(cell) if column == 0 else escape(cell)
        cells.append(f"<{tag}{scope}{kind}{key}>{text}</{tag}>")
    return f"<tr{' class=chance' if table.rows[row][0] == CHANCE else ''}>{''.join(cells)}</tr>"


def _show_figure(number: int, figure: FigureFile) -> str:
    drawing = embed_svg(figure.svg, f"figure{number}", figure.title)
    return (
        f'<figure class="block"><div class="picture">{drawing}</div>'
        f"<figcaption><b>{escape(figure.title)}.</b> {escape(figure.caption)}</figcaption></figure>"
    )


def _show_runs(groups: Sequence[Group]) -> list[str]:
    """A legend, and every run folded; the only one unfolded."""
    legend = (
        '<fieldset class="legend"><legend>Colour</legend>'
        '<label><input type="radio" name="colour" value="kept" checked>what is left of what was learned'
        '</label><label><input type="radio" name="colour" value="score">score</label>'
        '<span>0<span class="ramp"></span>100 %</span></fieldset>'
    )
    alone = _count_runs(groups) == 1
    runs = [_show_run(group, run, alone) for group in groups for run in group.runs]
    return [legend, f'<div class="folds">{"".join(runs)}</div>']


def _show_run(group: Group, run: Run, unfolded: bool) -> str:
    name = escape(
        group.label if run.seed is None or not run.complete else f"{group.label}, seed {run.seed}"
    )
    last = run.metrics.get("A_last")
    lost = run.metrics["forgetting_transfer_average"][-1] if run.matrix.rows else None
    said = "no task is finished" if last is None else f"A_last {last:.1f} %"
    said += "" if lost is None else f", {lost:.1f} % forgotten"
    inside = [_scroll(f"Scores of {group.label}", draw_matrix(run)), _show_facts(run)]
    inside += [_show_source(title, text) for title, text in _find_sources(run)]
    return (
        f'<details class="fold"{" open" if unfolded else ""}><summary><h3>{name}</h3><span>{said}</span></summary>'
        f'<div class="inside">{"".join(inside)}</div></details>'
    )


def _show_facts(run: Run) -> str:
    """Estimator, stiffness after each task, cost and command of a run."""
    facts = [("Estimator", run.scores.get("estimator", "not stated"))]
    for task, diagnosis in zip(run.tasks, run.scores.get("diagnoses", ()), strict=False):
        facts.append((f"Stiffness after {task}", diagnosis))
    for name, key in (
        ("Fitting", "fit_seconds"),
        ("Importance", "end_task_seconds"),
        ("Scoring", "score_seconds"),
    ):
        if key in run.cost:
            facts.append((name, format_seconds(run.cost[key])))
    if "bytes_held" in run.cost:
        facts.append(("Held by the method", format_bytes(run.cost["bytes_held"])))
    shown = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts
    )
    command = run.passport.get("command")
    return f'<dl class="facts">{shown}</dl>{_show_command(shlex.join(map(str, command))) if command else ""}'


def _show_command(command: str) -> str:
    """A command that is broken between its words only; one click selects it."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))
    return f'<pre class="command">{words}</pre>'


def _find_sources(run: Run) -> list[tuple[str, str]]:
    """Configuration and passport as text; the passport's copy of the configuration is not repeated."""
    passport = {key: value for key, value in run.passport.items() if key != "config"}
    found = [("Configuration", _dump_yaml(run.config)), ("Passport", _dump_json(passport))]
    return [(title, text) for title, text in found if text]


def _show_source(title: str, text: str) -> str:
    """Long, so that it is printed only where it was unfolded."""
    return f'<details class="fold source"><summary>{title}</summary><pre tabindex="0">{escape(text)}</pre></details>'


def _dump_yaml(data: Any) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True) if data else ""


def _dump_json(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) if data else ""


def _fold(title: str, said: str, parts: Sequence[str], unfolded: bool = False) -> str:
    """A section of the page, left out where it has nothing to show."""
    shown = "".join(parts)
    if not shown:
        return ""
    name = f"<small>{escape(said)}</small>" if said else ""
    return (
        f'<details class="section"{" open" if unfolded else ""}><summary><h2>{title}</h2>{name}</summary>'
        f'<div class="inside">{shown}</div></details>'
    )


def _scroll(label: str, table: str) -> str:
    """A table in a box that scrolls by itself, with the keyboard too."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'
    )


def _describe_size(groups: Sequence[Group]) -> str:
    methods = sorted({group.method for group in groups})
    return f"{_count(methods, 'method')}, {_count(range(_count_runs(groups)), 'run')}"


def _count_runs(groups: Sequence[Group]) -> int:
    return sum(len(group.runs) for group in groups)


def _count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _make_title(groups: Sequence[Group]) -> str:
    methods = list(dict.fromkeys(group.method for group in groups))
    named = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{named} on {' and '.join(dict.fromkeys(group.setting for group in groups))}"


def _hash_script(script: str) -> str:
    """The one script that the page may run, as its security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return files("mcit.reports").joinpath(name).read_text(encoding="utf-8")
