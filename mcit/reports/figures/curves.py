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
    Drawing,
    Style,
    add_legend,
    make_figure,
    make_handle,
    make_plain,
    measure_letter,
    style_of,
    wrap_label,
)
from mcit.reports.formats import Cell
from mcit.reports.groups import Group, Groups
from mcit.reports.runs import Run
from mcit.reports.tables import measure, read_last, read_new, summarize

MOST_LINES = 12
MOST_PANELS = 12
# places on the axis of the sequence that all have their number
MOST_PLACES = 11
# points of a title
TITLE = 8
# the part of the room between two places over which points of several groups are spread
DODGE = 0.6
# percent that an axis covers at least: equal scores are not drawn as if they were far apart
SHORTEST = 5.0
# what all others are compared with
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
    """Return groups that learned two tasks; of too many, bounds and those that score highest."""
    learned = [group for group in groups if group.learned > 1]
    best = {group.name for group in sorted(learned, key=_rank, reverse=True)[:most]}
    return [group for group in learned if group.name in best]


def describe_choice(shown: Groups, groups: Groups) -> str:
    """Return a sentence for the caption if not all groups are shown, else nothing."""
    learned = [group for group in groups if group.learned > 1]
    if len(shown) == len(learned):
        return ""
    return f" Of {len(learned)} methods, bounds and those that score highest are shown."


@dataclass(frozen=True)
class Curves:
    """What a figure of scores over the sequence shows, and how its panels are laid out."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    across: int
    # inches of a panel
    height: float


def draw_curves(groups: Groups, style: Style) -> Drawing | None:
    """Draw the score over the sequence: of all classes seen, or of each task by itself."""
    setting = groups[0].setting
    title = "Scores over the sequence"
    if setting.classes:
        caption = (
            "Accuracy over all classes seen, and over those just learned, where methods stand "
            "side by side."
        )
        panels = _average_panels("all classes seen")
        curves = Curves("curves", title, caption, panels, style.across, height=2.1)
        return _draw_panels(curves, groups, style)
    panels = [
        Panel(make_plain(f"{task + 1} {name}"), partial(_read_task, task), first=task)
        for task, name in enumerate(setting.tasks[:MOST_PANELS])
    ]
    caption = "Score on each task after it and every later task was learned."
    across = min(len(setting.tasks), 2 * style.across)
    curves = Curves("curves", title, caption, panels, across, height=1.5)
    return _draw_panels(curves, groups, style)


def draw_average(groups: Groups, style: Style) -> Drawing | None:
    """Draw the average over the tasks seen, and the score on each task just learned."""
    if groups[0].setting.classes:
        # the curves show it
        return None
    caption = (
        "Average over the tasks seen, and the score on the task just learned, where methods stand "
        "side by side."
    )
    panels = _average_panels("all tasks seen")
    curves = Curves("average", "Average over the tasks", caption, panels, style.across, height=2.1)
    return _draw_panels(curves, groups, style)


def draw_views(groups: Groups, style: Style) -> Drawing | None:
    """Draw the average over the tasks seen: the score, by content alone, and of the asked form."""
    if any(metrics.FORM not in run.views for group in groups for run in group.runs):
        return None
    caption = (
        "Average over the tasks seen: the score; the score by content alone, whatever the wording; "
        "and the share of answers in the form that was asked for. Where the score falls and "
        "content does not, only the form was forgotten."
    )
    panels = [
        Panel("score, $A_t$", _read_seen),
        Panel("content", partial(_read_seen_view, metrics.CONTENT)),
        Panel("form", partial(_read_seen_view, metrics.FORM)),
    ]
    across = 3 if style.across > 1 else 1
    curves = Curves("content-form", "Score, content and form", caption, panels, across, height=1.9)
    return _draw_panels(curves, groups, style)


def _average_panels(seen: str) -> list[Panel]:
    return [
        Panel(f"{seen}, $A_t$", _read_seen),
        Panel("the task just learned, $A_{new}$", _read_learned, line=False),
    ]


def _draw_panels(curves: Curves, groups: Groups, style: Style) -> Drawing | None:
    """Draw the panels of a figure, with one legend."""
    shown = choose_groups(groups, MOST_LINES)
    if not shown:
        return None
    setting = groups[0].setting
    xlabel = "after task"
    places = list(range(1, len(setting.tasks) + 1))
    if setting.classes:
        xlabel = "classes seen"
        places = list(accumulate(setting.classes))
    figure, grid = _make_panels(style.width, curves.across, len(curves.panels), curves.height)
    colors = shade(shown)
    letters = int(style.width / curves.across / measure_letter(TITLE)) - 4
    # equal scores stand side by side; panels have one axis, also where only some need the room
    dodge = 0.0
    if not all(panel.line for panel in curves.panels):
        dodge = DODGE * min(later - earlier for earlier, later in pairwise(places))
    for number, (axes, panel) in enumerate(zip(grid, curves.panels, strict=True)):
        _draw_panel(axes, panel, places, dodge, shown, colors)
        axes.set_title(wrap_label(panel.title, letters))
        axes.set_ylabel("score (%)")
        axes.grid(axis="y")
        axes.label_outer()
        # the last row may have fewer panels than the one above
        if number + curves.across >= len(curves.panels):
            axes.set_xlabel(xlabel)
            axes.xaxis.set_tick_params(labelbottom=True)
    looks = zip(shown, colors, strict=True)
    handles = [make_handle(style.label(group), style_of(group), color) for group, color in looks]
    add_legend(figure, handles)
    caption = f"{curves.caption} {SEEDS}{describe_choice(shown, groups)}"
    return Drawing(curves.name, curves.title, caption, figure)


def _draw_panel(
    axes: Axes,
    panel: Panel,
    places: Sequence[int],
    dodge: float,
    shown: Groups,
    colors: Sequence[str],
) -> None:
    margin = 0.05 * (places[-1] - places[0])
    for number, (group, color) in enumerate(zip(shown, colors, strict=True)):
        columns = zip(*(panel.read(run) for run in group.runs), strict=True)
        cells = [summarize(values) for values in columns]
        shift = 0.0 if panel.line else dodge * ((number + 0.5) / len(shown) - 0.5)
        at = [place + shift for place in places[panel.first : group.learned]]
        _draw_line(axes, group, at, cells, color, line=panel.line)
    axes.set_xlim(places[0] - margin - dodge / 2, places[-1] + margin + dodge / 2)
    if len(places) <= MOST_PLACES:
        axes.set_xticks(places)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


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


def _read_seen_view(view: str, run: Run) -> Sequence[float]:
    return metrics.average_seen(run.views[view])


def _read_learned(run: Run) -> Sequence[float]:
    return metrics.score_when_learned(run.matrix)


def _read_old_at_end(run: Run) -> float | None:
    return metrics.average_old(run.matrix)[-1]


def _strength(group: Group) -> float:
    return group.strength or 0.0


def _rank(group: Group) -> tuple[bool, float]:
    return group.method in REFERENCES, read_last(group.runs[0]) or 0.0
