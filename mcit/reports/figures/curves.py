"""Scores over the tasks, and over the strength of a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mcit import metrics
from mcit.reports.figures.data import (
    Series,
    Setting,
    Spread,
    choose_series,
    describe_seeds,
    describe_shared,
    describe_unfinished,
    share_seeds,
    spread,
)
from mcit.reports.figures.style import (
    TEXT,
    Drawing,
    look_up,
    make_figure,
    make_handle,
    measure_text,
    plan_legend,
    tint,
)
from mcit.reports.runs import Run

MOST_LINES = 12
REFERENCES = ("finetune", "joint")  # what a strength is held against
MOST_BANDS = 6  # beyond this many, bands are a smear and bars are drawn

Read = Callable[[Run], Sequence[float]]


def draw_averages(setting: Setting) -> Drawing | None:
    """A_t, the average over what was seen, and A_new, the score on each task when it was learned, over the tasks."""
    series, note = choose_series(setting, MOST_LINES)
    if max(each.rows for each in series) < 2:
        return None
    title = f"Average and new-task score: {setting.title}"
    colours = shade_series(series)
    legend = plan_legend(
        [make_handle(each.label, each.method, c) for each, c in zip(series, colours, strict=True)],
        TEXT,
    )
    figure = make_figure(TEXT, 2.5 + legend.height + (0.6 if _is_slanted(setting) else 0), title)
    left, right = figure.subplots(
        1, 2, sharey=True
    )  # both are scores: one scale, so that they compare
    for axes, read, name in (
        (left, lambda run: metrics.average_seen(run.matrix), "$A_t$, all tasks seen (%)"),
        (
            right,
            lambda run: metrics.score_when_learned(run.matrix),
            "$A_{new}$, the task just learned (%)",
        ),
    ):
        _draw_lines(axes, setting, series, colours, read)
        _mark_tasks(axes, setting)
        axes.set_ylabel(name)
        axes.tick_params(labelleft=True)
    legend.draw(figure)
    return Drawing("average", title, _describe_averages(setting, series) + note, figure)


def draw_sensitivity(setting: Setting) -> Drawing | None:
    """A_last and the mean A_new over the strength, for every method that was run with several."""
    families = _find_families(setting)
    if not families:
        return None
    title = f"Sensitivity to the strength: {setting.title}"
    references = [each for each in setting.series if each.method in REFERENCES and each.finished]
    handles = [make_handle(label, family[0].method) for label, family in families.items()]
    handles += [make_handle(each.label, each.method, marker=False) for each in references]
    legend = plan_legend(handles, TEXT)
    figure = make_figure(TEXT, 2.5 + legend.height, title)
    left, right = figure.subplots(1, 2)
    hollow = any(len(each.runs) > 1 for family in families.values() for each in family)
    for axes, read, name in (
        (left, lambda run: run.metrics["A_last"], "$A_{last}$ (%)"),
        (right, mean_when_learned, "mean $A_{new}$ (%)"),
    ):
        for label, family in families.items():
            _draw_family(axes, label, family, read, hollow)
        for each in references:
            look = look_up(each.method)
            axes.axhline(
                each.spread(read).mean,
                color=look.colour,
                linestyle=look.line,
                linewidth=1,
                label=each.label,
            )
        _set_strengths(axes, families)
        axes.set_xlabel("strength")
        axes.set_ylabel(name)
        axes.grid(axis="y")
    legend.draw(figure)
    return Drawing("sensitivity", title, _describe_sensitivity(families, references), figure)


def mean_when_learned(run: Run) -> float:
    """How well tasks were learned, on average, when it was their turn: plasticity."""
    learned = metrics.score_when_learned(run.matrix)
    return sum(learned) / len(learned)


def shade_series(series: Sequence[Series]) -> list[str]:
    """Every method's own colour; paler for the smaller of several strengths that are drawn."""
    colours = []
    for each in series:
        same = [other for other in series if other.method == each.method]
        share = 1.0 if len(same) == 1 else 0.4 + 0.6 * same.index(each) / (len(same) - 1)
        colours.append(tint(look_up(each.method).colour, share))
    return colours


def _draw_lines(
    axes: Axes, setting: Setting, series: Sequence[Series], colours: Sequence[str], read: Read
) -> None:
    places = list(_places(setting))
    step = min((b - a for a, b in pairwise(places)), default=1)
    bars = len(series) > MOST_BANDS and any(len(each.runs) > 1 for each in series)
    for number, (each, colour) in enumerate(zip(series, colours, strict=True)):
        look, points, at = look_up(each.method), _spread_rows(each, read), places[: each.rows]
        mean, deviation = [point.mean for point in points], [point.deviation for point in points]
        if bars:  # side by side, so that they do not hide each other
            at = [place + 0.3 * step * (number / (len(series) - 1) - 0.5) for place in at]
        if deviation[0] is not None and bars:
            axes.errorbar(
                at, mean, deviation, color=colour, linestyle="none", elinewidth=0.6, capsize=0
            )
        elif deviation[0] is not None:
            low, high = (
                [m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(at, mean, color=colour, marker=look.marker, linestyle=look.line, label=each.label)


def _spread_rows(series: Series, read: Read) -> list[Spread]:
    return [
        spread(list(values)) for values in zip(*(read(run) for run in series.runs), strict=True)
    ]


def _places(setting: Setting) -> Sequence[float]:
    return setting.classes_seen or range(1, len(setting.tasks) + 1)


def _mark_tasks(axes: Axes, setting: Setting) -> None:
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    places = list(_places(setting))
    margin = 0.06 * (places[-1] - places[0] or 1)
    axes.set_xlim(places[0] - margin, places[-1] + margin)
    if setting.classes_seen:
        axes.set_xlabel("classes seen")
        axes.set_xticks(places if len(places) <= 12 else places[:: -(-len(places) // 12)])
        return
    names = setting.short_tasks
    axes.set_xlabel("after task")
    slanted = _is_slanted(setting)
    axes.set_xticks(
        places, names, rotation=35 if slanted else 0, ha="right" if slanted else "center"
    )
    if slanted:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")


def _is_slanted(setting: Setting) -> bool:
    """Whether the names of the tasks are too wide to stand side by side."""
    if setting.classes_seen:
        return False
    names = setting.short_tasks
    return (max(map(measure_text, names)) + 0.08) * len(names) > 2.7


def _describe_averages(setting: Setting, series: Sequence[Series]) -> str:
    kind = "Bands" if len(series) <= MOST_BANDS else "Bars"
    band = (
        f" {kind} are one standard deviation over seeds."
        if any(len(each.runs) > 1 for each in series)
        else ""
    )
    where = "classes seen" if setting.classes_seen else "tasks learned"
    ended = [each for each in series if each.finished]
    found = ""
    if len({frozenset(run.seed for run in each.runs) for each in ended}) > 1:
        found = (
            " Not all were run with the same seeds, so that lines may differ for that reason alone."
        )
    elif len(ended) > 1:
        last = {each.label: each.spread(lambda run: run.metrics["A_last"]) for each in ended}
        best, worst = (pick(last, key=lambda label: last[label].mean) for pick in (max, min))
        found = f" {best} ends highest ({last[best].describe()} %), {worst} lowest ({last[worst].describe()} %)."
    return (
        f"Left: average score over all tasks seen, by {where}; right: score on each task just after it was learned; "
        f"{describe_seeds(series)}.{band}{found}{describe_unfinished(series)}"
    )


def _find_families(setting: Setting) -> dict[str, list[Series]]:
    """Groups of one method that differ in their strength, by what the legend calls them, weakest first."""
    families: dict[str, list[Series]] = {}
    for each in setting.series:
        if each.strength is not None and each.finished:
            families.setdefault(each.family, []).append(each)
    ordered = {
        label: sorted(family, key=lambda each: each.strength) for label, family in families.items()
    }
    return {
        label: family
        for label, family in ordered.items()
        if len({each.strength for each in family}) > 1
    }


def _draw_family(
    axes: Axes, label: str, family: Sequence[Series], read: Callable[[Run], float], hollow: bool
) -> None:
    look = look_up(family[0].method)
    shared = share_seeds(family)
    x, y = [each.strength for each in shared], [each.spread(read).mean for each in shared]
    face = "white" if hollow else look.colour
    axes.plot(
        x,
        y,
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markerfacecolor=face,
        label=label,
    )
    points = [(each.strength, each.spread(read)) for each in family]
    several = [(strength, point) for strength, point in points if point.deviation is not None]
    if several:
        axes.errorbar(
            [strength for strength, _ in several],
            [point.mean for _, point in several],
            [point.deviation for _, point in several],
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            elinewidth=1,
        )


def _set_strengths(axes: Axes, families: dict[str, list[Series]]) -> None:
    strengths = sorted({each.strength for family in families.values() for each in family})
    positive = [strength for strength in strengths if strength > 0]
    if strengths[0] > 0:
        axes.set_xscale("log")
        axes.set_xlim(positive[0] / 1.6, positive[-1] * 1.6)
    else:  # no strength at all has its place left of the smallest
        axes.set_xscale("symlog", linthresh=positive[0] if positive else 1.0)


def _describe_references(references: Sequence[Series]) -> str:
    """The names of level lines with their seeds, which may be others than those of the points."""
    return "; ".join(
        f"{each.label}, seeds {', '.join(str(run.seed) for run in each.runs)}"
        for each in references
    )


def _describe_sensitivity(families: dict[str, list[Series]], references: Sequence[Series]) -> str:
    parts = []
    for label, family in families.items():
        best = max(
            share_seeds(family),
            key=lambda each: each.spread(lambda run: run.metrics["A_last"]).mean,
        )
        value = best.spread(lambda run: run.metrics["A_last"])
        parts.append(f"{label} is best at strength {best.strength:g} (A_last {value.describe()} %)")
    drawn = [each for family in families.values() for each in family]
    told = describe_shared(list(families.values()))
    lines = f" Level lines: {_describe_references(references)}." if references else ""
    return (
        f"A_last (left) and mean A_new (right) over the method's strength; {describe_seeds(drawn)}.{told}{lines} "
        + "; ".join(parts)
        + ". Each method's strength has a unit of its own."
    )
