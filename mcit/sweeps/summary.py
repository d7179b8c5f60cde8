"""What a sweep says: its plan before, its summary after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcit.reports.formats import escape_markdown, format_markdown_table, print_tables
from mcit.reports.report import write_report
from mcit.reports.runs import group_runs, read_run
from mcit.reports.tables import make_tables
from mcit.sweeps.jobs import Job, find_state
from mcit.sweeps.stiffness import tabulate_stiffness


def print_plan(candidates: Sequence[Job], jobs: Sequence[Job], select: int | None) -> None:
    """How many runs there are, and which are complete; `candidates` are those that a strength is picked from."""
    if candidates is not jobs:
        print(f"to select from, on seeds {_list_seeds(candidates)}:")
        _print_runs(candidates)
        count = len({(job.order, job.method) for job in jobs}) * len({job.seed for job in jobs})
        print(f"then {count} runs to report, at the strengths picked, of:")
    _print_runs(jobs)
    if select:
        print(f"strengths are picked by the first {select} tasks; later ones are not looked at")


def write_summary(
    candidates: Sequence[Job],
    jobs: Sequence[Job],
    matched: bool,
    picked: Sequence[str],
    output: Path,
    command: str,
) -> None:
    """The runs that count in one table, in summary.md; everything that can be made of all runs, in report/.

    picked: how strengths were picked, in lines; none where they were not.
    """
    done = {
        job.folder: read_run(job.folder)
        for job in [*jobs, *candidates]
        if find_state(job) == "done"
    }
    groups = group_runs([done[job.folder] for job in jobs if job.folder in done])
    if not groups:
        print("no run is complete: there is nothing to report")
        return
    report = write_report(list(done.values()), output / "report", command)
    tables = [
        table
        for table in make_tables(groups)
        if len(groups) == 1 or not table.name.startswith("matrix-")
    ]
    tables += [tabulate_stiffness(groups)] if matched else []
    text = [
        f"## {escape_markdown(table.title)}\n\n{format_markdown_table(table)}" for table in tables
    ]
    chosen = (
        ["## How strengths were picked", "", *(f"- {line}" for line in picked), ""]
        if picked
        else []
    )
    missing = list(
        dict.fromkeys(job.name for job in [*jobs, *candidates] if job.folder not in done)
    )
    left_out = f"Left out, for they are not complete: {', '.join(missing)}.\n" if missing else ""
    text += [left_out] if left_out else []
    lines = ["# Sweep", "", *text, *chosen, "Made by:", "", f"    {command}", ""]
    (output / "summary.md").write_text("\n".join(lines), encoding="utf-8")
    print_tables(tables)
    for warning in report.warnings:
        print(f"before comparing: {warning}")
    print(left_out, end="")
    print(f"written to {output}: summary.md, report/report.html, report/figures/")


def _print_runs(jobs: Sequence[Job]) -> None:
    labels: dict[str, dict[str, list[int]]] = {}
    for job in jobs:
        label = job.name.removesuffix(f"-seed{job.seed}")
        labels.setdefault(label, {}).setdefault(find_state(job), []).append(job.seed)
    count = {
        state: sum(len(found.get(state, [])) for found in labels.values())
        for state in ("done", "begun", "new")
    }
    print(f"{len(jobs)} runs: {count['done']} complete, {count['begun']} begun, {count['new']} new")
    width = max(map(len, labels))
    for label, found in labels.items():
        parts = [
            f"{state}: seed {', '.join(map(str, found[state]))}"
            for state in count
            if state in found
        ]
        print(f"  {label:{width}}  {'; '.join(parts)}")


def _list_seeds(jobs: Sequence[Job]) -> str:
    return ", ".join(dict.fromkeys(str(job.seed) for job in jobs))
