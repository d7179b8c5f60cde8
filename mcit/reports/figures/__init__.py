"""Figures of runs: SVG and PDF for print, PNG for screens, each with a title and a caption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mcit.reports.figures.curves import (
    draw_average,
    draw_curves,
    draw_plasticity,
    draw_sensitivity,
    draw_views,
)
from mcit.reports.figures.maps import draw_forgetting, draw_matrices
from mcit.reports.figures.rows import draw_form, draw_overview, draw_ranks
from mcit.reports.figures.style import STYLES, Drawing, FigureFile, Style, drawing_in, write_drawing
from mcit.reports.groups import Groups, split_settings
from mcit.reports.significance import Comparison
from mcit.reports.tables import make_slug, name_apart

# each returns None if the groups lack what it shows
FIGURES = (
    draw_overview,
    draw_form,
    draw_matrices,
    draw_average,
    draw_views,
    draw_curves,
    draw_forgetting,
    draw_sensitivity,
    draw_plasticity,
)


def write_figures(
    groups: Groups, comparison: Comparison | None, folder: Path, style: str = "screen"
) -> list[FigureFile]:
    """Draw every figure that the runs have data for into a folder."""
    chosen = STYLES[style]
    with drawing_in(chosen):
        return [
            write_drawing(drawing, folder) for drawing in draw_figures(groups, comparison, chosen)
        ]


def draw_figures(groups: Groups, comparison: Comparison | None, style: Style) -> list[Drawing]:
    """Return the figures of each setting, and that of the ranks."""
    settings = split_settings(groups)
    drawings = []
    for setting, members in settings.items():
        # the first figure of a setting stands next to its answer
        opens = setting.name
        for draw in FIGURES:
            drawing = draw(members, style)
            if drawing is None:
                continue
            drawing = replace(drawing, opens=opens)
            opens = ""
            if len(settings) > 1:
                name = f"{drawing.name}-{make_slug(setting.name)}"
                drawing = replace(drawing, name=name, title=f"{drawing.title}: {setting.name}")
            drawings.append(drawing)
    if comparison is not None and comparison.has_ranks:
        drawings.append(draw_ranks(comparison, style))
    return name_apart(drawings)
