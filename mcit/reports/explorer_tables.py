"""What the importance explorer found, as tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mcit.reports.classifier import METHODS, ClassView
from mcit.reports.explorer import TOP, Overlap, Summary, add_up, weigh_layers
from mcit.reports.formats import UNDEFINED, Table

MOST_CLASSES = 16  # rows of a classifier that a table shows


def tabulate_sources(summaries: Sequence[Summary]) -> Table:
    """One row for each source: how large importance is, and how many weights have none, or all they can have."""
    header = ["importance", "weights", "mean", "largest", "zero %", "near zero %", "capped %"]
    rows = [
        [
            each.label,
            f"{each.weights:,}",
            f"{each.total / each.weights:.3g}",
            f"{each.top:.3g}",
            *(_share(each.share_of(count)) for count in ("zero", "near_zero", "capped")),
        ]
        for each in summaries
    ]
    notes = [f"{each.label}: {each.description}" for each in summaries]
    notes.append(
        "Near zero is at most a thousandth of the mean; capped is at the estimator's cap, where it "
        "has one (of what a manager holds: of the latest task)."
    )
    return Table("importance", "Importance", header, rows, notes)


def tabulate_parts(summaries: Sequence[Summary]) -> Table:
    """Percent of the importance by modality or stage, beside the percent of the weights."""
    found = [each.parts() for each in summaries]
    rows = []
    for part, weights in add_up(weigh_layers(summaries)).items():
        rows.append([part, f"{weights:.2f}", *(_share(shares.get(part)) for shares in found)])
    header = ["part", "weights %", *(f"{each.label} %" for each in summaries)]
    return Table("importance-parts", "Importance by part of the network", header, rows)


def tabulate_layers(summaries: Sequence[Summary]) -> Table:
    """Percent of the importance by layer, beside the percent of the weights."""
    found = [{layer.place: each.share(layer) for layer in each.layers} for each in summaries]
    rows = []
    for place, weights in weigh_layers(summaries).items():
        rows.append(
            [
                place.layer,
                place.part,
                f"{weights:.2f}",
                *(_share(shares.get(place)) for shares in found),
            ]
        )
    header = ["layer", "part", "weights %", *(f"{each.label} %" for each in summaries)]
    return Table("importance-layers", "Importance by layer", header, rows)


def tabulate_overlap(overlap: Overlap) -> Table:
    """Every pair of sources: the cosine, and how many of the top weights are the same."""
    rows = [
        [f"{a} and {b}", f"{overlap.cosine[i, j]:.3f}", f"{100 * overlap.top[i, j]:.1f}"]
        for i, a in enumerate(overlap.labels)
        for j, b in enumerate(overlap.labels)
        if i < j
    ]
    notes = [
        f"Over the {overlap.weights:,} weights that all have. Of two that have nothing to do with each other, "
        f"{100 * TOP:.0f} % of the top weights would be the same by chance; ties, as at a cap, are shared out."
    ]
    header = ["pair", "cosine", f"top {100 * TOP:.0f} % in common, %"]
    return Table("importance-overlap", "Overlap between tasks", header, rows, notes)


def tabulate_classes(view: ClassView, about: str = "") -> Table:
    """The importance of each class's row for samples of one class, by score; its own row is set in bold."""
    classes, scores = choose_classes(view), list(view.values)
    rows = []
    for index in classes:
        cells = [(f"{view.sums(s)[index]:.3g}", f"{view.shares(s)[index]:.1f}") for s in scores]
        rows.append(
            [
                f"{index} (true)" if index == view.class_index else str(index),
                *itertools.chain(*cells),
            ]
        )
    left = len(view.values[scores[0]]) - len(classes)
    if left:
        others = [index for index in range(len(view.sums(scores[0]))) if index not in classes]
        cells = [
            (f"{view.sums(s)[others].sum():.3g}", f"{view.shares(s)[others].sum():.1f}")
            for s in scores
        ]
        rows.append([f"{left} others", *itertools.chain(*cells)])
    notes = [
        f"{view.weight_name}, {about}{view.examples} samples of class {view.class_index}, of which the network is "
        f"{100 * view.confidence:.2f} % sure on average: importance of each sample's weights, mean over samples, "
        "summed over the row of each class; and the row's share.",
        "Squared gradients, but absolute ones for MAS: sums compare within a column, and EWC, EWC-DR and log-odds "
        "with each other.",
        *describe_classes(view),
    ]
    best = frozenset(
        (classes.index(view.class_index), column) for column in range(2 * len(scores) + 1)
    )
    names = [METHODS.get(score, score) for score in scores]
    header = ["class", *itertools.chain(*((name, f"{name} %") for name in names))]
    return Table(
        "classifier",
        f"What is protected for samples of class {view.class_index}",
        header,
        rows,
        notes,
        best,
    )


def choose_classes(view: ClassView, most: int = MOST_CLASSES) -> list[int]:
    """The class itself and those with the largest shares in any score, in their order."""
    count = len(next(iter(view.values.values())))
    if count <= most:
        return list(range(count))
    largest = {
        index: max(float(view.shares(score)[index]) for score in view.values)
        for index in range(count)
    }
    largest[view.class_index] = float("inf")
    return sorted(sorted(largest, key=lambda index: -largest[index])[:most])


def describe_classes(view: ClassView) -> list[str]:
    """In words: how far gradients have vanished, and which row is protected that is not the class's own."""
    lines = []
    if {"plain", "log_odds"} <= set(view.values):
        ratio = float(view.sums("plain").sum() / view.sums("log_odds").sum())
        why = (
            ""
            if view.multi_label
            else "EWC's gradient is that of log-odds times the doubt, 1 - p. "
        )
        lines.append(f"{why}The importance of EWC is {ratio:.2g} times that of log-odds.")
    for score in view.values:
        shares = view.shares(score).clone()
        own = float(shares[view.class_index])
        shares[view.class_index] = -1
        other = int(shares.argmax())
        lines.append(
            f"{METHODS.get(score, score)}: {own:.1f} % on the class itself, {float(shares[other]):.1f} % on class "
            f"{other}, {100 - own:.1f} % on all others."
        )
    return lines


def _share(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.2f}"
