"""Scores over the sequence and over the strength of a method, and old tasks against new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mcit import metrics
from mcit.reports.figures.style import (
    COLUMN,
    LETTER,
    Drawing,
    Style,
    add_legend,
    make_figure,
    make_handle,
    make_plain,
    style_of,
    wrap_label,
)
from mcit.reports.formats import Cell
from mcit.reports.groups import Group, Groups
from mcit.reports.runs import Run
from mcit.reports.tables import measure, read_last, read_new, summarize

MOST_LINES = 12
MOST_PANELS = 12
# the part of the room between two places over which points of several groups are spread
DODGE = 0.35
# percent that an axis covers at least: equal scores are not drawn as if they were far apart
SHORTEST = 5.0
# levels that a strength is compared with
REFERENCES = ("finetune", "joint")
SEEDS = "Bars are one standard deviation over seeds."


@dataclass(frozen=True)
class Panel:
    """A plot of scores over the sequence."""

    title: str
    # the scores of a run from checkpoint `first` on
    read: Callable[[Run], Sequence[float]]
    first: int = 0
    # no line goes through scores on different tasks
    line: bool = True


def choose_groups(groups: Groups, most: int) -> list[Group]:
    """Return the groups that learned two tasks; if they are too many, those that score highest."""
    learned = [group for group in groups if group.learned > 1]
    best = {group.name for group in sorted(learned, key=_score_now, reverse=True)[:most]}
    return [group for group in learned if group.name in best]


def draw_curves(groups: Groups, style: Style) -> Drawing | None:
    """Draw the score over the sequence: of all classes seen, or of each task by itself."""
    shown = choose_groups(groups, MOST_LINES)
    if not shown:
        return None
    setting = groups[0].setting
    xlabel = "after task"
    places = list(range(1, len(setting.tasks) + 1))
    across = min(len(setting.tasks), 2 * style.across)
    height = 1.5
    panels = [
        Panel(make_plain(f"{task + 1} {name}"), partial(_read_task, task), first=task)
        for task, name in enumerate(setting.tasks[:MOST_PANELS])
    ]
    caption = "Score on each task after it and every later task was learned."
    if setting.classes:
        xlabel = "classes seen"
        places = list(accumulate(setting.classes))
        across = style.across
        height = 2.1
        panels = [
            Panel("all classes seen, $A_t$", _read_seen),
            Panel("the task just learned, $A_{new}$", _read_learned, line=False),
        ]
        caption = (
            "Accuracy over all classes seen, and over those just learned, where methods stand "
            "side by side."
        )
    figure, grid = _make_panels(style.width, across, len(panels), height)
    colors = shade(shown)
    letters = int(style.width / across / LETTER) - 4
    dodge = DODGE * min(later - earlier for earlier, later in pairwise(places))
    for axes, panel in zip(grid, panels, strict=True):
        for number, (group, color) in enumerate(zip(shown, colors, strict=True)):
            columns = zip(*(panel.read(run) for run in group.runs), strict=True)
            cells = [summarize(values) for values in columns]
            shift = 0.0
            if not panel.line:
                # equal scores stand side by side
                shift = dodge * ((number + 0.5) / len(shown) - 0.5)
            at = [place + shift for place in places[panel.first : group.learned]]
            _draw_line(axes, group, at, cells, color, line=panel.line)
        axes.set_title(wrap_label(panel.title, letters))
        axes.set_ylabel("score (%)")
        axes.set_xlabel(xlabel)
        margin = 0.05 * (places[-1] - places[0])
        axes.set_xlim(places[0] - margin, places[-1] + margin)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(axis="y")
        axes.label_outer()
    looks = zip(shown, colors, strict=True)
    handles = [make_handle(style.label(group), style_of(group), color) for group, color in looks]
    add_legend(figure, handles)
    return Drawing("curves", "Scores over the sequence", f"{caption} {SEEDS}", figure)


def draw_sensitivity(groups: Groups, style: Style) -> Drawing | None:
    """Draw A_last and mean A_new over the strength, for methods that were run with several."""
    complete = [group for group in groups if group.complete]
    families: dict[str, list[Group]] = {}
    for group in complete:
        if group.strength is not None:
            families.setdefault(style.label(group.family), []).append(group)
    families = {name: family for name, family in families.items() if len(family) > 1}
    if not families:
        return None
    references = [group for group in complete if group.method in REFERENCES]
    strengths = [_strength(group) for family in families.values() for group in family]
    smallest = min(filter(None, strengths), default=1.0)
    lowest = smallest / 2
    if min(strengths) == 0:
        # it has a place left of all others
        lowest = -smallest / 2
    figure, grid = _make_panels(style.width, style.across, 2, 2.1)
    for axes, read, name in zip(grid, (read_last, read_new), ("last", "new"), strict=True):
        for family in families.values():
            family = sorted(family, key=_strength)
            # a line through strengths with different seeds would compare the seeds
            seeds = set.intersection(*(set(group.seeds) for group in family))
            cells = []
            for group in family:
                runs = [run for run in group.runs if run.seed in seeds] or group.runs
                cells.append(summarize([read(run) for run in runs]))
            color = style_of(family[0]).color
            _draw_line(axes, family[0], [_strength(group) for group in family], cells, color)
        for group in references:
            look = style_of(group)
            axes.axhline(measure(read, group).mean, color=look.color, linestyle=look.line)
        axes.set_xscale("symlog", linthresh=smallest)
        axes.set_xlim(lowest, 1.6 * max(strengths))
        axes.set_xlabel("strength")
        axes.set_ylabel(f"$A_{{{name}}}$ (%)")
        axes.grid(axis="y")
    handles = [make_handle(name, style_of(family[0])) for name, family in families.items()]
    handles += [make_handle(style.label(group), style_of(group)) for group in references]
    add_legend(figure, handles)
    caption = (
        "A_last and mean A_new over the strength, which has a unit of its own for each method; "
        f"points have the seeds that all strengths of a method have. {SEEDS}"
    )
    return Drawing("sensitivity", "Sensitivity to the strength", caption, figure)


def draw_plasticity(groups: Groups, style: Style) -> Drawing | None:
    """Draw the score on earlier tasks at the end against the score on tasks when learned."""
    shown = [group for group in groups if group.complete]
    if len(shown) < 2 or len(shown[0].tasks) < 2:
        return None
    figure = make_figure(COLUMN, 2.6)
    axes = figure.subplots()
    handles = []
    for group, color in zip(shown, shade(shown), strict=True):
        look = style_of(group)
        new = measure(read_new, group)
        old = measure(_read_old_at_end, group)
        axes.errorbar(
            new.mean,
            old.mean,
            old.spread,
            new.spread,
            color=color,
            marker=look.marker,
            linestyle="none",
            elinewidth=0.8,
        )
        handles.append(make_handle(style.label(group), look, color, line=False))
    axes.set_xlabel("new tasks: mean $A_{new}$ (%)")
    axes.set_ylabel("earlier tasks at the end (%)")
    axes.margins(0.12)
    axes.set_xlim(_widen(*axes.get_xlim()))
    axes.set_ylim(_widen(*axes.get_ylim()))
    axes.grid()
    add_legend(figure, handles)
    caption = (
        "Score over all tasks but the last, at the end (up: less forgotten), against the mean "
        f"score on tasks just after they were learned (right: learned better). {SEEDS}"
    )
    return Drawing("plasticity", "Old tasks against new ones", caption, figure)


def shade(groups: Groups) -> list[str]:
    """Return each method's own color, paler for the first of several groups that share it."""
    colors = []
    for group in groups:
        look = style_of(group)
        same = [other.name for other in groups if style_of(other) == look]
        place = same.index(group.name) + 1
        strength = 0.35 + 0.65 * place / len(same)
        red, green, blue = (1 - strength * (1 - part) for part in to_rgb(look.color))
        colors.append(to_hex((red, green, blue)).upper())
    return colors


def _make_panels(width: float, across: int, count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels with one scale, without empty ones."""
    across = min(count, across)
    down = -(-count // across)
    figure = make_figure(width, height * down)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]


def _draw_line(
    axes: Axes,
    group: Group,
    places: Sequence[float],
    cells: Sequence[Cell],
    color: str,
    line: bool = True,
) -> None:
    look = style_of(group)
    means = [cell.mean for cell in cells]
    spreads = [cell.spread or 0.0 for cell in cells]
    shown = look.line if line else "none"
    bars = spreads if any(spreads) else None
    axes.errorbar(
        places,
        means,
        bars,
        label=group.name,
        color=color,
        marker=look.marker,
        linestyle=shown,
        elinewidth=0.6,
    )


def _widen(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis, apart by SHORTEST at least."""
    more = max(0.0, SHORTEST - (high - low)) / 2
    return low - more, high + more


def _read_task(task: int, run: Run) -> list[float]:
    return [row[task] for row in run.matrix.rows[task:]]


def _read_seen(run: Run) -> Sequence[float]:
    return metrics.average_seen(run.matrix)


def _read_learned(run: Run) -> Sequence[float]:
    return metrics.score_when_learned(run.matrix)


def _read_old_at_end(run: Run) -> float | None:
    return metrics.average_old(run.matrix)[-1]


def _strength(group: Group) -> float:
    return group.strength or 0.0


def _score_now(group: Group) -> float:
    return read_last(group.runs[0]) or 0.0
