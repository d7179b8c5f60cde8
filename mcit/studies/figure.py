"""The figure of a study: what is kept against what is learned, a curve for every entry."""

from __future__ import annotations

import math
from pathlib import Path

from mcit.reports.figures.style import (
    SCREEN,
    Drawing,
    FigureFile,
    add_legend,
    drawing_in,
    find_line_style,
    make_figure,
    make_handle,
    make_plain,
    write_drawing,
)
from mcit.studies.analysis import Curve, trace
from mcit.studies.tables import Study

HEIGHT = 3.2


def average_curves(curves: list[Curve]) -> list[tuple[float, float]]:
    """Return the mean of curves over seeds, level by level."""
    means = []
    for points in zip(*curves, strict=True):
        learned = math.fsum(point[0] for point in points) / len(points)
        kept = math.fsum(point[1] for point in points) / len(points)
        means.append((learned, kept))
    return means


def write_figure(study: Study, folder: Path) -> FigureFile | None:
    """Draw the curves into a folder; None if no entry has all levels with some seed."""
    averages = {}
    for entry, classifier in study.names:
        if entry not in study.plan.list_leveled():
            continue
        curves: list[Curve] = []
        for seed in study.plan.seeds:
            curve = trace(study.plan, study.records, entry=entry, seed=seed, classifier=classifier)
            if curve is not None:
                curves.append(curve)
        if curves:
            averages[entry, classifier] = average_curves(curves)
    if not averages:
        return None
    with drawing_in(SCREEN):
        return write_drawing(_draw(study, averages), folder)


def _draw(study: Study, averages: dict[tuple[str, str], list[tuple[float, float]]]) -> Drawing:
    figure = make_figure(SCREEN.width, HEIGHT)
    axes = figure.subplots()
    handles = []
    for name, curve in averages.items():
        entry, classifier = name
        look = find_line_style(entry, None if study.label(name) == entry else classifier)
        learned, kept = zip(*curve, strict=True)
        axes.plot(learned, kept, color=look.color, marker=look.marker, linestyle=look.line)
        handles.append(make_handle(make_plain(study.label(name)), look))
    axes.set_xlabel("new tasks: mean $A_{new}$ (%)")
    axes.set_ylabel("earlier tasks at the end (%)")
    axes.grid()
    add_legend(figure, handles)
    levels = ", ".join(f"{level:g}" for level in sorted(study.plan.levels))
    caption = (
        f"Each point is a mean stiffness after the first task ({levels}), the mean "
        "over seeds, joined in that order. Up: less forgotten; right: learned better."
    )
    return Drawing("kept-over-learned", "What is kept against what is learned", caption, figure)
