"""The critical-difference diagram: mean ranks on a line, with bars over those that do not differ."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mcit.reports.figures.style import (
    TEXT,
    house_style,
    look_up,
    make_figure,
    make_plain,
    measure_text,
)

STEP = 0.19  # inches between names, and between bars


def draw_critical_difference(names: Sequence[str], ranks: Sequence[float], cd: float) -> Figure:
    """Mean ranks, best on the left; a bar joins ranks that lie closer together than `cd`.

    Names of methods get their method's colour.
    """
    if len(names) != len(ranks) or len(names) < 2:
        raise ValueError(
            f"{len(names)} names and {len(ranks)} ranks: a diagram needs two or more, and as many of both"
        )
    if not cd > 0:
        raise ValueError(f"the critical difference must be above 0, found {cd}")
    order = sorted(range(len(names)), key=lambda place: (ranks[place], names[place]))
    names, ranks = [make_plain(names[place]) for place in order], [ranks[place] for place in order]
    bars = find_bars(ranks, cd)
    levels = _stack(bars)
    count = max(levels, default=-1) + 1
    left = math.ceil(len(names) / 2)
    depth = STEP * (count + left + 0.6)
    with house_style():
        figure = make_figure(
            TEXT, 0.85 + depth, "Mean ranks and critical difference", layout="none"
        )
        room = max(measure_text(f"{name}  10.00") for name in names) + 0.15
        axes = figure.add_axes((room / TEXT, 0, 1 - 2 * room / TEXT, 1))
        low, high = math.floor(min(1.0, ranks[0])), math.ceil(max(len(names), ranks[-1]))
        axes.set_xlim(low, high)
        axes.set_ylim(-depth, 0.85)  # inches from the line of ranks
        axes.set_axis_off()
        _draw_scale(axes, low, high, cd)
        for level, (first, last) in zip(levels, bars, strict=True):
            y = -STEP * (level + 0.8)
            axes.plot(
                [ranks[first], ranks[last]],
                [y, y],
                color="black",
                linewidth=2.5,
                solid_capstyle="butt",
            )
        for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
            level = place if place < left else len(names) - 1 - place
            y = -STEP * (count + level + 1)
            _draw_name(axes, name, rank, y, low if place < left else high, place < left)
    return figure


def find_bars(ranks: Sequence[float], cd: float) -> list[tuple[int, int]]:
    """The longest runs of sorted ranks whose ends lie within the critical difference."""
    reach = [max(last for last, rank in enumerate(ranks) if rank - start < cd) for start in ranks]
    longest = [(first, last) for first, last in enumerate(reach) if last > first]
    return [
        (first, last)
        for first, last in longest
        if not any(f < first and last <= e for f, e in longest)
    ]


def _stack(bars: Sequence[tuple[int, int]]) -> list[int]:
    """A level for every bar, so that bars that share a rank do not touch."""
    levels: list[int] = []
    for first, _ in bars:
        taken = {level for level, (_, last) in zip(levels, bars, strict=False) if last >= first}
        levels.append(next(level for level in range(len(bars)) if level not in taken))
    return levels


def _draw_scale(axes: Axes, low: int, high: int, cd: float) -> None:
    axes.plot([low, high], [0, 0], color="black", linewidth=0.8)
    for rank in range(low, high + 1):
        axes.plot([rank, rank], [0, 0.06], color="black", linewidth=0.8)
        axes.text(rank, 0.1, str(rank), ha="center", va="bottom", size=7)
    end, beyond = (
        min(low + cd, high),
        low + cd > high,
    )  # few blocks: no two ranks can be that far apart
    axes.plot([low, end], [0.36, 0.36], color="black", linewidth=1.2, clip_on=False)
    for edge in (low,) if beyond else (low, end):
        axes.plot([edge, edge], [0.32, 0.40], color="black", linewidth=1.2, clip_on=False)
    told = f"critical difference {cd:.2f}{', beyond the scale' if beyond else ''}"
    axes.text(low, 0.44, told, ha="left", va="bottom", size=7)


def _draw_name(axes: Axes, name: str, rank: float, y: float, edge: float, left: bool) -> None:
    look = look_up(re.split(r"[@\[(,\s]", name)[0])  # `ewc@300` and `ewc[cap=1]` look as `ewc` does
    axes.plot([rank, rank, edge], [0, y, y], color=look.colour, linewidth=0.8)
    axes.plot([rank], [0], marker=look.marker, color=look.colour, clip_on=False)
    axes.annotate(
        f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}",
        (edge, y),
        (-3 if left else 3, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        size=7,
        annotation_clip=False,
    )
