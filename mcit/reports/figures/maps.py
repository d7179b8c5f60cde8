"""Heat maps with their values in the cells: the score matrix, and what was forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.image import AxesImage

from mcit.reports.figures.curves import TITLE, choose_groups, describe_choice
from mcit.reports.figures.style import (
    SMALLEST,
    Drawing,
    Style,
    count_lines,
    make_figure,
    make_plain,
    measure_letter,
    measure_text,
    wrap_label,
)
from mcit.reports.groups import Groups
from mcit.reports.runs import Run

MOST_PANELS = 12
# letters of the name of a task in a line
LONGEST = 18
# inches that a cell has beside its number at least, and altogether at most
SPARE = 0.04
LARGEST = 0.36
# inches that a line of text is high, and that a number of two digits needs
LINE = 0.14
# inches of a panel that has few cells, between panels, and for the color bar
NARROWEST = 1.05
GAP = 0.12
BAR = 0.6
# inches that the color bar itself is wide
BAR_WIDTH = 0.1
# the parts of color maps on which black text is legible
LIGHT = {"Blues": (0, 0.6), "PuOr_r": (0.15, 0.85)}


@dataclass(frozen=True)
class MapKind:
    """What the maps of a figure show."""

    name: str
    title: str
    caption: str
    unit: str
    colors: str
    limits: tuple[float, float]
    read: Callable[[Run], Any]
    # whether only earlier tasks have values, so that the first row and the last column are empty
    earlier_only: bool = False


def draw_matrices(groups: Groups, style: Style) -> Drawing | None:
    """Draw the score on every task after every task, a panel for each group."""
    kind = MapKind(
        "matrix",
        "Scores",
        "Score in percent on each task (columns) after each task was learned (rows)",
        "score (%)",
        colors="Blues",
        limits=(0, 100),
        read=_read_scores,
    )
    return _draw_maps(kind, groups, style)


def draw_forgetting(groups: Groups, style: Style) -> Drawing | None:
    """Draw what was lost of every earlier task, in percent of what had been learned."""
    kind = MapKind(
        "forgetting",
        "Forgetting",
        "Forgetting transfer in percent: what was lost of each task (columns) after each later one "
        "(rows); below 0 it was gained",
        "lost (%)",
        colors="PuOr_r",
        limits=(-100, 100),
        read=_read_forgetting,
        earlier_only=True,
    )
    return _draw_maps(kind, groups, style)


def draw_map(
    axes: Axes,
    values: np.ndarray,
    colors: str,
    limits: tuple[float, float],
    digits: int | None = None,
) -> AxesImage:
    """Draw values as colors, and as numbers if they have a number of digits."""
    shades = ListedColormap(colormaps[colors](np.linspace(*LIGHT[colors], 256)))
    image = axes.imshow(values, cmap=shades, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    if digits is not None:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                # adding 0 takes the sign from a zero
                text = f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
                axes.text(column, row, text, ha="center", va="center", fontsize=SMALLEST)
    return image


def average_matrices(runs: Sequence[Run], read: Callable[[Run], Any], size: int) -> np.ndarray:
    """Return the mean over seeds, [size, size]; NaN where nothing is, or a seed has no value."""
    stacked = np.full((len(runs), size, size), np.nan)
    for number, run in enumerate(runs):
        for place, row in enumerate(read(run)):
            stacked[number, place, : len(row)] = np.array(row, dtype=float)
    return stacked.mean(axis=0)


def _draw_maps(kind: MapKind, groups: Groups, style: Style) -> Drawing | None:
    """Draw a panel for each group, with one color bar."""
    shown = choose_groups(groups, MOST_PANELS)
    if not shown:
        return None
    tasks = groups[0].tasks
    skipped = int(kind.earlier_only)
    size = len(tasks) - skipped
    names = []
    for place, task in enumerate(tasks[skipped:], start=1 + skipped):
        # classes are many, and their ranges long
        text = f"task {place}" if groups[0].setting.classes else f"{place}: {task}"
        names.append(wrap_label(make_plain(text), LONGEST))
    room = 0.1 + max(map(measure_text, names))
    across = min(len(shown), 1 + style.across)
    down = math.ceil(len(shown) / across)
    free = (style.width - room - BAR) / across - GAP
    panel = min(free, max(NARROWEST, size * LARGEST))
    cell = panel / size
    digits = None
    if cell >= measure_text("100") + SPARE:
        digits = int(cell >= measure_text("100.0") + SPARE)
    letters = int(panel / measure_letter(TITLE))
    titles = [wrap_label(style.label(group), letters) for group in shown]
    height = size * max(LINE * count_lines(names), min(LARGEST, 0.7 * cell))
    height += 0.25 + LINE * count_lines(titles)
    # every so many columns have their number
    step = math.ceil(LINE / cell)
    figure = make_figure(room + across * (panel + GAP) + BAR, down * height + 0.2)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    for axes, group, title in zip(grid.flat, shown, titles, strict=False):
        values = average_matrices(group.runs, kind.read, len(tasks))
        image = draw_map(axes, values[skipped:, :size], kind.colors, kind.limits, digits)
        axes.set_title(title)
        axes.set_yticks(range(size), names)
        axes.set_xticks(range(0, size, step), range(1, size + 1, step))
    slender = down * height / BAR_WIDTH
    figure.colorbar(image, ax=list(figure.axes), label=kind.unit, aspect=slender)
    caption = f"{kind.caption}; means over seeds.{describe_choice(shown, groups)}"
    return Drawing(kind.name, kind.title, caption, figure)


def _read_scores(run: Run) -> Any:
    return run.matrix.rows


def _read_forgetting(run: Run) -> Any:
    return run.metrics["forgetting_transfer"]
