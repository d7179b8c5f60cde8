"""The charts of the HTML report, drawn in HTML itself so that their text stays legible at any width."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mcit import metrics
from mcit.reports.runs import BOUNDS, Group, Run

LINE = 16  # pixels between the names at the right of the curves
HEIGHT = 260  # of the curves, unless the names need more


@dataclass(frozen=True)
class Curve:
    """A_t of a group: mean and deviation over its seeds after each task."""

    label: str
    means: tuple[float, ...]
    spreads: tuple[float, ...]  # all 0 for one seed
    seeds: int
    kind: str  # leading, plain, or bound


def make_curve(group: Group, leading: bool = False) -> Curve:
    """The curve of a group's runs; an unfinished run's ends where the run does."""
    columns = list(zip(*(metrics.average_seen(run.matrix) for run in group.runs), strict=True))
    means = tuple(statistics.fmean(column) for column in columns)
    spreads = tuple(statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns)
    kind = "leading" if leading else "bound" if group.method in BOUNDS else "plain"
    return Curve(group.variant, means, spreads, len(group.runs), kind)


def draw_curves(curves: Sequence[Curve], tasks: Sequence[str], what: str) -> str:
    """A_t, which is `what`, by tasks learned: leaders in colour, bounds dashed, each name at the end of its line."""
    low, high = _choose_range(curves)
    height = max(HEIGHT, LINE * (len(curves) + 1))
    # Later ones are drawn over earlier ones.
    ordered = sorted(curves, key=lambda curve: curve.kind == "leading")
    body = [_draw_grid(low, high)]
    body.append('<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">')
    body += [
        _draw_line(number, curve, len(tasks), low, high) for number, curve in enumerate(ordered)
    ]
    body.append("</svg>")
    body += [_draw_dots(number, curve, tasks, low, high) for number, curve in enumerate(ordered)]
    names = _draw_names(ordered, low, high, height)
    longest = max(len(curve.label) for curve in curves)
    style = f"--height:{height}px;--names:{min(longest, 24) * 0.52 + 1.2:.1f}rem"
    return (
        f'<figure class="chart" style="{style}"><figcaption>{what}, A_t, in percent, after each task</figcaption>'
        f'<div class="plot">{"".join(body)}{_draw_ticks(tasks)}{names}</div></figure>'
    )


def draw_matrix(run: Run) -> str:
    """The scores of a run as a table whose cells are coloured by score and by what is left of it; a script adds tips.

    `--score` is the score as a share of 100; `--kept` the share of what was learned that is left, above chance where
    that is the floor.
    """
    stated = run.scores["chance"] is not None  # another toolkit may not tell the chance levels
    floor = "zero" if run.matrix.class_incremental else "chance"
    head = "".join(
        f'<th scope="col"{" class=long" if len(task) > 10 else ""}>{break_name(task)}</th>'
        for task in run.tasks
    )
    rows = "".join(_draw_row(run, number, stated) for number in range(len(run.matrix.rows)))
    chance = "".join(f"<td>{value:.1f}</td>" for value in run.matrix.chance)
    foot = (
        f'<tfoot><tr><th scope="row">chance</th>{chance}<td class="total"></td></tr></tfoot>'
        if stated
        else ""
    )
    return (
        f'<table class="matrix" data-floor="{floor}"><thead><tr><th scope="col">after</th>{head}'
        f'<th scope="col" class="total">A_t</th></tr></thead><tbody>{rows}</tbody>{foot}</table>'
    )


def _draw_row(run: Run, number: int, stated: bool) -> str:
    row = run.matrix.rows[number]
    known = stated or run.matrix.class_incremental
    learned = known and row[-1] > metrics.find_floor(run.matrix)[number]
    lost = [*run.metrics["forgetting_transfer"][number], 0.0 if learned else None]
    cells = "".join(_draw_cell(value, share) for value, share in zip(row, lost, strict=True))
    blanks = "<td></td>" * (len(run.tasks) - len(row))
    seen = metrics.average_seen(run.matrix)[number]
    return f'<tr><th scope="row">{break_name(run.tasks[number])}</th>{cells}{blanks}<td class="total">{seen:.1f}</td></tr>'


def break_name(name: str) -> str:
    """An escaped name that may be broken where its parts meet, but not within a range such as [4-7]."""
    parts = re.split(r"(?<=[_,/])(?=.)|(?<=.)(?=[\[(@])", name)
    return "<wbr>".join(
        f"<span>{escape(part)}</span>" if part.startswith("[") else escape(part) for part in parts
    )


def _draw_cell(value: float, lost: float | None) -> str:
    score = f"--score:{value / 100:.3f}"
    if lost is None:
        return f'<td style="{score}">{value:.1f}</td>'
    kept = min(max(1 - lost / 100, 0.0), 1.0)
    return f'<td style="{score};--kept:{kept:.3f}" data-lost="{lost:.1f}">{value:.1f}</td>'


def _choose_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Tens around all that is drawn, never beyond 0 and 100."""
    lows = [
        mean - spread
        for curve in curves
        for mean, spread in zip(curve.means, curve.spreads, strict=True)
    ]
    highs = [
        mean + spread
        for curve in curves
        for mean, spread in zip(curve.means, curve.spreads, strict=True)
    ]
    low = max(0, math.floor((min(lows) - 1) / 10) * 10)
    high = min(100, math.ceil((max(highs) + 1) / 10) * 10)
    return float(low), float(max(high, low + 10))


def _draw_grid(low: float, high: float) -> str:
    step = 10 if high - low <= 60 else 20
    lines = []
    value = math.ceil(low / step) * step
    while value <= high:
        lines.append(
            f'<i class="rule" style="bottom:{_share(value, low, high):.2f}%"><b>{value:.0f}</b></i>'
        )
        value += step
    return "".join(lines)


def _draw_line(number: int, curve: Curve, tasks: int, low: float, high: float) -> str:
    places = [
        f"{_place(task, tasks):.2f},{100 - _share(mean, low, high):.2f}"
        for task, mean in enumerate(curve.means)
    ]
    return f'<polyline class="{curve.kind}" data-series="{number}" points="{" ".join(places)}"/>'


def _draw_dots(number: int, curve: Curve, tasks: Sequence[str], low: float, high: float) -> str:
    dots = []
    for task, (mean, spread) in enumerate(zip(curve.means, curve.spreads, strict=True)):
        left = f"left:{_place(task, len(tasks)):.2f}%"
        if spread:
            bottom, top = (_share(value, low, high) for value in (mean - spread, mean + spread))
            bottom, top = max(bottom, 0.0), min(top, 100.0)
            dots.append(
                f'<i class="whisker {curve.kind}" data-series="{number}" '
                f'style="{left};bottom:{bottom:.2f}%;height:{top - bottom:.2f}%"></i>'
            )
        value = (
            f"{mean:.2f} ± {spread:.2f} % ({curve.seeds} seeds)"
            if curve.seeds > 1
            else f"{mean:.2f} %"
        )
        tip = escape(f"{curve.label} after {tasks[task]}: {value}")
        bottom = f"bottom:{_share(mean, low, high):.2f}%"
        dots.append(
            f'<i class="dot {curve.kind}" data-series="{number}" style="{left};{bottom}" title="{tip}"></i>'
        )
    return "".join(dots)


def _draw_names(curves: Sequence[Curve], low: float, high: float, height: int) -> str:
    """At the height where each line ends, moved apart where they would touch."""
    ends = {
        number: _share(curve.means[-1], low, high) * height / 100
        for number, curve in enumerate(curves)
    }
    placed = _move_apart(ends, height)
    names = []
    for number, curve in enumerate(curves):
        names.append(
            f'<span class="name {curve.kind}" data-series="{number}" '
            f'style="bottom:{placed[number]:.1f}px" title="{escape(curve.label)}">{escape(curve.label)}</span>'
        )
    return "".join(names)


def _move_apart(ends: dict[int, float], height: int) -> dict[int, float]:
    """From the lowest upwards each at least a line above the one before; then back down below the top."""
    order = sorted(ends, key=lambda number: ends[number])
    placed: dict[int, float] = {}
    floor = -math.inf
    for number in order:
        placed[number] = max(ends[number], floor)
        floor = placed[number] + LINE
    ceiling = float(height)
    for number in reversed(order):
        placed[number] = min(placed[number], ceiling)
        ceiling = placed[number] - LINE
    return placed


def _draw_ticks(tasks: Sequence[str]) -> str:
    """The names where they are few and short, else every so many numbers."""
    named = len(tasks) <= 5 and max(len(task) for task in tasks) <= 8
    every = 1 if len(tasks) <= 10 else math.ceil(len(tasks) / 10)
    ticks = [
        f'<span class="tick" style="left:{_place(task, len(tasks)):.2f}%">{escape(name) if named else task + 1}</span>'
        for task, name in enumerate(tasks)
        if task % every == 0
    ]
    return "".join(ticks)


def _place(task: int, tasks: int) -> float:
    """Where a task is from left to right, in percent; the first and the last keep clear of the edges."""
    return 4 + 92 * task / max(tasks - 1, 1)


def _share(value: float, low: float, high: float) -> float:
    return 100 * (value - low) / (high - low)
