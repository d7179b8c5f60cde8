"""Figures of importance: where it lies, how it is spread, what tasks share, what a class gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.patches import Patch

from mcit.class_importance import SCORES, ClassView
from mcit.reports.class_table import describe_view, name_class
from mcit.reports.explorer import BINS, TOP, Overlap, SourceSummary, add_by_part, list_shares
from mcit.reports.figures.maps import draw_map
from mcit.reports.figures.rows import make_rows
from mcit.reports.figures.style import (
    LINE_STYLES,
    OTHER_COLORS,
    SMALLEST,
    Drawing,
    LineStyle,
    Style,
    add_legend,
    make_figure,
    make_handle,
    make_plain,
    measure_text,
    wrap_label,
)

# colors by number, for sources and parts of networks that have no color of their own
COLORS = [look.color for look in LINE_STYLES.values()][3:] + list(OTHER_COLORS)
PARTS = {"text": COLORS[0], "image": COLORS[5], "fusion": COLORS[2], "head": COLORS[1]}
# percent of the weights that a histogram leaves out at either end
TAIL = 0.1
# the smallest share of the largest importance that a color still shows
FAINTEST = 1e-8

Summaries = Sequence[SourceSummary]


def draw_parts(summaries: Summaries, style: Style) -> Drawing:
    """Draw percents of the importance by modality or stage, those of the weights on top."""
    bars = [add_by_part(shares) for shares in list_shares(summaries)]
    labels = ["weights", *(make_plain(each.label) for each in summaries)]
    figure, axes = make_rows(labels, style.width)
    handles = []
    starts = np.zeros(len(bars))
    for place, part in enumerate(bars[0], start=3):
        color = PARTS.get(part, COLORS[place % len(COLORS)])
        widths = np.array([shares.get(part, 0.0) for shares in bars])
        drawn = axes.barh(range(len(bars)), widths, 0.7, left=starts, color=color)
        # a bar that is too short for its number has none
        texts = [f"{width:.0f}" if width > 5 else "" for width in widths]
        ink = "black" if _is_light(color) else "white"
        axes.bar_label(drawn, texts, label_type="center", color=ink, fontsize=SMALLEST)
        handles.append(Patch(color=color, label=make_plain(part)))
        starts += widths
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent")
    add_legend(figure, handles)
    caption = "Percent of all importance in each part; the first bar is the percent of the weights."
    return Drawing("importance-parts", "Importance by part of the network", caption, figure)


def draw_layers(summaries: Summaries, style: Style) -> Drawing:
    """Draw percents of the importance by layer, next to those of the weights."""
    columns = list_shares(summaries)
    groups = list(columns[0])
    layers = [make_plain(group.layer) for group in groups]
    names = ["weights", *(wrap_label(make_plain(each.label), 10) for each in summaries)]
    values = np.array([[column.get(group, np.nan) for column in columns] for group in groups])
    width = 1 + max(map(measure_text, layers)) + 0.75 * len(names)
    figure = make_figure(min(style.width, width), 0.7 + 0.17 * len(groups))
    axes = figure.subplots()
    image = draw_map(axes, values, "Blues", (0, np.nanmax(values)), digits=1)
    figure.colorbar(image, label="percent", aspect=30)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(groups)), layers)
    axes.axvline(0.5, color="white", linewidth=3)
    caption = "Percent of all importance in each layer; on the left the percent of the weights."
    return Drawing("importance-layers", "Importance by layer", caption, figure)


def draw_histogram(summaries: Summaries, style: Style) -> Drawing:
    """Draw how many weights have how much importance, on a logarithmic scale."""
    figure = make_figure(style.width, 2.1)
    axes = figure.subplots()
    handles = []
    edges = 10**BINS
    ends = []
    for number, each in enumerate(summaries):
        color = COLORS[number % len(COLORS)]
        axes.stairs(each.histogram, edges, color=color)
        if each.source.cap is not None:
            axes.axvline(each.source.cap, linewidth=0.8, color=color, linestyle=":")
        handles.append(make_handle(make_plain(each.label), LineStyle(color, "None")))
        below = each.histogram.cumsum()
        ends += edges[np.searchsorted(below, (TAIL, below[-1] - TAIL))].tolist()
    axes.set_xscale("log")
    axes.set_xlim(min(ends) / 2, max(ends) * 4)
    axes.set_xlabel("importance of a weight")
    axes.set_ylabel("weights (%)")
    axes.grid(axis="y")
    add_legend(figure, handles)
    caption = (
        f"Percent of the weights by their importance, without the last {TAIL} % of either end and "
        "without weights that have none; dotted lines are caps."
    )
    return Drawing("importance-histogram", "How importance is spread", caption, figure)


def draw_overlap(overlap: Overlap, style: Style) -> Drawing:
    """Draw cosine and the share of top weights in common, of every pair."""
    size = len(overlap.labels)
    numbered = enumerate(overlap.labels, start=1)
    names = [wrap_label(make_plain(f"{number}: {label}"), 20) for number, label in numbered]
    down = 3 - style.across
    figure = make_figure(style.width, down * (0.5 + 0.3 * size))
    left, right = figure.subplots(down, style.across, sharey=True)
    share = f"{100 * TOP:.0f} %"
    left.set_title("cosine")
    right.set_title(f"top {share} in common (%)")
    images = {
        left: draw_map(left, overlap.cosine, "Blues", (0, 1), digits=2),
        right: draw_map(right, 100 * overlap.top, "Blues", (0, 100), digits=0),
    }
    for axes, image in images.items():
        axes.set_xticks(range(size), range(1, size + 1))
        axes.set_yticks(range(size), names)
        figure.colorbar(image, ax=axes)
    caption = (
        f"Similarity of importance over the {overlap.weights:,} weights that all have: cosine, and "
        f"how many of the {share} most important weights are the same ({share} by chance)."
    )
    return Drawing("importance-overlap", "Do tasks need the same weights?", caption, figure)


def draw_classes(view: ClassView, name: str, about: str, style: Style) -> Drawing:
    """Draw heat maps of classes by features for each score, with the share of each class."""
    shown = view.shown
    down = len(SCORES) // style.across
    figure = make_figure(style.width, 0.5 + down * (0.5 + 0.15 * len(shown)))
    grid = figure.subplots(down, style.across, squeeze=False)
    largest = max(float(values.max()) for values in view.values.values())
    faintest = max(largest * FAINTEST, 1e-300)
    scale = LogNorm(faintest, max(largest, 1e-299))
    for axes, (score, label) in zip(grid.flat, SCORES.items(), strict=True):
        values = np.maximum(view.values[score][shown].numpy(), faintest)
        image = axes.imshow(values, cmap="viridis", norm=scale, aspect="auto")
        shares = view.shares(score)
        rows = [f"{name_class(view, index)}: {shares[index]:.0f} %" for index in shown]
        axes.set_yticks(range(len(shown)), rows)
        axes.get_yticklabels()[shown.index(view.class_index)].set_weight("bold")
        axes.set_title(f"{label}: sum {view.sums(score).sum():.3g}")
        axes.set_xlabel("feature")
    figure.colorbar(image, ax=list(grid.flat), location="bottom", aspect=60, label="importance")
    caption = (
        f"{view.weight_name} {about}: {describe_view(view)} All panels have one scale; next to "
        "each class stands the percent of the importance in its row."
    )
    title = f"What is protected for samples of class {view.class_index}"
    return Drawing(name, title, caption, figure)


def _is_light(color: str) -> bool:
    """Whether black text is easier to read on a color than white, by its perceived brightness."""
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
