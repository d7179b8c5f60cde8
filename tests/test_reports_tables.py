"""The forgetting-transfer table against numbers worked out by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mcit.metrics import ScoreMatrix, to_dict
from mcit.reports.tables import FOOTNOTE, format_markdown, print_table, summarise, tabulate, write_markdown

COST = {"fit_seconds": 61.4, "end_task_seconds": 2.0, "score_seconds": 9.6, "bytes_held": 3 * 2**20}


def scores(matrix: ScoreMatrix, single=None, **changes) -> dict:
    about = {
        "method": "ewc_dr",
        "estimator": "mean of squares",
        "seed": 7,
        "diagnoses": ["soft", "stiff"],
        "cost": COST,
    }
    return {**about, **to_dict(matrix, single), **changes}


@pytest.fixture
def example() -> dict:
    """Forgetting transfer by hand: (80-60)/(80-0) = 25 %, (80-88)/80 = -10 %, (90-70)/(90-50) = 50 %."""
    rows = [[80.0], [60.0, 90.0], [88.0, 70.0, 85.0]]
    return scores(ScoreMatrix(("vqa", "nlvr2", "vcr"), (0.0, 50.0, 25.0), rows))


def test_rows_are_checkpoints_and_columns_are_tasks(example):
    header, rows = tabulate(example)
    assert header == ["after", "vqa", "nlvr2", "vcr", "A_t"]
    assert rows == [
        ["chance", "0.00", "50.00", "25.00", ""],
        ["vqa", "80.00", "", "", "80.00"],
        ["nlvr2", "60.00 (25.00)", "90.00", "", "75.00"],
        ["vcr", "88.00 (-10.00)", "70.00 (50.00)", "85.00", "81.00"],
    ]


def test_what_was_never_above_chance_cannot_be_forgotten():
    matrix = ScoreMatrix(("nlvr2", "vcr"), (50.0, 25.0), [[50.0], [40.0, 60.0]])
    assert tabulate(scores(matrix))[1][2] == ["vcr", "40.00 (–)", "60.00", "50.00"]


def test_the_average_over_all_classes_is_taken_where_it_is_given():
    matrix = ScoreMatrix(("shapes[0-3]", "shapes[4-4]"), (25.0, 20.0), [[80.0], [60.0, 90.0]], seen=(80.0, 66.0))
    assert [row[-1] for row in tabulate(scores(matrix))[1]] == ["", "80.00", "66.00"]


def test_an_unfinished_run_has_a_table_too():
    header, rows = tabulate(scores(ScoreMatrix(("a", "b", "c"), (0.0, 0.0, 0.0), [[10.0]])))
    assert rows[-1] == ["a", "10.00", "", "", "10.00"]
    assert {len(row) for row in rows} == {len(header)}


def test_the_summary_by_hand(example):
    assert summarise(example) == [
        "A_last 81.00, A_avg 78.67, A_new 85.00, BWT -6.00",  # BWT: ((88-80) + (70-90)) / 2
        "ewc_dr: mean of squares",
        "stiff",
        "61 s fitting, 2 s importance, 10 s scoring; 3.0 MiB held by the method",
    ]


def test_one_task_has_no_backward_transfer_and_a_method_may_hold_nothing():
    lines = summarise(scores(ScoreMatrix(("a",), (0.0,), [[10.0]]), diagnoses=[]))
    assert lines[0] == "A_last 10.00, A_avg 10.00, A_new 10.00"
    assert len(lines) == 3


def test_knowledge_transfer_is_told_where_single_runs_are_known():
    matrix = ScoreMatrix(("vqa", "vcr"), (0.0, 25.0), [[80.0], [60.0, 70.0]])
    assert "knowledge transfer: vqa +60.00, vcr –" in summarise(scores(matrix, single={"vqa": 50.0}))


def test_markdown_by_hand():
    assert format_markdown(["after", "a", "b"], [["x", "1", ""], ["y", "2", "3"]]) == [
        "| after | a | b |",
        "| :-- | --: | --: |",
        "| x | 1 |  |",
        "| y | 2 | 3 |",
    ]


def test_a_report_has_table_estimator_footnote_and_command(example):
    text = write_markdown(example, "mcit run --order vqa,nlvr2,vcr")
    lines = text.splitlines()
    assert lines[0] == "# ewc_dr, seed 7"
    assert "| vcr | 88.00 (-10.00) | 70.00 (50.00) | 85.00 | 81.00 |" in lines
    assert lines.index("- ewc_dr: mean of squares") > lines.index("| :-- | --: | --: | --: | --: |")
    assert FOOTNOTE in lines
    assert lines[-1] == "    mcit run --order vqa,nlvr2,vcr"
    assert text.endswith("\n")
    assert "(a_jj - a_tj) / (a_jj - chance_j)" in FOOTNOTE


@pytest.mark.parametrize("width", [20, 80, 300])
def test_no_figure_is_cut_however_narrow_the_terminal(width):
    count = 10
    rows = [[90.0 - 3.21 * (t - j) for j in range(t + 1)] for t in range(count)]
    names = tuple(f"shapes[{2 * j}-{2 * j + 1}]" for j in range(count))
    wide = scores(ScoreMatrix(names, (10.0,) * count, rows))
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_table(wide, console)
    text = stream.getvalue()
    assert "…" not in text
    for row in tabulate(wide)[1]:
        for cell in row:
            assert cell in text
    assert "ewc_dr, seed 7" in text
    assert "ewc_dr: mean of squares" in text
    assert console.width == width
