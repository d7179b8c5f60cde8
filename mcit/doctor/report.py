"""The doctor's findings as a table with remedies, or as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcit.doctor.findings import Finding, exit_code
from mcit.task import Track

_COLORS = {"ready": "green", "fixable": "yellow", "missing": "red"}


def print_findings(root: Path, findings: Sequence[Finding], config: str | None = None) -> None:
    """Print a table of all tasks, then what is to be said and done about each.

    config: the configuration that names the tasks.
    """
    console = Console(highlight=False)
    table = Table(title=f"data in {root}", title_justify="left")
    for name in ("task", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("train", "eval", "files"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        splits = finding.splits
        cells = [splits[name].describe() if name in splits else "" for name in ("train", "eval")]
        status = Text(finding.status, _COLORS[finding.status])
        table.add_row(finding.task, status, *cells, _count_files(finding))
    console.print(table)
    for finding in findings:
        _print_details(finding, console)
    for line in _suggest_commands(root, findings, config):
        console.print(Text(line), soft_wrap=True)


def format_json(root: Path, findings: Sequence[Finding]) -> str:
    """Return everything that was found, for programs."""
    data = {
        "data_root": str(root),
        "exit_code": exit_code(findings),
        "tasks": [finding.to_dict() for finding in findings],
    }
    return json.dumps(data, indent=1)


def _count_files(finding: Finding) -> str:
    counts = [split.files for split in finding.splits.values() if split.files is not None]
    if not counts:
        return ""
    named = sum(counts)
    absent = sum(split.absent for split in finding.splits.values())
    if absent:
        return f"{named - absent:,} of {named:,}"
    return f"{named:,}"


def _print_details(finding: Finding, console: Console) -> None:
    if finding.problems or finding.notes:
        console.print(Text(f"{finding.task}: {finding.status}", _COLORS[finding.status]))
    for problem in finding.problems:
        console.print(Text(f"  - {problem.text}"), soft_wrap=True)
        console.print(Text(f"    next: {problem.remedy}"), soft_wrap=True)
    for note in finding.notes:
        console.print(Text(f"  {note}"), soft_wrap=True)


def _suggest_commands(root: Path, findings: Sequence[Finding], config: str | None) -> list[str]:
    """Return commands that use what is ready; data sets that are split stand alone."""
    if (root / "embedded.json").is_file():
        return ["this is the embedded benchmark, which mcit run uses if no --data-root is given"]
    ready = [finding for finding in findings if finding.status == "ready" and finding.order]
    groups = [[finding] for finding in ready if finding.track is Track.CLASSES]
    tasks = [finding for finding in ready if finding.track is Track.TASKS]
    texts = [finding for finding in ready if finding.track is Track.TEXT]
    lines = []
    if texts:
        groups.append(texts)
    if tasks:
        groups.insert(0, tasks)
    if not all(finding.prepared for finding in tasks):
        lines.append(f"resize images once: mcit prepare {_write_options(root, tasks)}")
    for group in groups:
        words = _write_options(root, group)
        if config is not None:
            words = f"--config {shlex.quote(config)} {words}"
            if len(group) == len(findings):
                # the configuration has the order
                words = f"--config {shlex.quote(config)} {_write_root(root)}"
        lines.append(f"try the tasks that are ready: mcit run {words} --dry-run")
    return lines


def _write_root(root: Path) -> str:
    return f"--data-root {shlex.quote(str(root))}"


def _write_options(root: Path, findings: Sequence[Finding]) -> str:
    order = ",".join(finding.order for finding in findings)
    words = [f"--order {order}", _write_root(root)]
    for finding in findings:
        words += finding.options
    return " ".join(words)
