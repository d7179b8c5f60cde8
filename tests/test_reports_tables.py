"""The tables of runs against numbers worked out by hand, in all their forms."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess

import pytest
from report_runs import (
    DIAGNOSIS,
    make_config,
    make_group,
    make_run,
    make_scores,
)
from rich.console import Console

from mcit.registry import find_method
from mcit.reports.formats import (
    COUNT,
    P_VALUE,
    SIGNIFICANT,
    Cell,
    Column,
    Note,
    Row,
    Table,
    TableKind,
    escape_markdown,
    format_bytes,
    format_cell,
    format_csv,
    format_markdown_table,
    format_number,
    format_seconds,
    print_tables,
)
from mcit.reports.groups import group_runs
from mcit.reports.latex import escape_latex, format_latex
from mcit.reports.runs import Run
from mcit.reports.tables import (
    TRANSFER,
    describe_run,
    make_tables,
    print_table,
    summarize,
    tabulate_runs,
)

COST = {"fit_seconds": 61.4, "end_task_seconds": 2.0, "score_seconds": 9.6, "bytes_held": 3 * 2**20}
TWO = {"tasks": ("a", "b"), "chance": (0.0, 50.0)}
# 25 % and 20 % of a are lost
EWC = [[[80.0], [60.0, 90.0]], [[80.0], [64.0, 86.0]]]


def texts(table: Table) -> list[list[str]]:
    return [table.texts(row) for row in table.rows]


def heads(table: Table) -> list[str]:
    return [column.head for column in table.columns]


def notes(table: Table) -> str:
    return "\n".join(note.text for note in table.notes)


def best(table: Table) -> set[tuple[int, int]]:
    """Return the row and the column of every cell that is marked as best."""
    return {
        (number, place)
        for number, row in enumerate(table.rows)
        for place, cell in enumerate(row.cells, start=1)
        if isinstance(cell, Cell) and cell.best
    }


def tabulate(run: Run) -> tuple[list[str], list[list[str]]]:
    columns, rows = tabulate_runs([run])
    table = Table(TableKind.MATRIX, "t", "t", columns, rows)
    return heads(table), texts(table)


# --- numbers


def test_a_cell_is_the_mean_and_the_deviation_over_seeds():
    assert summarize([62.0, 64.0], [25.0, 20.0]) == Cell(63.0, math.sqrt(2), 22.5)
    assert summarize([62.0]) == Cell(62.0)
    assert math.isnan(summarize([62.0, None]).mean)
    assert math.isnan(summarize([62.0], [None]).lost)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (62.0, ".2f", "62.00"),
        (math.nan, ".2f", "–"),
        (1234567.0, COUNT, "1,234,567"),
        (0.0004, P_VALUE, "< 0.001"),
        (0.25, P_VALUE, "0.250"),
        (0.000123456, SIGNIFICANT, "0.000123"),
        (-2.0, "+.2f", "-2.00"),
    ],
)
def test_a_number_is_written_in_the_form_of_its_column(value, form, text):
    assert format_number(value, form) == text


def test_a_cell_is_written_with_its_spread_and_what_was_lost():
    assert format_cell(Cell(62.0, 2.828, 22.5), ".2f") == "62.00 ± 2.83 (22.50)"
    assert format_cell(Cell(62.0, lost=math.nan), ".2f") == "62.00 (–)"
    assert format_cell(None, ".2f") == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (99.4, "99 s"), (312.0, "5.2 min"), (5999.0, "100.0 min"), (12240.0, "3.4 h")],
)
def test_seconds_have_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text


def test_bytes_are_written_as_mebibytes():
    assert format_bytes(7194624) == "6.9 MiB"


# --- one run


@pytest.fixture
def example() -> Run:
    """Forgetting transfer: (80-60)/80 = 25 %, (80-88)/80 = -10 %, (90-70)/(90-50) = 50 %."""
    rows = [[80.0], [60.0, 90.0], [88.0, 70.0, 85.0]]
    about = {"tasks": ("vqa", "nlvr2", "vcr"), "chance": (0.0, 50.0, 25.0), "cost": COST}
    return make_run("ewc_dr", rows, 7, estimator="mean of squares", diagnoses=["stiff"], **about)


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
    run = make_run("ewc", [[50.0], [40.0, 60.0]], tasks=("a", "b"), chance=(50.0, 25.0))
    assert tabulate(run)[1][2] == ["b", "40.00 (–)", "60.00", "50.00"]


def test_the_average_over_all_classes_is_taken_if_it_is_given():
    run = make_run("ewc", [[80.0], [60.0, 90.0]], seen=(80.0, 66.0), **TWO)
    assert [row[-1] for row in tabulate(run)[1]] == ["", "80.00", "66.00"]


def test_an_unfinished_run_has_a_table_too():
    header, rows = tabulate(make_run("ewc", [[10.0]], tasks="abc", chance=(0.0,) * 3))
    assert rows[-1] == ["a", "10.00", "", "", "10.00"]
    assert {len(row) for row in rows} == {len(header)}


def test_the_lines_of_a_run_by_hand(example):
    assert [note.text for note in describe_run(example)] == [
        # BWT: ((88-80) + (70-90)) / 2
        "A_last 81.00, A_avg 78.67, A_new 85.00, BWT -6.00",
        "ewc_dr: mean of squares",
        "stiff",
        "61 s fitting, 2 s importance, 10 s scoring; 3.0 MiB kept between tasks",
    ]


def test_one_task_has_no_backward_transfer_and_a_method_may_protect_nothing():
    run = make_run("ewc", [[10.0]], tasks="a", chance=(0.0,), diagnoses=[], cost={})
    lines = [note.text for note in describe_run(run)]
    assert lines == ["A_last 10.00, A_avg 10.00, A_new 10.00", "ewc: ewc, as estimated"]


def test_knowledge_transfer_is_shown_if_single_runs_are_known():
    run = make_run(
        "ewc",
        [[80.0], [60.0, 70.0]],
        tasks=("vqa", "vcr"),
        chance=(0.0, 25.0),
        single={"vqa": 50.0},
    )
    assert "knowledge transfer: vqa +60.00, vcr –" in [note.text for note in describe_run(run)]


@pytest.mark.parametrize("width", [20, 80, 300])
def test_no_number_is_cut_however_narrow_the_terminal(width):
    count = 10
    rows = [[90.0 - 3.21 * (t - j) for j in range(t + 1)] for t in range(count)]
    tasks = tuple(f"shapes[{2 * j}-{2 * j + 1}]" for j in range(count))
    scores = make_scores("ewc_dr", rows, tasks, (10.0,) * count, seed=7)
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_table(scores, console)
    text = stream.getvalue()
    assert "…" not in text
    for row in tabulate(make_run("ewc_dr", rows, tasks=tasks, chance=(10.0,) * count))[1]:
        for cell in row:
            assert cell in text
    assert "ewc_dr, seed 7" in text
    assert "ewc_dr: ewc_dr, as estimated" in text
    assert console.width == width


def test_a_run_with_classifiers_is_printed_with_a_row_for_each(capsys):
    scores = make_scores("ewc", [[80.0], [60.0, 90.0]], **TWO)
    scores["classifiers"] = {"lda": {name: scores[name] for name in ("matrix", "seen", "metrics")}}
    print_table(scores)
    printed = capsys.readouterr().out
    assert "│ ewc + lda " in printed


# --- methods side by side


def compare(**methods) -> Table:
    """Return the comparison of runs of two tasks, given by method as matrices by seed."""
    runs = [
        make_run(method, rows, seed, **TWO)
        for method, matrices in methods.items()
        for seed, rows in enumerate(matrices, 1)
    ]
    return make_tables(group_runs(runs))[0]


def test_methods_side_by_side_by_hand():
    table = compare(ewc=EWC, mas=[[[80.0], [70.0, 70.0]]])
    assert (table.kind, table.name) == (TableKind.COMPARISON, "comparison")
    assert heads(table) == ["method", "n", "a", "b", "A_last", "A_avg", "A_new"]
    assert texts(table) == [
        ["chance", "", "0.00", "50.00", "25.00", "12.50", ""],
        [
            "ewc",
            "2",
            "62.00 ± 2.83 (22.50)",
            "88.00 ± 2.83",
            "75.00 ± 0.00",
            "77.50 ± 0.00",
            "84.00 ± 1.41",
        ],
        ["mas", "1", "70.00 (12.50)", "70.00", "70.00", "75.00", "75.00"],
    ]
    assert best(table) == {(2, 2), (1, 3), (1, 4), (1, 5), (1, 6)}
    assert table.rows[1].cells[1] == Cell(62.0, pytest.approx(8**0.5), pytest.approx(22.5))


def test_under_the_comparison_stand_formulas_seeds_estimators_and_stiffness():
    table = compare(ewc=EWC, mas=[EWC[0]])
    assert table.notes[0] == TRANSFER
    for words in (
        f"ewc: ewc, as estimated; seeds 1, 2; at the end of seed 1 {DIAGNOSIS}.",
        f"mas: mas, as estimated; seeds 1; at the end of seed 1 {DIAGNOSIS}.",
    ):
        assert words in notes(table)


def test_what_prints_the_same_is_equally_good_and_an_upper_bound_is_never_the_best():
    better = [[80.0], [99.0, 99.0]]
    table = compare(joint=[better], ewc=[EWC[0]], mas=[[[80.0], [60.001, 90.001]]])
    assert {row for row, _ in best(table)} == {2, 3}
    assert best(compare(joint=[better], ewc=[EWC[0]])) == set()


def test_an_unfinished_run_is_shown_but_neither_averaged_nor_best():
    table = compare(ewc=[EWC[0], EWC[1], [[99.0]]], mas=[EWC[0]])
    rows = {row[0]: row for row in texts(table)}
    assert rows["ewc"][1:3] == ["2", "62.00 ± 2.83 (22.50)"]
    assert rows["ewc (seed 3, 1 of 2 tasks)"][1:] == ["1", "99.00", "", "–", "–", "–"]
    assert not [row for row, _ in best(table) if row == 2]


def test_an_unfinished_run_says_so_in_its_own_table():
    (table, _) = make_tables(group_runs([make_run("ewc", [[80.0]], **TWO)]))
    assert table.title == "ewc (seed 1, 1 of 2 tasks)"
    assert table.notes[0].text == "Unfinished: averages are over 1 of 2 tasks."


def test_the_checkpoints_of_several_seeds_are_averaged():
    (table, cost) = make_tables([make_group("ewc", EWC, **TWO)])
    assert (table.kind, table.name) == (TableKind.MATRIX, "matrix")
    assert (table.title, table.paper_title) == ("ewc, mean over 2 seeds", "EWC, mean over 2 seeds")
    assert texts(table) == [
        ["chance", "0.00", "50.00", ""],
        ["a", "80.00 ± 0.00", "", "80.00 ± 0.00"],
        ["b", "62.00 ± 2.83 (22.50)", "88.00 ± 2.83", "75.00 ± 0.00"],
    ]
    assert cost.kind is TableKind.COST
    assert texts(cost) == [["ewc", "2", "60.0", "6.0", "4.0", "3.0"]]


def test_the_embedded_benchmark_is_named():
    runs = [make_run(method, EWC[0], embedded=True, **TWO) for method in ("ewc", "mas")]
    assert make_tables(group_runs(runs))[0].title == "Methods on a,b, the embedded benchmark"


def test_views_are_columns_of_the_comparison_and_tables_of_a_run():
    views = {"normalized": [[70.0], [60.0, 50.0]], "obedience": [[99.0], [98.0, 96.0]]}
    about = {**TWO, "track": "instructions"}
    runs = [make_run("lwf", EWC[0], views=views, **about), make_run("ewc", EWC[0], **about)]
    comparison, _, matrix, content, form, *_ = make_tables(group_runs(runs))
    assert heads(comparison)[-2:] == ["content A_last", "form A_last"]
    assert [row[-2:] for row in texts(comparison)] == [["", ""], ["55.00", "97.00"], ["–", "–"]]
    assert (matrix.title, content.title) == ("lwf, seed 1", "lwf, seed 1: content")
    assert texts(form)[-1] == ["b", "98.00 (1.01)", "96.00", "97.00"]


def test_a_run_with_classifiers_has_a_row_for_each():
    lda = make_scores("ewc_dr", [[90.0], [80.0, 90.0]], **TWO)
    other = {"lda": {name: lda[name] for name in ("matrix", "seen", "metrics")}}
    table = make_tables(group_runs([make_run("ewc_dr", EWC[0], classifiers=other, **TWO)]))[0]
    assert [row[0] for row in texts(table)] == ["chance", "ewc_dr", "ewc_dr + lda"]
    assert [row.paper_label for row in table.rows] == ["", "EWC-DR", "EWC-DR + LDA"]
    assert [row[4] for row in texts(table)[1:]] == ["75.00", "85.00"]


# --- class-incremental


def split_run(method: str, order: str, rows, seen, seed: int = 1, **changes) -> Run:
    """Return a run of two tasks of a data set `x` with six classes."""
    first = int(order.partition("+")[0])
    chance = (100 / first, 100 / 6)
    config = make_config(method, [f"x:{order}"], seed)
    about = {"tasks": (f"x[0-{first - 1}]", f"x[{first}-5]"), "chance": chance, "track": "efcil"}
    return make_run(method, rows, seed, config, seen=seen, **about, **changes)


def test_new_stands_next_to_old_in_the_table_of_a_run():
    run = split_run("ewc", "4+1x2", [[80.0], [60.0, 30.0]], (80.0, 50.0))
    header, rows = tabulate(run)
    assert header == ["after", "x[0-3]", "x[4-5]", "A_t", "A_new", "A_old"]
    assert rows == [
        ["chance", "25.00", "16.67", "", "", ""],
        ["x[0-3]", "80.00", "", "80.00", "80.00", ""],
        # 20 of 80 are lost
        ["x[4-5]", "60.00 (25.00)", "30.00", "50.00", "30.00", "60.00"],
    ]
    assert (
        describe_run(run)[0].text
        == "A_last 50.00, A_avg 65.00, A_new 55.00, A_old 60.00, BWT -20.00"
    )


def test_stiffness_is_a_mean_over_seeds_without_a_spread():
    rows = [[80.0], [60.0, 30.0]]
    runs = [
        split_run(method, "4+1x2", rows, (80.0, 50.0), seed)
        for method in ("ewc", "mas")
        for seed in (1, 2)
    ]
    table = make_tables(group_runs(runs))[0]
    assert texts(table)[1][-3:] == ["0.4", "0.4", "0.0"]


def test_splits_side_by_side_by_hand():
    stiffness = [{"mean": 0.5, "capped": 1.0}, {"mean": 25.0, "capped": 12.5}]
    runs = [
        split_run("ewc", "4+1x2", [[80.0], [60.0, 30.0]], (80.0, 50.0), stiffness=stiffness),
        split_run("mas", "4+1x2", [[80.0], [20.0, 80.0]], (80.0, 40.0), stiffness=[]),
        split_run("ewc", "3+1x3", [[80.0], [40.0, 60.0]], (80.0, 50.0)),
    ]
    comparison, splits, *_ = make_tables(group_runs(runs))
    assert comparison.name == "comparison-x-4-1x2"
    assert heads(comparison) == [
        "method",
        "n",
        "A_last",
        "A_avg",
        "A_new",
        "A_old",
        "stiffness, first",
        "stiffness, last",
        "capped %",
    ]
    assert texts(comparison) == [
        ["chance", "", "16.67", "20.83", "", "", "", "", ""],
        ["ewc", "1", "50.00", "65.00", "55.00", "60.00", "0.5", "25", "12.5"],
        ["mas", "1", "40.00", "60.00", "80.00", "20.00", "–", "–", "–"],
    ]
    # what is kept was bought with what is learned
    assert best(comparison) == {(1, 2), (1, 3), (2, 4), (1, 5)}
    assert splits.kind is TableKind.SPLITS
    assert heads(splits) == [
        "method",
        "4+1x2 A_last",
        "4+1x2 A_avg",
        "3+1x3 A_last",
        "3+1x3 A_avg",
    ]
    assert texts(splits) == [
        ["chance", "16.67", "20.83", "16.67", "25.00"],
        ["ewc", "50.00", "65.00", "50.00", "65.00"],
        ["mas", "40.00", "60.00", "", ""],
    ]
    assert best(splits) == {(1, 1), (1, 2)}


def test_an_unfinished_run_has_no_row_among_the_splits():
    runs = [
        split_run("ewc", "4+1x2", [[80.0], [60.0, 30.0]], (80.0, 50.0)),
        split_run("ewc", "3+1x3", [[80.0], [40.0, 60.0]], (80.0, 50.0)),
        split_run("mas", "3+1x3", [[80.0]], (80.0,)),
    ]
    tables = make_tables(group_runs(runs))
    (splits,) = [table for table in tables if table.kind is TableKind.SPLITS]
    assert [row.label for row in splits.rows] == ["chance", "ewc"]


# --- forms

SPECIAL = Table(
    TableKind.COMPARISON,
    "special",
    "50 % of R&D_1 #2",
    [Column("method"), Column("A_last"), Column("b|c"), Column("d", SIGNIFICANT)],
    [
        Row("chance", [None, Cell(1.0), None], reference=True),
        Row("ewc_dr", [Cell(62.0, 2.83, -22.5, best=True), Cell(3.0), Cell(math.nan)], "EWC-DR"),
        Row("[x]", [Cell(-1.0, lost=math.nan), Cell(14.0, 0.1), "~"]),
    ],
    [Note("a_jj - a_tj, {braces}, x^2, \\ and $5"), Note("where from\nit came", detail=True)],
)


def test_markdown_has_bold_and_guards_bars():
    assert format_markdown_table(SPECIAL).splitlines() == [
        "| method | A_last | b\\|c | d |",
        "| :-- | --: | --: | --: |",
        "| chance |  | 1.00 |  |",
        "| ewc_dr | **62.00 ± 2.83 (-22.50)** | 3.00 | – |",
        "| [x] | -1.00 (–) | 14.00 ± 0.10 | ~ |",
        "",
        "- a_jj - a_tj, {braces}, x^2, \\ and $5",
        "- where from",
        "it came",
    ]


def test_markdown_finds_neither_html_nor_a_link_in_a_name():
    assert escape_markdown("<b>[x](javascript:1)") == "&lt;b&gt;[x]\\(javascript:1)"


def test_csv_has_one_number_in_a_cell():
    assert list(csv.reader(io.StringIO(format_csv(SPECIAL)))) == [
        ["method", "A_last", "A_last spread", "A_last forgetting", "b|c", "b|c spread", "d"],
        ["chance", "", "", "", "1.00", "", ""],
        ["ewc_dr", "62.00", "2.83", "-22.50", "3.00", "", ""],
        ["[x]", "-1.00", "", "", "14.00", "0.10", "~"],
    ]


def test_only_text_in_a_csv_is_guarded_against_formulas():
    columns = [Column("pair"), Column("+difference", "+.2f"), Column("=1")]
    rows = [Row("a - b", [Cell(-2.5), "=2"]), Row("-a", [Cell(1.0), "@x"])]
    table = Table(TableKind.PAIRS, "pairs", "Pairs", columns, rows)
    assert format_csv(table) == "pair,'+difference,'=1\na - b,-2.50,'=2\n'-a,+1.00,'@x\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ewc_dr & 50 % #1", "ewc\\_dr \\& 50 \\% \\#1"),
        ("{a}^~\\$", "\\{a\\}\\textasciicircum{}\\textasciitilde{}\\textbackslash{}\\$"),
        ("– χ² <|>", "-- $\\chi$\\textsuperscript{2} $<$\\textbar{}$>$"),
        ("λ = 300", "$\\lambda$ = 300"),
        ("猫", "?"),
    ],
)
def test_latex_prints_text_as_it_stands(text, expected):
    assert escape_latex(text) == expected


def test_latex_by_hand():
    assert format_latex(SPECIAL).splitlines() == [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        "  \\caption{50 \\% of R\\&D\\_1 \\#2}\\label{tab:special}",
        "  \\begin{tabular}{l@{\\hspace{8pt}}r@{\\,}r@{\\,}r@{\\hspace{8pt}}r@{\\,}r"
        "@{\\hspace{8pt}}r}",
        "    \\toprule",
        "    method & \\multicolumn{3}{c}{$A_{\\mathrm{last}}$} & "
        "\\multicolumn{2}{c}{b\\textbar{}c} & \\multicolumn{1}{r}{d} \\\\",
        "    \\midrule",
        "    chance &  &  &  & 1.00 &  &  \\\\",
        "    \\midrule",
        "    EWC-DR & \\textbf{62.00} & $\\pm$\\,2.83 & ($-$22.50) & 3.00 &  & -- \\\\",
        "    {[}x{]} & $-$1.00 &  & (--) & 14.00 & $\\pm$\\,0.10 & \\textasciitilde{} \\\\",
        "    \\bottomrule",
        "  \\end{tabular}\\par\\smallskip",
        "  \\raggedright",
        "  a\\_jj - a\\_tj, \\{braces\\}, x\\textasciicircum{}2, \\textbackslash{} and \\$5",
        "  % where from it came",
        "\\end{table}",
    ]


def test_metrics_are_symbols_in_headings_cells_and_notes_of_latex():
    columns = [Column("pair"), Column("measure"), Column("mean rank by A_avg")]
    rows = [Row("a_b vs c", ["A_last", Cell(1.0)])]
    table = Table(TableKind.PAIRS, "p", "p", columns, rows, [Note("Equal ranks by A_avg: no.")])
    lines = format_latex(table).splitlines()
    assert any("{mean rank by $A_{\\mathrm{avg}}$}" in line for line in lines)
    assert any(line.startswith("    a\\_b vs c & $A_{\\mathrm{last}}$ & 1.00") for line in lines)
    assert "  Equal ranks by A\\_avg: no." in lines


def test_numbers_of_any_size_have_as_many_decimals_in_latex():
    columns = [Column("m"), Column("stiffness", SIGNIFICANT)]
    rows = [Row("a", [Cell(0.00349)]), Row("b", [Cell(25.0)])]
    text = format_latex(Table(TableKind.STIFFNESS, "s", "s", columns, rows))
    assert "a & 3.49$\\cdot10^{-3}$ \\\\" in text
    assert "b & 2.50$\\cdot10^{1}$ \\\\" in text


def test_a_wide_table_spans_both_columns_and_a_wider_one_is_folded():
    columns = [Column("method"), *(Column(f"task{number}") for number in range(16))]
    rows = [Row("ewc", [Cell(50.0, 1.0, 2.0)] * 16)]
    text = format_latex(Table(TableKind.COMPARISON, "w", "w", columns, rows))
    assert "\\begin{table*}" in text
    blocks = re.findall(r"method & .*", text)
    assert len(blocks) == 4
    assert all(f"task{number}}}" in text for number in range(16))


PLENTY = [
    [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]],
    [[81.0], [61.0, 91.0], [51.0, 81.0, 71.0], [41.0, 71.0, 61.0, 86.0]],
]


def make_plenty() -> list[Table]:
    """Return tables of both tracks, with a formula in an estimator."""
    runs = []
    for method in ("ewc_dr", "mas"):
        described = find_method(method)(strength=1.0).describe()
        for seed, rows in enumerate(PLENTY, 1):
            runs.append(make_run(method, rows, seed, estimator=described))
            split = [[80.0], [60.0, 30.0 + seed]]
            runs.append(split_run(method, "4+1x2", split, (80.0, 50.0 + seed), seed))
    return make_tables(group_runs(runs))


def test_the_latex_of_every_table_is_well_formed():
    """Braces close, dollars pair, rows have their columns, and nothing special is left."""
    for table in make_plenty():
        text = format_latex(table)
        printed = "\n".join(line for line in text.splitlines() if not line.strip().startswith("%"))
        plain = re.sub(r"\\[&%$#_{}]", "", printed)
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert printed.isascii()
        outside = re.sub(r"\$[^$]*\$", "", plain)
        assert not re.findall(r"[%#_^~]", outside)
        # names are those of papers, which have no underscores
        assert "\\_" not in printed
        begun = re.findall(r"\\begin\{([\w*]+)\}", text)
        assert begun[0] in ("table", "table*")
        assert sorted(begun) == sorted(re.findall(r"\\end\{([\w*]+)\}", text))
        for layout, inside in re.findall(
            r"\\begin\{tabular\}\{l(.*?)\}\n(.*?)\\end\{tabular\}", printed, re.DOTALL
        ):
            width = 1 + layout.count("r")
            for line in inside.splitlines():
                if line.endswith("\\\\") and "multicolumn" not in line:
                    assert line.count("&") + 1 == width


def test_no_table_needs_more_than_booktabs():
    for table in make_plenty():
        text = format_latex(table)
        for command in ("adjustbox", "resizebox", "siunitx", "\\num{", "S["):
            assert command not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
@pytest.mark.slow
def test_latex_compiles_every_table_without_an_overfull_line(tmp_path):
    lines = ["\\documentclass[twocolumn]{article}", "\\usepackage[margin=0.75in]{geometry}"]
    lines += ["\\usepackage{booktabs}", "\\begin{document}"]
    for table in [*make_plenty(), SPECIAL]:
        (tmp_path / f"{table.name}.tex").write_text(format_latex(table), encoding="utf-8")
        lines.append(f"\\input{{{table.name}}}\\clearpage")
    (tmp_path / "all.tex").write_text("\n".join([*lines, "\\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


@pytest.mark.parametrize("width", [20, 300])
def test_on_the_terminal_nothing_is_cut_and_nothing_is_taken_for_markup(width):
    stream = io.StringIO()
    title = "a title that is longer than its table"
    columns = [Column("method"), Column("A_last")]
    rows = [Row("ewc[bold]", [Cell(1.0)])]
    table = Table(TableKind.COMPARISON, "t", title, columns, rows, [Note("[red]x")])
    print_tables([table], Console(file=stream, width=width, highlight=False))
    for words in (title, "ewc[bold]", "[red]x", "1.00"):
        assert words in stream.getvalue()


def test_no_two_tables_share_a_name():
    runs = [
        make_run("ewc", EWC[0], 1, make_config("ewc", options={"x": x}), **TWO)
        for x in ("a b", "a-b")
    ]
    names = [table.name for table in make_tables(group_runs(runs))]
    assert len(set(names)) == len(names) == 4
