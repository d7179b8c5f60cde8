"""The table of what each score protects in a classifier, for the samples of one class."""

from __future__ import annotations

from mcit.class_importance import SCORES, ClassView
from mcit.reports.formats import SIGNIFICANT, Cell, Column, Note, Row, Table, TableKind


def tabulate_classes(view: ClassView, name: str, about: str) -> Table:
    """Return the importance of each class's row for samples of one class, by score."""
    columns = [Column("class")]
    for label in SCORES.values():
        columns += [Column(label, SIGNIFICANT), Column("%", ".1f", context=label)]
    shown = view.shown
    rows = [_make_row(view, name_class(view, index), [index]) for index in shown]
    others = [index for index in range(len(view.sums("plain"))) if index not in shown]
    if others:
        rows.append(_make_row(view, f"{len(others)} others", others))
    notes = [
        Note(f"{view.weight_name} {about}: {describe_view(view)}"),
        Note(
            "Importance of each sample's weights, mean over samples, summed over the row of each "
            "class, and the row's share. MAS has absolute gradients, the others squares."
        ),
    ]
    title = f"What is protected for samples of class {view.class_index}"
    return Table(TableKind.IMPORTANCE, name, title, columns, rows, notes)


def name_class(view: ClassView, index: int) -> str:
    """Return the number of a class, which says if it is the one that the samples are of."""
    return f"{index} (true)" if index == view.class_index else str(index)


def describe_view(view: ClassView) -> str:
    """Return how many samples were seen, and how far the gradients of EWC have vanished."""
    ratio = float(view.sums("plain").sum() / view.sums("log_odds").sum())
    return (
        f"{view.examples} samples of class {view.class_index}, which the network is "
        f"{100 * view.confidence:.2f} % sure about. The importance of EWC is "
        f"{ratio:.2g} times that of log-odds."
    )


def _make_row(view: ClassView, label: str, indices: list[int]) -> Row:
    cells = []
    for score in view.values:
        cells.append(Cell(float(view.sums(score)[indices].sum())))
        cells.append(Cell(float(view.shares(score)[indices].sum())))
    return Row(label, cells)
