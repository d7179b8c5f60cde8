"""Figures with a row for each method: what it learned and kept, and how it ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mcit import metrics
from mcit.reports.figures.style import (
    COLUMN,
    Drawing,
    Style,
    add_legend,
    count_lines,
    make_figure,
    style_of,
    wrap_label,
)
from mcit.reports.groups import Group, Groups, average
from mcit.reports.runs import Run
from mcit.reports.significance import LEVEL, Comparison
from mcit.reports.tables import measure, read_last, read_new

GRAY = "#8C8C8C"
PALE = "#E4E4E4"
HATCH = "////"


def draw_overview(groups: Groups, style: Style) -> Drawing | None:
    """Draw what each method learned, and what is left of it at the end."""
    complete = [group for group in groups if group.complete]
    if len(complete) < 2:
        return None
    complete.sort(key=_final_score, reverse=True)
    figure, axes = make_rows([style.label(group) for group in complete], COLUMN)
    for row, group in enumerate(complete):
        look = style_of(group)
        learned = measure(read_new, group)
        end = measure(read_last, group)
        axes.plot((learned.mean, end.mean), (row, row), color=look.color, linewidth=1)
        point: dict[str, Any] = {
            "color": look.color,
            "marker": look.marker,
            "linestyle": "none",
            "markersize": 5.5,
        }
        axes.plot(learned.mean, row, markerfacecolor="white", **point)
        axes.errorbar(end.mean, row, xerr=end.spread, capsize=2, elinewidth=0.8, **point)
    axes.set_xlabel("average over tasks (%)")
    axes.margins(x=0.08)
    dot: dict[str, Any] = {"color": GRAY, "marker": "o", "linestyle": "none"}
    hollow = Line2D([], [], markerfacecolor="white", label="when learned", **dot)
    add_legend(figure, [hollow, Line2D([], [], label="at the end", **dot)])
    caption = (
        "Filled: average at the end, A_last, with its standard deviation over seeds; hollow: mean "
        "score on each task just after it was learned, A_new. The line between is what was lost."
    )
    return Drawing("overview", "Learned and kept", caption, figure)


def draw_form(groups: Groups, style: Style) -> Drawing | None:
    """Draw what became of earlier tasks: kept, right in the wrong form, or gone."""
    shown = [group for group in groups if group.complete and group.runs[0].loss is not None]
    if not shown:
        return None
    shown.sort(key=_final_score, reverse=True)
    figure, axes = make_rows([style.label(group) for group in shown], COLUMN)
    for row, group in enumerate(shown):
        look = style_of(group)
        kept = measure(_read_kept, group).mean
        known = max(kept, measure(_read_known, group).mean)
        learned = max(known, measure(_read_known_when_learned, group).mean)
        bar: dict[str, Any] = {"height": 0.62, "edgecolor": look.color, "linewidth": 0.6}
        axes.barh(row, kept, facecolor=look.color, **bar)
        axes.barh(row, known - kept, left=kept, facecolor="white", hatch=HATCH, **bar)
        axes.barh(row, learned - known, left=known, facecolor=PALE, **bar)
    axes.set_xlabel("earlier tasks at the end (%)")
    axes.set_xlim(0, 100)
    handles = [
        Patch(facecolor=GRAY, edgecolor=GRAY, label="right"),
        Patch(facecolor="white", edgecolor=GRAY, hatch=HATCH, label="right, in the wrong form"),
        Patch(facecolor=PALE, edgecolor=GRAY, label="content lost"),
    ]
    add_legend(figure, handles)
    caption = (
        "Answers to the tasks before the last, at the end: full, the score; hatched, answers whose "
        "content is right and whose form is not; pale, content that was right when the task was "
        "learned and no longer is. Means over tasks and seeds."
    )
    return Drawing("form", "Forgetting of form and of content", caption, figure)


def draw_ranks(comparison: Comparison, style: Style) -> Drawing:
    """Draw mean ranks as intervals of one critical difference: those that do not overlap differ."""
    order = comparison.ranks.argsort(kind="stable")
    groups = [comparison.groups[place] for place in order]
    ranks = comparison.ranks[order]
    half = comparison.difference / 2
    figure, axes = make_rows([style.label(group) for group in groups], COLUMN)
    axes.axvspan(ranks[0] - half, ranks[0] + half, color="#EEEEEE", zorder=0)
    for row, group in enumerate(groups):
        look = style_of(group)
        axes.errorbar(ranks[row], row, xerr=half, color=look.color, marker=look.marker, capsize=2)
    axes.set_xlabel("mean rank by $A_{avg}$, 1 is best")
    caption = (
        f"Mean ranks by A_avg over {len(comparison.blocks)} {comparison.kind}, 1 is best. "
        f"Intervals are one critical difference wide (Nemenyi, {LEVEL:g}: {2 * half:.3f}); methods "
        "differ if theirs do not overlap. The band is the interval of the best."
    )
    return Drawing("critical-difference", "Mean ranks", caption, figure)


def make_rows(labels: Sequence[str], width: float) -> tuple[Figure, Axes]:
    """Return a figure with one labelled row below the other."""
    wrapped = [wrap_label(label) for label in labels]
    height = 0.1 + 0.12 * count_lines(wrapped)
    figure = make_figure(width, 0.5 + height * len(labels))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), wrapped)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return figure, axes


def _read_kept(run: Run) -> float | None:
    return metrics.average_old(run.matrix)[-1]


def _read_known(run: Run) -> float | None:
    return metrics.average_old(run.views[metrics.CONTENT])[-1]


def _read_known_when_learned(run: Run) -> float | None:
    return average(metrics.score_when_learned(run.views[metrics.CONTENT])[:-1])


def _final_score(group: Group) -> float:
    return measure(read_last, group).mean
