"""Figures of importance: where it lies, how it is spread, what tasks share, and what a classifier's rows get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from mcit.reports.classifier import METHODS, ClassView
from mcit.reports.explorer import BINS, TOP, Overlap, Summary, add_up, weigh_layers
from mcit.reports.explorer_tables import choose_classes, describe_classes
from mcit.reports.figures.maps import lighten, write_cells
from mcit.reports.figures.style import (
    BLACK,
    BLUE,
    COLUMN,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    TEXT,
    VERMILLION,
    Drawing,
    make_figure,
    make_plain,
    measure_text,
    plan_legend,
)

LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)
STYLES = ("-", "--", "-.", ":")
STAGES = ("#D9D9D9", "#B3B3B3", "#8C8C8C", "#666666")  # light to dark, from the input to the output
PARTS = {"text": BLUE, "image": ORANGE, "fusion": GREEN, "head": VERMILLION, "stem": SKY}
PARTS |= {f"stage {number}": colour for number, colour in enumerate(STAGES, start=1)}
LONGEST = 24  # letters of a source's name in a figure
TAIL = 0.1  # percent of the weights that a histogram leaves out at either end
SCALE = 1e-8  # the smallest share of the largest importance that a colour still shows


def draw_parts(summaries: Sequence[Summary]) -> Drawing:
    """Percent of the importance by modality or stage, with the percent of the weights above."""
    title = "Importance by part of the network"
    weights = add_up(weigh_layers(summaries))
    names = list(weights)
    colours = {name: PARTS.get(name) or _colour(number) for number, name in enumerate(names)}
    handles = [Rectangle((0, 0), 1, 1, facecolor=colours[name], label=name) for name in names]
    legend = plan_legend(handles, TEXT, lines=False)
    figure = make_figure(TEXT, 0.7 + 0.22 * (len(summaries) + 1) + legend.height, title)
    axes = figure.subplots()
    bars = [("weights", weights), *((_shorten(each.label), each.parts()) for each in summaries)]
    for row, (_, shares) in enumerate(bars):
        start = 0.0
        for name, share in shares.items():
            axes.barh(
                row, share, 0.7, left=start, color=colours[name], edgecolor="white", linewidth=0.4
            )
            if share > 4:
                ink = "black" if sum(to_rgb(colours[name])) > 1.4 else "white"
                axes.text(
                    start + share / 2,
                    row,
                    f"{share:.0f}",
                    ha="center",
                    va="center",
                    size=7,
                    color=ink,
                )
            start += share
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    legend.draw(figure)
    caption = (
        "Percent of all importance in each part, for each task or state; the first bar is the percent of the weights: "
        "a part that is wider than there matters more than its size."
    )
    return Drawing("importance-parts", title, caption, figure)


def draw_layers(summaries: Sequence[Summary]) -> Drawing:
    """Percent of the importance by layer, with the percent of the weights beside."""
    title = "Importance by layer"
    weights = weigh_layers(summaries)
    places = list(weights)
    columns = ["weights", *(_shorten(each.label) for each in summaries)]
    values = np.full((len(places), len(columns)), np.nan)
    values[:, 0] = list(weights.values())
    for column, each in enumerate(summaries, start=1):
        for layer in each.layers:
            values[places.index(layer.place), column] = each.share(layer)
    room = max(measure_text(make_plain(place.layer)) for place in places) + 0.3
    wide = max(0.42, *(min(1.2, measure_text(name) + 0.1) for name in columns))
    figure = make_figure(
        max(COLUMN, min(TEXT, room + wide * len(columns))), 0.65 + 0.17 * len(places), title
    )
    axes = figure.subplots()
    axes.imshow(
        values, cmap=lighten("Blues", 0, 0.6), norm=Normalize(0, np.nanmax(values)), aspect="auto"
    )
    write_cells(axes, values, 1)
    slanted = max(map(measure_text, columns)) > (figure.get_figwidth() - room) / len(columns) - 0.05
    axes.set_xticks(
        range(len(columns)),
        columns,
        rotation=30 if slanted else 0,
        ha="left" if slanted else "center",
    )
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor" if slanted else "default")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(places)), [make_plain(place.layer) for place in places])
    _strip(axes)
    axes.axvline(0.5, color="white", linewidth=3)
    caption = "Percent of all importance in each layer (rows), for each task or state; on the left that of the weights."
    return Drawing("importance-layers", title, caption, figure)


def draw_histogram(summaries: Sequence[Summary]) -> Drawing:
    """How many weights have how much importance, on a logarithmic scale."""
    title = "How importance is spread over the weights"
    handles = []
    for number, each in enumerate(summaries):
        capped = each.share_of("capped")
        told = f"zero {each.share_of('zero'):.2f} %, near zero {each.share_of('near_zero'):.2f} %"
        told += "" if capped is None else f", capped {capped:.2f} %"
        handles.append(
            Line2D(
                [],
                [],
                color=_colour(number),
                linestyle=_style(number),
                label=f"{_shorten(each.label)}: {told}",
            )
        )
    legend = plan_legend(handles, TEXT)
    figure = make_figure(TEXT, 2.3 + legend.height, title)
    axes = figure.subplots()
    first, last = _find_range(summaries)
    for number, each in enumerate(summaries):
        shares = 100 * each.counts / each.weights
        line = {"color": _colour(number), "linestyle": _style(number)}
        axes.stairs(shares[first:last], 10 ** BINS[first : last + 1], linewidth=1.2, **line)
        if each.cap is not None:
            axes.axvline(each.cap, linewidth=0.8, **line)
    axes.set_xscale("log")
    axes.set_xlabel("importance of a weight")
    axes.set_ylabel("weights (%)")
    axes.set_ylim(0, None)
    axes.grid(axis="y")
    legend.draw(figure)
    caps = " Upright lines are caps." if any(each.cap is not None for each in summaries) else ""
    caption = (
        "Percent of the weights by their importance, four bins to a factor of ten; weights without any importance have "
        f"no place on the axis, nor have the last {TAIL} % of either end. Near zero is at most a thousandth of the "
        f"mean.{caps}"
    )
    return Drawing("importance-histogram", title, caption, figure)


def draw_overlap(overlap: Overlap) -> Drawing:
    """Cosine, and the share of top weights in common, of every pair."""
    title = "Do tasks need the same weights?"
    labels = [_shorten(label) for label in overlap.labels]
    size, room = len(labels), max(map(measure_text, labels))
    figure = make_figure(TEXT, 0.75 + 0.32 * size + 0.75 * room, title)
    panels = (
        ("cosine", overlap.cosine, 2),
        (f"top {100 * TOP:.0f} % in common (%)", 100 * overlap.top, 0),
    )
    for axes, (name, values, digits) in zip(figure.subplots(1, 2), panels, strict=True):
        axes.imshow(
            values,
            cmap=lighten("Blues", 0, 0.6),
            norm=Normalize(0, 1 if digits else 100),
            aspect="auto",
        )
        write_cells(axes, values, digits)
        axes.set_title(name)
        axes.set_xticks(range(size), labels, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(
            range(size), labels if axes.get_subplotspec().is_first_col() else [""] * size
        )
        _strip(axes)
    caption = (
        f"How alike the importance of each pair is, over the {overlap.weights:,} weights that all have: cosine, and "
        f"how many of the {100 * TOP:.0f} % most important weights are the same ({100 * TOP:.0f} % would be chance)."
    )
    return Drawing("importance-overlap", title, caption, figure)


def draw_classes(view: ClassView, about: str = "") -> Drawing:
    """Heat maps class by feature for each score, on one scale of colours, with the share of each class's row beside."""
    classes, scores = choose_classes(view), list(view.values)
    title = f"What is protected for samples of class {view.class_index}"
    lines = -(-len(scores) // 2)
    figure = make_figure(TEXT, 0.75 + lines * (0.55 + max(0.9, 0.15 * len(classes))), title)
    grid = figure.subplots(lines, 4, squeeze=False, gridspec_kw={"width_ratios": (3, 1, 3, 1)})
    top = max(float(values.max()) for values in view.values.values())
    norm = LogNorm(max(top * SCALE, 1e-300), max(top, 1e-299))
    for place in range(2 * lines):
        left, right = grid[place // 2, 2 * (place % 2) : 2 * (place % 2) + 2]
        if place >= len(scores):
            left.set_axis_off()
            right.set_axis_off()
            continue
        score = scores[place]
        values = view.values[score][classes].numpy()
        image = left.imshow(np.maximum(values, norm.vmin), cmap="viridis", norm=norm, aspect="auto")
        left.set_title(f"{METHODS.get(score, score)}: sum {float(view.values[score].sum()):.3g}")
        _mark_classes(left, classes, view.class_index)
        left.set_xlabel("feature")
        _draw_shares(
            right,
            [float(view.shares(score)[index]) for index in classes],
            classes,
            view.class_index,
        )
    bar = figure.colorbar(image, ax=grid, location="bottom", aspect=60, fraction=0.04, pad=0.02)
    bar.set_label("importance of a weight")
    bar.outline.set_visible(False)
    caption = (
        f"Importance of the weights {view.weight_name} {about}for {view.examples} samples of class {view.class_index} "
        f"(network {100 * view.confidence:.2f} % sure on average), mean over samples, all panels on one scale; right "
        f"of each the percent in each class's row, the true class in orange. {' '.join(describe_classes(view))}"
    )
    return Drawing("classifier", title, caption, figure)


def _mark_classes(axes: Axes, classes: Sequence[int], own: int) -> None:
    axes.set_yticks(
        range(len(classes)), [f"▶ {index}" if index == own else str(index) for index in classes]
    )
    axes.get_yticklabels()[list(classes).index(own)].set_color(VERMILLION)
    _strip(axes)
    row = list(classes).index(own)
    width = axes.get_xlim()[1] + 0.5
    axes.add_patch(
        Rectangle((-0.5, row - 0.5), width, 1, fill=False, edgecolor=VERMILLION, linewidth=1)
    )


def _draw_shares(axes: Axes, shares: Sequence[float], classes: Sequence[int], own: int) -> None:
    colours = [VERMILLION if index == own else GREY for index in classes]
    bars = axes.barh(range(len(classes)), shares, 0.7, color=colours)
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], padding=2, fontsize=7)
    axes.set_ylim(len(classes) - 0.5, -0.5)
    axes.set_xlim(0, 135)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("% of sum")
    axes.spines["bottom"].set_visible(False)


def _find_range(summaries: Sequence[Summary]) -> tuple[int, int]:
    """The bins that hold more than the tails of some source."""
    ends = []
    for each in summaries:
        below = 100 * np.cumsum(each.counts) / max(each.counts.sum(), 1)
        held = np.nonzero(
            (below > TAIL) & (below - 100 * each.counts / max(each.counts.sum(), 1) < 100 - TAIL)
        )[0]
        ends += [held[0], held[-1]] if len(held) else []
    return (min(ends), max(ends) + 1) if ends else (0, 1)


def _shorten(label: str) -> str:
    return make_plain(label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…")


def _colour(number: int) -> str:
    return LINES[number % len(LINES)]


def _style(number: int) -> str:
    return STYLES[number // len(LINES) % len(STYLES)]


def _strip(axes: Axes) -> None:
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_visible(False)
