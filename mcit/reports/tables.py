"""The tables of runs: scores with forgetting transfer by checkpoint, methods side by side, splits side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from mcit.reports import cells
from mcit.reports.formats import (
    CHANCE,
    Table,
    format_csv,
    format_latex,
    format_markdown,
    format_markdown_table,
    print_tables,
    print_whole,
)
from mcit.reports.runs import Group, split_settings
from mcit.reports.splits import find_split

__all__ = [
    "FOOTNOTE",
    "Table",
    "format_csv",
    "format_latex",
    "format_markdown",
    "format_markdown_table",
    "make_tables",
    "print_table",
    "print_tables",
    "print_whole",
    "summarise",
    "tabulate",
]

TRANSFER = (
    "a_tj is the score on task j after task t, in percent; in brackets the forgetting transfer "
    "100 (a_jj - a_tj) / (a_jj - chance_j), the share of what was learned above chance that is lost."
)
TRANSFER_OF_CLASSES = (
    "a_tj is the accuracy on the classes of task j after task t, in percent; in brackets the forgetting transfer "
    "100 (a_jj - a_tj) / a_jj, the share of what was learned that is lost."
)
FOOTNOTE = f"{TRANSFER} A_t is the average over the tasks seen."
POOLED = "A_t is the accuracy over all classes seen after task t, each image once, in percent."
AVERAGES = (
    "A_last is A_t after the last task, A_avg the mean of all A_t, and A_new the mean of a_tt, the score on each task "
    "just after it was learned."
)
OLD = "A_old is the score over all earlier tasks together, after a task; as one figure for a run, the mean over tasks."
STIFFNESS = (
    "Stiffness is strength times importance, here its mean over the weights that are held: after the first task, where "
    "all methods have the same weights, and after the last. Capped is the share of weights that are at the cap then."
)
SPREAD = "± is the standard deviation over n seeds; seeds: "
BOLD = "Bold is the highest mean of a column, which is no test; bounds (joint, single) and unfinished runs cannot be it."


def make_tables(groups: Sequence[Group]) -> list[Table]:
    """Methods side by side where a setting has several, class splits side by side, every group by itself, the cost."""
    settings = split_settings(groups)
    tables = []
    for setting, members in settings.items():
        if len(members) > 1:
            compare = compare_methods if find_split(members[0].tasks) is None else compare_on_split
            name = f"comparison-{cells.make_slug(setting)}" if len(settings) > 1 else "comparison"
            whose = (
                ", the embedded benchmark"
                if any(group.runs[0].embedded for group in members)
                else ""
            )
            tables.append(compare(members, name, f"Methods on {setting}{whose}"))
    tables += compare_splits(settings)
    tables += [tabulate_group(group, alone=len(groups) == 1) for group in groups]
    return cells.name_apart([*tables, *tabulate_costs(groups)])


def compare_methods(groups: Sequence[Group], name: str, title: str) -> Table:
    """Methods by tasks: the final score with its forgetting transfer, then the averages."""
    header = ["method", "n", *groups[0].tasks, "A_last", "A_avg", "A_new"]
    rows = []
    for group in groups:
        learned = len(group.runs[0].matrix.rows)
        final = [
            _format_cell([run.scores for run in group.runs], learned - 1, task)
            for task in range(learned)
        ]
        blank = [""] * (len(group.tasks) - learned)
        rows.append(
            [group.variant, str(len(group.runs)), *final, *blank, *cells.format_averages(group)]
        )
    chance = cells.find_chance(groups)
    guess = None if chance is None else [*chance, *cells.average_chance(chance, None)]
    return _finish_comparison(name, title, header, rows, groups, guess, [FOOTNOTE, AVERAGES])


def compare_on_split(groups: Sequence[Group], name: str, title: str) -> Table:
    """Methods on one class-incremental split: what is known at the end and on average, of the new and of the old; and
    how stiffly each method held its weights, without which its scores cannot be compared."""
    header = ["method", "n", "A_last", "A_avg", "A_new", "A_old"]
    rows = []
    for group in groups:
        rows.append(
            [
                group.variant,
                str(len(group.runs)),
                *cells.format_averages(group),
                cells.format_old(group),
            ]
        )
    scored = len(header)
    if any(run.scores.get("stiffness") for group in groups for run in group.runs):
        header += ["stiffness, first", "stiffness, last", "capped %"]
        rows = [
            [*row, *cells.format_stiffness(group)] for row, group in zip(rows, groups, strict=True)
        ]
    split, chance = find_split(groups[0].tasks), cells.find_chance(groups)
    guess = None if chance is None else cells.average_chance(chance, split)
    notes = [
        f"{split.describe()}.",
        POOLED,
        AVERAGES,
        OLD,
        *([STIFFNESS] if len(header) > scored else []),
    ]
    return _finish_comparison(name, title, header, rows, groups, guess, notes, scored)


def compare_splits(settings: Mapping[str, Sequence[Group]]) -> list[Table]:
    """For each data set that was split in several ways: methods by splits, A_last and A_avg."""
    found: dict[str, dict[str, Sequence[Group]]] = {}
    for setting, groups in settings.items():
        split = find_split(groups[0].tasks)
        if split is not None and any(group.complete for group in groups):
            found.setdefault(split.dataset, {})[setting] = groups
    return [
        _compare_lengths(dataset, splits) for dataset, splits in found.items() if len(splits) > 1
    ]


def tabulate_group(group: Group, alone: bool = False) -> Table:
    """Checkpoints by tasks: one run with all that it says, or the mean and spread over seeds."""
    listed = [run.scores for run in group.runs]
    header, rows = tabulate(*listed)
    title = group.label
    if len(listed) > 1:
        title += f", mean over {len(listed)} seeds"
        notes = [SPREAD + cells.list_seeds([group]), *cells.describe_methods([group])]
    else:
        title += f", seed {group.seeds[0]}" if group.complete and group.seeds[0] is not None else ""
        notes = summarise(listed[0])
    if not group.complete:
        learned = len(group.runs[0].matrix.rows)
        notes.insert(
            0,
            f"Not complete: {learned} of {len(group.tasks)} tasks are learned; averages are over these.",
        )
    if group.runs[0].matrix.class_incremental:
        notes += [TRANSFER_OF_CLASSES, POOLED]
    else:
        notes.append(FOOTNOTE)
    if "A_old" in header:
        notes.append(OLD)
    name = "matrix" if alone else f"matrix-{cells.make_slug(group.label)}"
    return Table(name, title, header, rows, notes, values=cells.read_values(rows))


def tabulate_costs(groups: Sequence[Group]) -> list[Table]:
    """What each method took and holds, in one table; none where no run tells."""
    known = [group for group in groups if all(run.cost for run in group.runs)]
    header = ["method", "n", "fitting s", "importance s", "scoring s", "held MiB"]
    rows = []
    for group in known:
        keys = {"fit_seconds": 1, "end_task_seconds": 1, "score_seconds": 1, "bytes_held": 2**20}
        means = [
            statistics.mean(run.cost.get(key, 0.0) for run in group.runs) / unit
            for key, unit in keys.items()
        ]
        rows.append([group.label, str(len(group.runs)), *(f"{value:.1f}" for value in means)])
    notes = [
        "Seconds by the clock, means over seeds: they compare on one machine that was equally busy."
    ]
    return (
        [Table("cost", "Cost", header, rows, notes, values=cells.read_values(rows))] if rows else []
    )


def tabulate(*listed: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a run, or of runs that differ in their seed: a row per checkpoint, a column per task."""
    first = listed[0]
    tasks, split = first["tasks"], first.get("track") == "efcil"
    header = ["after", *tasks, "A_t", *(["A_new", "A_old"] if split else [])]
    rows = []
    if first["chance"] is not None:
        rows.append(
            [CHANCE, *(f"{value:.2f}" for value in first["chance"]), *[""] * (3 if split else 1)]
        )
    for number in range(len(first["matrix"])):
        scores = [_format_cell(listed, number, task) for task in range(number + 1)]
        ends = [[run["seen"][number] for run in listed]]
        if split:
            ends += [[run["matrix"][number][-1] for run in listed]]
            ends += [[run["metrics"]["A_old"][number] for run in listed]] if number else []
        blank = [""] * (len(tasks) - len(scores))
        row = [tasks[number], *scores, *blank, *map(cells.format_spread, ends)]
        rows.append([*row, *[""] * (len(header) - len(row))])
    return header, rows


def print_table(scores: Mapping[str, Any], console: Console | None = None) -> None:
    """The table of a run on the terminal, with its estimator underneath."""
    console = console or Console(highlight=False)
    header, rows = tabulate(scores)
    # as Text: rich would take a name in brackets for a style
    table = Grid(title=Text(f"{scores['method']}, seed {scores['seed']}"), title_justify="left")
    for number, name in enumerate(header):
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row), style="dim" if row[0] == CHANCE else None)
    print_whole(table, console)
    for line in summarise(scores):
        console.print(Text(line), soft_wrap=True)


def summarise(scores: Mapping[str, Any]) -> list[str]:
    """What a run says in a few lines: averages, method and estimator, stiffness, cost."""
    metrics, cost = scores["metrics"], scores["cost"]
    named = {name: metrics[name] for name in ("A_last", "A_avg")} | {
        "A_new": cells.average(metrics["A_new"])
    }
    if scores.get("track") == "efcil":
        named["A_old"] = cells.average(metrics["A_old"][1:])
    parts = [f"{name} {value:.2f}" for name, value in named.items() if value is not None]
    if metrics["BWT"] is not None:
        parts.append(f"BWT {metrics['BWT']:+.2f}")
    lines = [", ".join(parts)]
    if "knowledge_transfer" in metrics:
        listed = zip(scores["tasks"], metrics["knowledge_transfer"], strict=False)
        lines.append(
            "knowledge transfer: "
            + ", ".join(f"{n} {'–' if v is None else f'{v:+.2f}'}" for n, v in listed)
        )
    lines.append(f"{scores['method']}: {scores['estimator']}")
    if scores["diagnoses"]:
        lines.append(scores["diagnoses"][-1])
    if {"fit_seconds", "end_task_seconds", "score_seconds", "bytes_held"} <= cost.keys():
        lines.append(
            f"{cost['fit_seconds']:.0f} s fitting, {cost['end_task_seconds']:.0f} s importance, "
            f"{cost['score_seconds']:.0f} s scoring; {cost['bytes_held'] / 2**20:.1f} MiB held by the method"
        )
    return lines


def _compare_lengths(dataset: str, splits: Mapping[str, Sequence[Group]]) -> Table:
    columns = [
        {group.variant: group for group in groups if group.complete} for groups in splits.values()
    ]
    groups = list(
        {variant: group for column in columns for variant, group in column.items()}.values()
    )
    names = [setting.partition(":")[2] or setting for setting in splits]
    header = ["method", *(f"{name} {metric}" for name in names for metric in ("A_last", "A_avg"))]
    rows = []
    for group in groups:
        found = [column.get(group.variant) for column in columns]
        pairs = [cells.format_averages(other)[:2] if other else ["", ""] for other in found]
        rows.append([group.variant, *(cell for pair in pairs for cell in pair)])
    described = [find_split(members[0].tasks).describe() for members in splits.values()]
    notes = [
        *(f"{name}: {words}." for name, words in zip(names, described, strict=True)),
        POOLED,
        AVERAGES,
    ]
    title = f"Methods on the splits of {dataset}"
    rows = [*_guess_splits(splits), *rows]
    values = cells.read_values(rows)
    first = len(rows) - len(groups)
    best = cells.find_best(values, [first + n for n, group in enumerate(groups) if group.ranked], 1)
    several = any(len(group.runs) > 1 for column in columns for group in column.values())
    notes += [f"{SPREAD}see the table of each split."] if several else []
    notes += [*([BOLD] if best else []), *_describe_estimators(groups, columns, names)]
    return Table(f"splits-{cells.make_slug(dataset)}", title, header, rows, notes, best, values)


def _guess_splits(splits: Mapping[str, Sequence[Group]]) -> list[list[str]]:
    """The row of chance; none where no run states it."""
    row = [CHANCE]
    for groups in splits.values():
        chance = cells.find_chance(groups)
        guess = (
            None if chance is None else cells.average_chance(chance, find_split(groups[0].tasks))
        )
        row += ["", ""] if guess is None else [f"{value:.2f}" for value in guess]
    return [row] if any(row[1:]) else []


def _describe_estimators(
    groups: Sequence[Group], columns: Sequence[Mapping[str, Group]], names: Sequence[str]
) -> list[str]:
    """How each row was made: told once, or for every split where it is not the same."""
    lines = []
    for variant in [group.variant for group in groups]:
        found = {
            n: c[variant].runs[0].scores["estimator"]
            for n, c in zip(names, columns, strict=True)
            if variant in c
        }
        if len(set(found.values())) == 1:
            lines.append(f"{variant}: {next(iter(found.values()))}.")
        else:
            lines.append(
                f"{variant} is not the same in all: {'; '.join(f'{n}: {told}' for n, told in found.items())}."
            )
    return lines


def _finish_comparison(
    name: str,
    title: str,
    header: list[str],
    rows: list[list[str]],
    groups: Sequence[Group],
    guess: Sequence[float] | None,
    notes: Sequence[str],
    scored: int | None = None,
) -> Table:
    """The table with the row of chance above, the best in bold, and underneath how each row was made.

    The first `scored` columns hold scores, of which the highest is the best; all, unless told.
    """
    if guess is not None:
        row = [CHANCE, "", *(f"{value:.2f}" for value in guess)]
        rows = [[*row, *[""] * (len(header) - len(row))], *rows]
    values = cells.read_values(rows)
    ranked = [
        len(rows) - len(groups) + number for number, group in enumerate(groups) if group.ranked
    ]
    best = cells.find_best([row[:scored] for row in values], ranked, 2)
    seeds = SPREAD if any(len(group.runs) > 1 for group in groups) else "One seed each: "
    about = [
        seeds + cells.list_seeds(groups),
        *([BOLD] if best else []),
        *cells.describe_methods(groups),
    ]
    return Table(name, title, header, rows, [*notes, *about], best, values)


def _format_cell(listed: Sequence[Mapping[str, Any]], number: int, task: int) -> str:
    """The score on a task after checkpoint `number`, with its forgetting transfer."""
    values = [run["matrix"][number][task] for run in listed]
    transfers = [run["metrics"]["forgetting_transfer"][number] for run in listed]
    return cells.format_spread(
        values, [row[task] for row in transfers] if task < len(transfers[0]) else None
    )
