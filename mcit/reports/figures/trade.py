"""What a method trades: old tasks for new ones, and time and memory for scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes

from mcit import metrics
from mcit.reports.figures.curves import mean_when_learned, shade_series
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
    COLUMN,
    TEXT,
    Drawing,
    look_up,
    make_figure,
    make_handle,
    plan_legend,
)
from mcit.reports.runs import Run

TIMES = ("fit_seconds", "end_task_seconds")  # what a method can lengthen; scoring is nobody's cost
LEAST = 10.0  # points that an axis spans


def draw_plasticity(setting: Setting) -> Drawing | None:
    """The score on the earlier tasks at the end against the score on new tasks: stability and plasticity."""
    series = [each for each in setting.series if each.finished and each.rows > 1]
    if len(series) < 2:
        return None
    title = (
        f"Old against new: {setting.title}"
        if len(setting.title) < 32
        else "Old tasks against new ones"
    )
    families: dict[str, list[Series]] = {}
    for each in series:
        families.setdefault(each.family, []).append(each)
    colours = shade_series([family[0] for family in families.values()])
    handles = [
        make_handle(label, family[0].method, colour, line=False)
        for (label, family), colour in zip(families.items(), colours, strict=True)
    ]
    legend = plan_legend(handles, COLUMN, lines=False)
    figure = make_figure(COLUMN, 2.75 + legend.height, title)
    axes = figure.subplots()
    hollow = any(
        len(each.runs) > 1 for each in series
    )  # one seed looks unlike several, where there are both
    for family, colour in zip(families.values(), colours, strict=True):
        _draw_points(axes, family, colour, hollow)
    axes.set_xlabel("mean $A_{new}$, tasks when learned (%)")
    axes.set_ylabel("earlier tasks at the end (%)")
    axes.grid()
    axes.margins(0.12)
    axes.set_xlim(_widen(*axes.get_xlim()))
    axes.set_ylim(_widen(*axes.get_ylim()))
    legend.draw(figure)
    told = describe_shared(list(families.values()))
    told += (
        " The larger the marker, the larger the strength." if len(families) < len(series) else ""
    )
    earlier = (
        "Score over all earlier classes"
        if setting.classes_seen
        else "Mean score on all tasks but the last"
    )
    caption = (
        f"{earlier}, after the last task (up: less forgotten), against the mean score on tasks "
        f"when they were learned (right: learned better); {describe_seeds(series)}.{told}"
    )
    return Drawing("plasticity", title, caption, figure)


def draw_cost(setting: Setting) -> Drawing | None:
    """Seconds of training and bytes held, beyond those of finetuning where there is such a run."""
    known = [
        each
        for each in setting.series
        if each.finished and all(_seconds(run) is not None for run in each.runs)
    ]
    base = next((each for each in known if each.method == "finetune"), None)
    chosen, note = choose_series(replace(setting, series=tuple(known)), 0)
    if len(chosen) < 2:
        return None
    series = [each for each in chosen if each is not base]
    title = f"Cost: {setting.title}" if base is None else f"Cost over finetune: {setting.title}"
    figure = make_figure(TEXT, 0.75 + 0.19 * len(series), title)
    left, right = figure.subplots(1, 2, sharey=True)
    times = [_add_seconds(each, base) for each in series]
    memory = [each.spread(lambda run: run.cost["bytes_held"] / 2**20) for each in series]
    floor = base.spread(_seconds).mean if base else None
    _draw_bars(
        left, series, [time.mean for time in times], [_say_seconds(time, floor) for time in times]
    )
    _draw_bars(
        right, series, [size.mean for size in memory], [f"{size.mean:.1f}" for size in memory]
    )
    left.set_xlabel("seconds of training" + (" added" if base else ""))
    right.set_xlabel("MiB held by the method")
    versus = (
        f"beyond finetune's {floor:.0f} s"
        if base
        else "in total (there is no run of finetune to compare with)"
    )
    spread_told = (
        " ± standard deviation" if any(time.deviation is not None for time in times) else ""
    )
    seeds = describe_seeds([*series, *([base] if base else [])])
    busy = (
        " Below 0, the machine was busier when finetune ran."
        if base and min(t.mean for t in times) < 0
        else ""
    )
    caption = (
        f"Left: seconds of fitting and of measuring importance {versus}; right: memory that the method holds between "
        f"tasks; mean{spread_told}, {seeds}. Seconds are wall-clock time, whatever else the machine was doing."
        f"{busy}{note}{describe_unfinished(setting.series)}"
    )
    return Drawing("cost", title, caption, figure)


def _widen(low: float, high: float) -> tuple[float, float]:
    """A range of at least `LEAST` points, so that next to nothing does not look like much."""
    more = max(0.0, (LEAST - (high - low)) / 2)
    return low - more, high + more


def _draw_points(axes: Axes, family: Sequence[Series], colour: str, hollow: bool) -> None:
    look = look_up(family[0].method)
    shared = share_seeds(family)
    x, y = (
        [each.spread(read).mean for each in shared]
        for read in (mean_when_learned, _earlier_at_the_end)
    )
    if len(family) > 1:
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.6, zorder=1)
    for number, (each, few) in enumerate(zip(family, shared, strict=True)):
        style = {"color": colour, "marker": look.marker, "linestyle": "none"}
        style["markersize"] = 5 if len(family) == 1 else 3.2 + 3.6 * number / (len(family) - 1)
        if len(few.runs) == 1:
            face = "white" if hollow else colour
            axes.plot(x[number], y[number], markerfacecolor=face, label=each.label, **style)
        if len(each.runs) > 1:
            new, old = each.spread(mean_when_learned), each.spread(_earlier_at_the_end)
            bars = {"xerr": new.deviation, "yerr": old.deviation, "elinewidth": 0.8}
            axes.errorbar(new.mean, old.mean, label=f"{each.label}, all seeds", **bars, **style)


def _earlier_at_the_end(run: Run) -> float:
    return metrics.average_old(run.matrix)[-1]


def _seconds(run: Run) -> float | None:
    if any(name not in run.cost for name in (*TIMES, "bytes_held")):
        return None
    return sum(run.cost[name] for name in TIMES)


def _add_seconds(series: Series, base: Series | None) -> Spread:
    floor = base.spread(_seconds).mean if base else 0.0
    return spread([_seconds(run) - floor for run in series.runs])


def _say_seconds(seconds: Spread, floor: float | None) -> str:
    text = f"{seconds.mean:+.0f}" if floor else f"{seconds.mean:.0f}"
    text += "" if seconds.deviation is None else f" ± {seconds.deviation:.0f}"
    text += f" ({100 * seconds.mean / floor:+.0f} %)" if floor else ""
    return text.replace("-", "−")


def _draw_bars(
    axes: Axes, series: Sequence[Series], values: Sequence[float], texts: Sequence[str]
) -> None:
    places = range(len(series))
    bars = axes.barh(places, values, 0.62, color=[look_up(each.method).colour for each in series])
    axes.bar_label(bars, texts, padding=3, fontsize=7)
    axes.set_yticks(places, [each.label for each in series])
    axes.set_ylim(len(series) - 0.4, -0.6)
    axes.margins(x=0.45)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
