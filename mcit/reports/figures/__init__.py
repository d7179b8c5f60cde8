"""Figures of runs: SVG and PDF for print, PNG for the screen, each with a title and a caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mcit.reports.figures.curves import draw_averages, draw_sensitivity
from mcit.reports.figures.data import Setting, make_settings
from mcit.reports.figures.maps import draw_forgetting, draw_matrices
from mcit.reports.figures.ranks import draw_critical_difference
from mcit.reports.figures.style import Drawing, FigureFile, house_style, write_drawing
from mcit.reports.figures.trade import draw_cost, draw_plasticity
from mcit.reports.runs import Group

__all__ = [
    "Drawing",
    "FigureFile",
    "draw_critical_difference",
    "draw_figures",
    "write_drawing",
    "write_figures",
]


def write_figures(groups: Sequence[Group], folder: Path) -> list[FigureFile]:
    """Draw every figure that the runs have data for, and none that they do not, into the folder."""
    return [write_drawing(drawing, Path(folder)) for drawing in draw_figures(groups)]


def draw_figures(groups: Sequence[Group]) -> Iterator[Drawing]:
    """The figures of each set of runs that learned the same tasks; their names tell the sets apart where several."""
    settings = make_settings(groups)
    with house_style():
        for setting in settings:
            for drawing in _draw_setting(setting):
                yield (
                    drawing
                    if len(settings) == 1
                    else replace(drawing, name=f"{drawing.name}-{setting.name}")
                )


def _draw_setting(setting: Setting) -> Iterator[Drawing]:
    for drawn in (
        draw_averages(setting),
        *draw_matrices(setting),
        *draw_forgetting(setting),
        draw_sensitivity(setting),
        draw_plasticity(setting),
        draw_cost(setting),
    ):
        if drawn is not None:
            yield drawn
