"""The page on reading the metrics: its examples run, and its table is the one that mcit prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from report_runs import make_scores

from mcit.reports.tables import tabulate

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def test_the_examples_run_and_give_what_they_say():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried >= 20


def test_the_table_is_the_one_that_is_printed():
    rows = [[60.0], [45.0, 75.0], [30.0, 70.0, 65.0]]
    header, cells = tabulate(make_scores("ewc", rows, ("vqa", "nlvr2", "vcr"), (0.0, 50.0, 25.0)))
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert shown[0] == header
    assert shown[2:] == [[re.sub(r"\.00", "", cell) for cell in row] for row in cells]
