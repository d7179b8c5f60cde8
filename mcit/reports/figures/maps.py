"""The score matrix and what was forgotten, as heat maps with their values written in the cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from mcit import metrics
from mcit.reports.figures.data import (
    Series,
    Setting,
    choose_series,
    describe_mean,
    describe_unfinished,
)
from mcit.reports.figures.style import (
    COLUMN,
    SMALLEST,
    TALLEST,
    TEXT,
    Drawing,
    make_figure,
    measure_text,
)
from mcit.reports.runs import Run

MOST_PANELS = 18
SMALL_CELL, LARGE_CELL = (
    0.24,
    0.37,
)  # inches: two figures, or three and a point, in the smallest print
TITLE, LINE, GAP = (
    0.2,
    0.13,
    0.12,
)  # inches: the figure's title, a line of a panel's, and between panels

Matrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class _Plan:
    """What a page of maps shows, whatever the methods."""

    name: str
    title: str
    caption: str
    read: Callable[[Run], Matrix]
    shades: Colormap
    scale: Normalize
    earlier_only: bool = False  # without the first row and the last column, which are empty


def draw_matrices(setting: Setting) -> list[Drawing]:
    """The score on every task after every task, a panel for each method; on as many pages as it takes."""
    series, note = choose_series(setting, MOST_PANELS)
    if max(each.rows for each in series) < 2:
        return []
    caption = "Score in percent on each task (columns) after each task was learned (rows)"
    title = f"Scores: {setting.title}"
    plan = _Plan(
        "matrix",
        title,
        caption,
        lambda run: run.matrix.rows,
        lighten("Blues", 0, 0.6),
        Normalize(0, 100),
    )
    return _draw_pages(plan, setting, series, note)


def draw_forgetting(setting: Setting) -> list[Drawing]:
    """What was lost of every earlier task: as a share of what was above chance, or in points between classes."""
    series, note = choose_series(setting, MOST_PANELS)
    series = [each for each in series if each.rows > 1]
    if not series:
        return []
    read: Callable[[Run], Matrix] = _points_lost
    what = "Points lost on each earlier task since it was learned, a_jj - a_tj"
    if setting.track == "mcit":
        read = _transfer
        what = "Forgetting transfer, 100 (a_jj - a_tj) / (a_jj - chance_j): percent lost of what was above chance"
    caption = (
        f"{what}; columns are tasks, rows the task just learned; orange is lost, purple gained"
    )
    title = f"Forgetting: {setting.title}"
    shades, scale = lighten("PuOr_r", 0.2, 0.8), Normalize(-100, 100)
    return _draw_pages(
        _Plan("forgetting", title, caption, read, shades, scale, True), setting, series, note
    )


def average_matrices(series: Series, read: Callable[[Run], Matrix], size: int) -> np.ndarray:
    """The mean over seeds [size, size]; not a number where nothing is, or where a seed has no value."""
    mean = np.full((size, size), np.nan)
    for t, rows in enumerate(zip(*(read(run) for run in series.runs), strict=True)):
        for j, values in enumerate(zip(*rows, strict=True)):
            if None not in values:
                mean[t, j] = math.fsum(values) / len(values)
    return mean


def lighten(name: str, low: float, high: float) -> Colormap:
    """Part of a map of colours: without its dark ends, so that black print can be read on all of it."""
    return ListedColormap(colormaps[name](np.linspace(low, high, 256)), f"light {name}")


def write_cells(
    axes: Axes, values: np.ndarray, digits: int, known: np.ndarray | None = None, **text: Any
) -> None:
    """Write every value into its cell; a dash where there is a cell but no value."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            shown = f"{value:.{digits}f}"
            shown = shown.replace("-", "−") if float(shown) else shown.removeprefix("-")
        elif known is not None and known[row, column]:
            shown = "–"
        else:
            continue
        axes.text(column, row, shown, ha="center", va="center", fontsize=SMALLEST, **text)


def _transfer(run: Run) -> Matrix:
    return metrics.forgetting_transfer(run.matrix)


def _points_lost(run: Run) -> Matrix:
    learned = metrics.score_when_learned(run.matrix)
    return [[learned[task] - row[task] for task in range(len(row) - 1)] for row in run.matrix.rows]


@dataclass(frozen=True)
class _Grid:
    """Panels of cells on a page, in inches: every cell is large enough for its value, every label has its room."""

    columns: Sequence[str]
    rows: Sequence[str]
    labels: Sequence[str]  # of the panels

    @cached_property
    def heading(self) -> float:
        return 0.13 + LINE * max(len(self.wrap(label)) for label in self.labels)

    def wrap(self, label: str) -> list[str]:
        """A panel's label in lines that are no wider than the panel."""
        return textwrap.wrap(label, max(8, int(self.panel[0] / 0.072)))

    @cached_property
    def cell(self) -> float:
        """As many panels side by side as there can be, if three are not too few; then as large as there is room for."""
        free, size = TEXT - self.left, len(self.columns)
        for across in (3, 2, 1):
            cell = (free / across - GAP) / size
            if cell >= SMALL_CELL:
                return min(LARGE_CELL, cell)
        return cell

    @cached_property
    def slanted(self) -> bool:
        return max(map(measure_text, self.columns)) > self.cell - 0.03

    @cached_property
    def left(self) -> float:
        return max(map(measure_text, self.rows)) + 0.3

    @cached_property
    def below(self) -> float:
        return 0.12 + (0.75 * max(map(measure_text, self.columns)) if self.slanted else 0.1)

    @cached_property
    def panel(self) -> tuple[float, float]:
        return self.cell * len(self.columns), 0.75 * self.cell * len(self.rows)

    def count(self, panels: int) -> tuple[int, int]:
        """How many panels stand side by side, and how many rows of them a page has room for."""
        width, height = self.panel
        across = max(1, int((TEXT - self.left) / (width + GAP) + 1e-6))
        down = max(1, int((TALLEST - TITLE - self.below) / (height + self.heading)))
        return min(across, panels), down

    def place(self, figure: Figure, number: int, across: int) -> Axes:
        """The axes of a panel."""
        wide, high = figure.get_size_inches()
        width, height = self.panel
        x = self.left + (number % across) * (width + GAP)
        y = high - TITLE - (number // across + 1) * (height + self.heading)
        return figure.add_axes((x / wide, y / high, width / wide, height / high))


def _draw_pages(
    plan: _Plan, setting: Setting, series: Sequence[Series], note: str
) -> list[Drawing]:
    """Panels in rows; what does not fit on a page goes onto the next."""
    names = setting.short_tasks
    labels = [each.label for each in series]
    grid = (
        _Grid(names[:-1], names[1:], labels) if plan.earlier_only else _Grid(names, names, labels)
    )
    across, down = grid.count(len(series))
    pages = [
        series[start : start + across * down] for start in range(0, len(series), across * down)
    ]
    caption = f"{plan.caption}; {describe_mean(series)}.{describe_unfinished(series)}{note}"
    made = []
    for number, page in enumerate(pages, start=1):
        title = plan.title if len(pages) == 1 else f"{plan.title} ({number} of {len(pages)})"
        width = max(COLUMN, grid.left + across * (grid.panel[0] + GAP))
        height = TITLE + math.ceil(len(page) / across) * (grid.panel[1] + grid.heading) + grid.below
        figure = make_figure(width, height, title, layout="none")
        for place, each in enumerate(page):
            axes = grid.place(figure, place, across)
            _draw_panel(axes, plan, each, grid)
            _mark_cells(axes, grid, place % across == 0, place + across >= len(page))
        name = plan.name if len(pages) == 1 else f"{plan.name}-{number}"
        made.append(Drawing(name, title, caption, figure))
    return made


def _draw_panel(axes: Axes, plan: _Plan, series: Series, grid: _Grid) -> None:
    skipped = int(plan.earlier_only)
    size = len(grid.rows) + skipped
    values = average_matrices(series, plan.read, size)[skipped:, : size - skipped]
    known = np.tri(len(grid.rows), dtype=bool) & (np.arange(skipped, size)[:, None] < series.rows)
    axes.imshow(values, cmap=plan.shades, norm=plan.scale, aspect="auto")
    write_cells(axes, values, 1 if grid.cell >= 0.99 * LARGE_CELL else 0, known)
    axes.set_title("\n".join(grid.wrap(series.label)))


def _mark_cells(axes: Axes, grid: _Grid, first: bool, last: bool) -> None:
    slanted = grid.slanted
    columns = grid.columns if last else [""] * len(grid.columns)
    axes.set_xticks(
        range(len(columns)),
        columns,
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
    )
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor" if slanted else "default")
    axes.set_yticks(range(len(grid.rows)), grid.rows if first else [""] * len(grid.rows))
    if first:
        axes.set_ylabel("after task", labelpad=1)
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_visible(False)
