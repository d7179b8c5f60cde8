"""What a table costs before it is run: counted operations over an assumed speed, or the time it took here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcit.reproduce.ledger import Cell, Ledger, find_figure, read_figures
from mcit.runner.plan import resolve

TERAFLOPS = 10.0  # sustained in a second, as ResNet-18 reaches on a graphics card of 2018 to 2020 in single precision


def estimate_hours(ledger: Ledger, cell: Cell, teraflops: float = TERAFLOPS) -> float | None:
    """Hours of one run of a cell; None where nothing is known to estimate them from."""
    setting = ledger.settings[cell.setting]
    if ledger.cost is not None and setting.gigaflop is not None:
        return count_examples(ledger, cell) * setting.gigaflop / (teraflops * 1000) / 3600
    recorded = find_figure(
        read_figures(ledger.figures), setting.figures.replace("{method}", cell.method)
    )
    return recorded["seconds"] / 3600 if recorded else None


def count_examples(ledger: Ledger, cell: Cell) -> int:
    """Training examples of all epochs of all tasks."""
    sizes = ledger.cost.examples
    return sum(
        task.recipe.epochs * _size(task, sizes) for task in resolve(cell.jobs[0].config).tasks
    )


def describe_basis(ledger: Ledger, teraflops: float) -> str:
    """What the estimate rests on."""
    if ledger.cost is not None:
        return (
            f"an estimate, not a measurement: {ledger.cost.basis}, at {teraflops:g} teraflops sustained on one "
            "graphics card (assumed; --teraflops says another)"
        )
    figures = read_figures(ledger.figures)
    if not figures:
        return "nothing has been recorded yet"
    return f"what the recorded runs took, with OMP_NUM_THREADS={figures['threads']}"


def describe_cost(ledger: Ledger, cells: Sequence[Cell], teraflops: float) -> str:
    """Runs and hours, all of them and those still missing, with the basis."""
    hours: dict[Any, float | None] = {
        cell: estimate_hours(ledger, cell, teraflops) for cell in cells
    }
    runs, missing = (
        sum(len(cell.jobs) for cell in cells),
        sum(len(cell.jobs) - len(cell.runs) for cell in cells),
    )
    text = f"{runs} runs, {missing} of them still to be made"
    if None not in hours.values():
        total = sum(hours[cell] * len(cell.jobs) for cell in cells)
        left = sum(hours[cell] * (len(cell.jobs) - len(cell.runs)) for cell in cells)
        unit = "GPU-hours" if ledger.cost is not None else "hours"
        text += f"; about {total:.3g} {unit} in all, {left:.3g} to go ({describe_basis(ledger, teraflops)})"
    else:
        text += f"; their time is not known ({describe_basis(ledger, teraflops)})"
    return text


def _size(task: Any, sizes: Any) -> int:
    return (
        sizes[task.name] if task.name in sizes else sizes["per_class"] * (task.total - task.known)
    )
