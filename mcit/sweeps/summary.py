"""What a sweep prints and writes: its plan before, its summary after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcit.files import write_text
from mcit.reports.formats import TableKind, escape_markdown, format_markdown_table, print_tables
from mcit.reports.groups import group_runs
from mcit.reports.report import write_report
from mcit.reports.runs import read_run
from mcit.reports.tables import make_tables
from mcit.sweeps.jobs import Job, State, find_state
from mcit.sweeps.stiffness import tabulate_stiffness

STATES: dict[State, str] = {"done": "complete", "begun": "begun", "new": "new"}


def print_plan(candidates: Sequence[Job], jobs: Sequence[Job], select: int | None) -> None:
    """Print how many runs there are and which are done; strengths are picked from `candidates`."""
    if candidates is not jobs:
        print(f"to choose from, on seeds {_list_seeds(candidates)}:")
        _print_runs(candidates)
        methods = {(job.order, job.method) for job in jobs}
        seeds = {job.seed for job in jobs}
        print(f"then {len(methods) * len(seeds)} runs to report, at the chosen strengths, of:")
    _print_runs(jobs)
    if select:
        print(f"strengths are chosen by the first {select} tasks; later ones are not looked at")


def write_summary(
    candidates: Sequence[Job],
    jobs: Sequence[Job],
    matched: bool,
    picked: Sequence[str],
    output: Path,
    command: str,
) -> None:
    """Write the runs that count to summary.md, and a report of all runs to report/.

    picked: how strengths were picked, in lines; none if they were not.
    """
    every = [*jobs, *candidates]
    done = {job.folder: read_run(job.folder) for job in every if find_state(job) == "done"}
    groups = group_runs([done[job.folder] for job in jobs if job.folder in done])
    if not groups:
        print("no run is complete: there is nothing to report")
        return
    report = write_report(list(done.values()), output / "report", command)
    tables = make_tables(groups)
    if len(groups) > 1:
        tables = [table for table in tables if table.kind is not TableKind.MATRIX]
    if matched:
        tables.append(tabulate_stiffness(groups))
    lines = ["# Sweep", ""]
    for table in tables:
        lines += [f"## {escape_markdown(table.title)}", "", format_markdown_table(table)]
    missing = list(dict.fromkeys(job.name for job in every if job.folder not in done))
    left_out = f"Left out because they are not complete: {', '.join(missing)}."
    if missing:
        lines += [left_out, ""]
    if picked:
        lines += ["## How strengths were chosen", "", *(f"- {line}" for line in picked), ""]
    lines += ["Made by:", "", f"    {command}", ""]
    write_text(output / "summary.md", "\n".join(lines))
    print_tables(tables)
    for caveat in report.caveats:
        print(f"before comparing: {caveat}")
    if missing:
        print(left_out)
    print(f"written to {output}: summary.md, report/report.html, report/figures/")


def _print_runs(jobs: Sequence[Job]) -> None:
    seeds: dict[str, dict[str, list[str]]] = {}
    states = [find_state(job) for job in jobs]
    for job, state in zip(jobs, states, strict=True):
        label = job.name.removesuffix(f"-seed{job.seed}")
        seeds.setdefault(label, {}).setdefault(state, []).append(str(job.seed))
    counts = [f"{states.count(state)} {word}" for state, word in STATES.items()]
    print(f"{len(jobs)} runs: {', '.join(counts)}")
    width = max(map(len, seeds))
    for label, found in seeds.items():
        parts = [f"{state}: seed {', '.join(found[state])}" for state in STATES if state in found]
        print(f"  {label:{width}}  {'; '.join(parts)}")


def _list_seeds(jobs: Sequence[Job]) -> str:
    return ", ".join(dict.fromkeys(str(job.seed) for job in jobs))
