"""The forgetting-transfer table, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

FOOTNOTE = (
    "a_tj is the score on task j after task t, in percent; in brackets the forgetting transfer "
    "100 (a_jj - a_tj) / (a_jj - chance_j), the share of what was learned above chance that is lost. "
    "A_t is the average over the tasks seen."
)


def tabulate(scores: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a run: one row per checkpoint, one column per task."""
    header = ["after", *scores["tasks"], "A_t"]
    rows = [["chance", *(f"{value:.2f}" for value in scores["chance"]), ""]]
    transfers = scores["metrics"]["forgetting_transfer"]
    for number, row in enumerate(scores["matrix"]):
        cells = [_cell(value, transfers[number], task) for task, value in enumerate(row)]
        blank = [""] * (len(scores["tasks"]) - len(row))
        rows.append([scores["tasks"][number], *cells, *blank, f"{scores['seen'][number]:.2f}"])
    return header, rows


def print_table(scores: Mapping[str, Any], console: Console | None = None) -> None:
    """The table of a run on the terminal, with its estimator underneath."""
    console = console or Console(highlight=False)
    header, rows = tabulate(scores)
    table = Table(title=f"{scores['method']}, seed {scores['seed']}", title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="dim" if row[0] == "chance" else None)
    print_whole(table, console)
    for line in summarise(scores):
        console.print(line, soft_wrap=True)


def print_whole(table: Table, console: Console) -> None:
    """Print a table as wide as it needs to be: rich would cut the figures to fit a narrow terminal, or a file."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)
    console.width = width


def write_markdown(scores: Mapping[str, Any], command: str) -> str:
    """The report of a run as Markdown."""
    header, rows = tabulate(scores)
    lines = [f"# {scores['method']}, seed {scores['seed']}", ""]
    lines += format_markdown(header, rows)
    lines += ["", *(f"- {line}" for line in summarise(scores))]
    lines += ["", FOOTNOTE, "", "Made by:", "", f"    {command}", ""]
    return "\n".join(lines)


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, its first column left and the others right aligned."""
    rule = [":--", *["--:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def summarise(scores: Mapping[str, Any]) -> list[str]:
    """What a run says in a few lines: averages, method and estimator, stiffness, cost."""
    metrics, cost = scores["metrics"], scores["cost"]
    new = metrics["A_new"]
    parts = [f"A_last {metrics['A_last']:.2f}", f"A_avg {metrics['A_avg']:.2f}", f"A_new {sum(new) / len(new):.2f}"]
    if metrics["BWT"] is not None:
        parts.append(f"BWT {metrics['BWT']:+.2f}")
    lines = [", ".join(parts)]
    if "knowledge_transfer" in metrics:
        listed = zip(scores["tasks"], metrics["knowledge_transfer"], strict=False)
        lines.append("knowledge transfer: " + ", ".join(f"{n} {'–' if v is None else f'{v:+.2f}'}" for n, v in listed))
    lines.append(f"{scores['method']}: {scores['estimator']}")
    if scores["diagnoses"]:
        lines.append(scores["diagnoses"][-1])
    lines.append(
        f"{cost['fit_seconds']:.0f} s fitting, {cost['end_task_seconds']:.0f} s importance, "
        f"{cost['score_seconds']:.0f} s scoring; {cost['bytes_held'] / 2**20:.1f} MiB held by the method"
    )
    return lines


def _cell(value: float, transfers: Sequence[float | None], task: int) -> str:
    if task >= len(transfers):
        return f"{value:.2f}"
    lost = transfers[task]
    return f"{value:.2f} ({'–' if lost is None else f'{lost:.2f}'})"
