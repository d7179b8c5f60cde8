"""The page on reading the metrics: its table is the one that mcit prints."""

from __future__ import annotations

import re
from pathlib import Path

from report_runs import make_run

from mcit.reports.formats import Table, TableKind
from mcit.reports.tables import tabulate_runs

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def test_the_table_is_the_one_that_is_printed():
    rows = [[60.0], [45.0, 75.0], [30.0, 70.0, 65.0]]
    run = make_run("ewc", rows, tasks=("vqa", "nlvr2", "vcr"), chance=(0.0, 50.0, 25.0))
    table = Table(TableKind.MATRIX, "matrix", "matrix", *tabulate_runs([run]))
    header = [column.head for column in table.columns]
    cells = [table.texts(row) for row in table.rows]
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert shown[0] == header
    assert shown[2 : 2 + len(cells)] == [
        [re.sub(r"\.00", "", cell) for cell in row] for row in cells
    ]
