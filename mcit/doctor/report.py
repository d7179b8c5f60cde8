"""The doctor's findings as a table with remedies, or as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcit.doctor.findings import MISSING, Finding, exit_code

_COLOURS = {"ready": "green", "fixable": "yellow", "missing": "red"}


def print_findings(root: Path, findings: Sequence[Finding], console: Console | None = None) -> None:
    """A table of all tasks, then what is to be said and done about each."""
    if not findings:
        return
    console = console or Console(highlight=False)
    table = Table(title=f"data in {root}", title_justify="left")
    for name in ("task", "status", "train", "eval", "files"):
        table.add_column(
            name, justify="left" if name in ("task", "status") else "right", no_wrap=True
        )
    for finding in findings:
        table.add_row(
            finding.task, Text(finding.status, _COLOURS[finding.status]), *_describe_splits(finding)
        )
    console.print(table)
    for finding in findings:
        _print_details(finding, console)
    _print_next(root, findings, console)


def format_json(root: Path, findings: Sequence[Finding]) -> str:
    """Everything that was found, for programs."""
    data = {
        "data_root": str(root),
        "exit_code": exit_code(findings),
        "tasks": [finding.to_dict() for finding in findings],
    }
    return json.dumps(data, indent=1)


def _describe_splits(finding: Finding) -> list[str]:
    cells = [
        finding.splits[split].describe() if split in finding.splits else ""
        for split in ("train", "eval")
    ]
    shown = sum(split.files or 0 for split in finding.splits.values())
    absent = sum(split.absent for split in finding.splits.values())
    if any(split.files is not None for split in finding.splits.values()):
        return [*cells, f"{shown - absent:,} of {shown:,}" if absent else f"{shown:,}"]
    return [*cells, ""]


def _print_details(finding: Finding, console: Console) -> None:
    if finding.problems or finding.notes:
        console.print(Text(f"{finding.task}: {finding.status}", _COLOURS[finding.status]))
    for problem in finding.problems:
        console.print(Text(f"  - {_gather(problem.text)}"), soft_wrap=True)
        console.print(Text(f"    next: {problem.remedy}"), soft_wrap=True)
    for note in finding.notes:
        console.print(Text(f"  {note}"), soft_wrap=True)


def _gather(text: str) -> str:
    """`a is missing; b is missing` as `missing: a, b`."""
    parts = text.split("; ")
    if len(parts) > 1 and all(part.endswith(MISSING) for part in parts):
        return f"missing: {', '.join(part.removesuffix(MISSING) for part in parts)}"
    return text


def _print_next(root: Path, findings: Sequence[Finding], console: Console) -> None:
    """Commands that use what is ready: the vision-language tasks as one sequence, data sets one by one."""
    if (root / "embedded.json").is_file():
        console.print(
            "this is the embedded benchmark: mcit run uses it where no --data-root is given"
        )
        return
    ready = [finding for finding in findings if finding.status == "ready" and finding.order]
    groups = [[finding for finding in ready if finding.track == "mcit"]]
    groups += [[finding] for finding in ready if finding.track == "efcil"]
    place = shlex.quote(str(root))
    for group in filter(None, groups):
        words = [f"--order {','.join(finding.order for finding in group)}", f"--data-root {place}"]
        words += [option for finding in group for option in finding.options]
        if group[0].track == "mcit" and not all(finding.prepared for finding in group):
            console.print(
                Text(f"resize images once: mcit prepare {' '.join(words)}"), soft_wrap=True
            )
        console.print(
            Text(f"try what is ready: mcit run {' '.join(words)} --dry-run"), soft_wrap=True
        )
