"""The cost of a table: counted operations over an assumed speed, or the time that it took here."""

from __future__ import annotations

from collections.abc import Sequence

from mcit.reproduce.cells import Cell
from mcit.reproduce.expected import Cost, ExpectedResults

# in a second, as ResNet-18 reaches on a graphics card of 2018 to 2020 in single precision
TERAFLOPS = 10.0


def describe_cost(table: ExpectedResults, cells: Sequence[Cell], teraflops: float) -> str:
    """Return runs and hours, all of them and those still missing, with what the hours rest on."""
    runs = sum(len(cell.jobs) for cell in cells)
    missing = sum(len(cell.missing) for cell in cells)
    text = f"{runs} runs, {missing} of them still to be made"
    basis = _describe_basis(table, teraflops)
    total = 0.0
    left = 0.0
    for cell in cells:
        hours = estimate_hours(table, cell, teraflops)
        if hours is None:
            return f"{text}; their time is not known ({basis})"
        total += hours * len(cell.jobs)
        left += hours * len(cell.missing)
    unit = "hours" if table.cost is None else "GPU-hours"
    return f"{text}; about {total:.3g} {unit} in all, {left:.3g} to go ({basis})"


def estimate_hours(table: ExpectedResults, cell: Cell, teraflops: float) -> float | None:
    """Return the hours of one run of a cell; None if there is nothing to estimate them from."""
    gigaflop = table.settings[cell.setting].gigaflop
    if table.cost is not None and gigaflop is not None:
        return count_examples(table.cost, cell) * gigaflop / (teraflops * 1000) / 3600
    recorded = table.find_numbers(cell.setting, cell.method)
    # papers do not say how long their runs took
    if table.published or not recorded:
        return None
    return recorded["seconds"] / 3600


def count_examples(cost: Cost, cell: Cell) -> int:
    """Return the training examples of all epochs of all tasks."""
    sizes = cost.examples
    count = 0
    for task in cell.jobs[0].plan.tasks:
        span = task.span
        if span is None or task.name in sizes:
            size = sizes[task.name]
        else:
            size = sizes["per_class"] * (span.total - span.known)
        count += task.recipe.epochs * size
    return count


def _describe_basis(table: ExpectedResults, teraflops: float) -> str:
    if table.cost is not None:
        return (
            f"an estimate, not a measurement: {table.cost.basis}, at {teraflops:g} teraflops "
            "sustained on one graphics card (assumed; set another with --teraflops)"
        )
    numbers = table.read_numbers()
    if table.published or not numbers:
        return "nothing has been recorded yet"
    return f"the time that the recorded runs took, with OMP_NUM_THREADS={numbers['threads']}"
