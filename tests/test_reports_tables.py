"""The tables of runs against numbers worked out by hand, in all their forms."""

from __future__ import annotations

import csv
import io
import re

import pytest
from report_runs import DIAGNOSIS, make_group, make_run
from rich.console import Console

from mcit.metrics import ScoreMatrix, to_dict
from mcit.registry import find_method
from mcit.reports.formats import escape_latex
from mcit.reports.report import format_page
from mcit.reports.runs import group_runs
from mcit.reports.tables import (
    FOOTNOTE,
    Table,
    format_csv,
    format_latex,
    format_markdown,
    format_markdown_table,
    make_tables,
    print_table,
    print_tables,
    summarise,
    tabulate,
)

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
    matrix = ScoreMatrix(
        ("shapes[0-3]", "shapes[4-4]"), (25.0, 20.0), [[80.0], [60.0, 90.0]], seen=(80.0, 66.0)
    )
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
    assert "knowledge transfer: vqa +60.00, vcr –" in summarise(
        scores(matrix, single={"vqa": 50.0})
    )


def test_markdown_by_hand():
    assert format_markdown(["after", "a", "b"], [["x", "1", ""], ["y", "2", "3"]]) == [
        "| after | a | b |",
        "| :-- | --: | --: |",
        "| x | 1 |  |",
        "| y | 2 | 3 |",
    ]


def test_the_page_of_a_run_has_table_estimator_footnote_and_command():
    groups = [make_group("ewc_dr", [[[80.0], [60.0, 90.0]]], (0, 50), "ab")]
    text = format_page(groups, make_tables(groups), [], [], "mcit run --order a,b")
    lines = text.splitlines()
    assert lines[0] == "# ewc_dr, seed 1"
    assert "| b | 60.00 (25.00) | 90.00 | 75.00 |" in lines
    assert lines.index("- ewc_dr: ewc_dr, as estimated") > lines.index("| :-- | --: | --: | --: |")
    assert f"- {FOOTNOTE}" in lines
    assert lines[-1] == "    mcit run --order a,b"
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


# --- methods side by side

TWO = {"tasks": ("a", "b"), "chance": (0.0, 50.0)}
EWC = [[[80.0], [60.0, 90.0]], [[80.0], [64.0, 86.0]]]  # 25 % and 20 % of a are lost


def compare(**methods) -> Table:
    """The comparison of runs of two tasks, given by method as matrices by seed."""
    runs = [
        make_run(m, rows, seed, **TWO)
        for m, listed in methods.items()
        for seed, rows in enumerate(listed, 1)
    ]
    return make_tables(group_runs(runs))[0]


def test_methods_side_by_side_by_hand():
    table = compare(ewc=EWC, mas=[[[80.0], [70.0, 70.0]]])
    assert table.name == "comparison"
    assert table.header == ["method", "n", "a", "b", "A_last", "A_avg", "A_new"]
    assert table.rows == [
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
    assert table.best == {(2, 2), (1, 3), (1, 4), (1, 5), (1, 6)}
    assert table.values[1] == [None, 2.0, 62.0, 88.0, 75.0, 77.5, 84.0]


def test_under_the_comparison_stand_formulas_seeds_estimators_and_stiffness():
    notes = compare(ewc=EWC, mas=[EWC[0]]).notes
    assert notes[0] == FOOTNOTE
    assert "± is the standard deviation over n seeds; seeds: ewc: 1, 2; mas: 1" in notes
    assert f"ewc: ewc, as estimated; at the end (seed 1) {DIAGNOSIS}." in notes
    assert f"mas: mas, as estimated; at the end {DIAGNOSIS}." in notes


def test_what_prints_alike_is_best_alike_and_a_bound_never_is():
    better = [[80.0], [99.0, 99.0]]
    table = compare(joint=[better], ewc=[EWC[0]], mas=[[[80.0], [60.001, 90.001]]])
    assert {row for row, _ in table.best} == {2, 3}
    assert compare(joint=[better], ewc=[EWC[0]]).best == frozenset()


def test_an_unfinished_run_is_shown_but_neither_averaged_nor_best():
    table = compare(ewc=[EWC[0], EWC[1], [[99.0]]], mas=[EWC[0]])
    rows = {row[0]: row for row in table.rows}
    assert rows["ewc"][1:3] == ["2", "62.00 ± 2.83 (22.50)"]
    assert rows["ewc (seed 3, 1 of 2 tasks)"] == [
        "ewc (seed 3, 1 of 2 tasks)",
        "1",
        "99.00",
        "",
        "–",
        "–",
        "–",
    ]
    assert table.rows[2][0] == "ewc (seed 3, 1 of 2 tasks)"
    assert not [row for row, _ in table.best if row == 2]


def test_an_unfinished_run_says_so_in_its_own_table():
    (table, _) = make_tables(group_runs([make_run("ewc", [[80.0]], **TWO)]))
    assert table.title == "ewc (seed 1, 1 of 2 tasks)"
    assert table.notes[0].startswith("Not complete: 1 of 2 tasks are learned")


def test_the_checkpoints_of_several_seeds_are_averaged():
    (table, cost) = make_tables([make_group("ewc", EWC, **TWO)])
    assert (table.name, table.title) == ("matrix", "ewc, mean over 2 seeds")
    assert table.rows == [
        ["chance", "0.00", "50.00", ""],
        ["a", "80.00 ± 0.00", "", "80.00 ± 0.00"],
        ["b", "62.00 ± 2.83 (22.50)", "88.00 ± 2.83", "75.00 ± 0.00"],
    ]
    assert cost.rows == [["ewc", "2", "60.0", "6.0", "4.0", "3.0"]]


def test_the_embedded_benchmark_is_named():
    runs = [make_run(method, EWC[0], embedded=True, **TWO) for method in ("ewc", "mas")]
    assert (
        make_tables(group_runs(runs))[0].title
        == "Methods on vqa,nlvr2,snli-ve,vcr, the embedded benchmark"
    )


# --- class-incremental


def split_run(
    method: str,
    sizes: tuple[int, int],
    rows: list[list[float]],
    seen: tuple[float, float],
    seed: int = 1,
):
    first, both = sizes[0], sum(sizes)
    tasks = [f"x[0-{first - 1}]", f"x[{first}-{both - 1}]"]
    config = {"order": [f"x:{first}+1x{sizes[1]}"], "method": {"name": method}}
    chance = (100 / first, 100 / both)
    return make_run(
        method, rows, seed, config, tasks=tasks, chance=chance, track="efcil", seen=seen
    )


def test_new_stands_beside_old_in_the_table_of_a_run():
    run = split_run("ewc", (4, 2), [[80.0], [60.0, 30.0]], (80.0, 50.0))
    header, rows = tabulate(run.scores)
    assert header == ["after", "x[0-3]", "x[4-5]", "A_t", "A_new", "A_old"]
    assert rows == [
        ["chance", "25.00", "16.67", "", "", ""],
        ["x[0-3]", "80.00", "", "80.00", "80.00", ""],
        ["x[4-5]", "60.00 (25.00)", "30.00", "50.00", "30.00", "60.00"],  # 20 of 80
    ]
    assert (
        summarise(run.scores)[0]
        == "A_last 50.00, A_avg 65.00, A_new 55.00, A_old 60.00, BWT -20.00"
    )


def test_splits_side_by_side_by_hand():
    runs = [
        split_run("ewc", (4, 2), [[80.0], [60.0, 30.0]], (80.0, 50.0)),
        split_run("mas", (4, 2), [[80.0], [20.0, 80.0]], (80.0, 40.0)),
        split_run("ewc", (3, 3), [[80.0], [40.0, 60.0]], (80.0, 50.0)),
    ]
    runs[0].scores["stiffness"] = [{"mean": 0.5, "capped": 1.0}, {"mean": 25.0, "capped": 12.5}]
    runs[1].scores["stiffness"] = []
    comparison, splits, *_ = make_tables(group_runs(runs))
    assert comparison.name == "comparison-x-4-1x2"
    scored = ["method", "n", "A_last", "A_avg", "A_new", "A_old"]
    assert comparison.header == [*scored, "stiffness, first", "stiffness, last", "capped %"]
    assert comparison.rows == [
        ["chance", "", "16.67", "20.83", "", "", "", "", ""],
        ["ewc", "1", "50.00", "65.00", "55.00", "60.00", "0.5", "25", "12.50"],
        ["mas", "1", "40.00", "60.00", "80.00", "20.00", "–", "–", "–"],
    ]
    assert comparison.best == {
        (1, 2),
        (1, 3),
        (2, 4),
        (1, 5),
    }  # what is kept was bought with what is learned
    assert "big start, 4 of 6 classes, then 1 task." in comparison.notes
    assert splits.header == ["method", "4+1x2 A_last", "4+1x2 A_avg", "3+1x3 A_last", "3+1x3 A_avg"]
    assert splits.rows == [
        ["chance", "16.67", "20.83", "16.67", "25.00"],
        ["ewc", "50.00", "65.00", "50.00", "65.00"],
        ["mas", "40.00", "60.00", "", ""],
    ]
    assert splits.best == {(1, 1), (1, 2)}
    assert "ewc: ewc, as estimated." in splits.notes
    assert "3+1x3: equal split, 6 classes in 2 tasks." in splits.notes


def test_a_row_of_splits_says_where_it_is_not_the_same_method():
    runs = [
        split_run("ewc", (4, 2), [[80.0], [60.0, 30.0]], (80.0, 50.0)),
        split_run("ewc", (3, 3), [[80.0], [40.0, 60.0]], (80.0, 50.0)),
    ]
    runs[1].scores["estimator"] = "strength 9"
    begun = split_run("mas", (3, 3), [[80.0]], (80.0,))
    splits = next(
        table for table in make_tables(group_runs([*runs, begun])) if table.name == "splits-x"
    )
    assert [row[0] for row in splits.rows] == [
        "chance",
        "ewc",
    ]  # what is not complete has no average to show
    assert (
        "ewc is not the same in all: 4+1x2: ewc, as estimated; 3+1x3: strength 9." in splits.notes
    )


# --- forms

SPECIAL = Table(
    "special",
    "50 % of R&D_1 #2",
    ["method", "A_last", "b|c", "d"],
    [
        ["chance", "", "1.00", ""],
        ["ewc_dr", "62.00 ± 2.83 (-22.50)", "3.00", "–"],
        ["[x]", "1.00 (–)", "4.00 ± 0.10", "~"],
    ],
    ["a_jj - a_tj, {braces}, x^2, \\ and $5"],
    frozenset({(1, 1)}),
)


def test_markdown_has_bold_and_guards_bars():
    assert format_markdown_table(SPECIAL).splitlines() == [
        "| method | A_last | b\\|c | d |",
        "| :-- | --: | --: | --: |",
        "| chance |  | 1.00 |  |",
        "| ewc_dr | **62.00 ± 2.83 (-22.50)** | 3.00 | – |",
        "| [x] | 1.00 (–) | 4.00 ± 0.10 | ~ |",
        "",
        "- a_jj - a_tj, {braces}, x^2, \\ and $5",
    ]


def test_csv_has_one_figure_in_a_cell():
    assert list(csv.reader(io.StringIO(format_csv(SPECIAL)))) == [
        ["method", "A_last", "A_last spread", "A_last forgetting", "b|c", "b|c spread", "d"],
        ["chance", "", "", "", "1.00", "", ""],
        ["ewc_dr", "62.00", "2.83", "-22.50", "3.00", "", ""],
        ["[x]", "1.00", "", "", "4.00", "0.10", "~"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ewc_dr & 50 % #1", "ewc\\_dr \\& 50 \\% \\#1"),
        ("A_last, A_t, a_tj", "$A_{\\mathrm{last}}$, $A_{t}$, $a_{tj}$"),
        ("62.00 ± 2.83 (-22.50)", "62.00 $\\pm$ 2.83 ($-$22.50)"),
        ("x[0-3] 1e-4 a - b", "x[0-3] 1e-4 a - b"),
        ("{a}^~\\$", "\\{a\\}\\textasciicircum{}\\textasciitilde{}\\textbackslash{}\\$"),
        ("DATA_last", "DATA\\_last"),
        ("– χ² <|>", "-- $\\chi$\\textsuperscript{2} \\textless{}\\textbar{}\\textgreater{}"),
    ],
)
def test_latex_prints_text_as_it_stands(text, expected):
    assert escape_latex(text) == expected


def test_latex_by_hand():
    assert format_latex(SPECIAL).splitlines() == [
        "% needs \\usepackage{booktabs,adjustbox}",
        "\\begin{table}",
        "  \\centering",
        "  \\caption{50 \\% of R\\&D\\_1 \\#2}",
        "  \\label{tab:special}",
        "  \\begin{adjustbox}{max width=\\linewidth}",
        "  \\begin{tabular}{lrrr}",
        "    \\toprule",
        "    method & $A_{\\mathrm{last}}$ & b\\textbar{}c & d \\\\",
        "    \\midrule",
        "    chance &  & 1.00 &  \\\\",
        "    \\midrule",
        "    ewc\\_dr & \\textbf{62.00 $\\pm$ 2.83 ($-$22.50)} & 3.00 & -- \\\\",
        "    {}[x] & 1.00 (--) & 4.00 $\\pm$ 0.10 & \\textasciitilde{} \\\\",
        "    \\bottomrule",
        "  \\end{tabular}",
        "  \\end{adjustbox}",
        "  \\par\\smallskip\\raggedright\\footnotesize",
        "  $a_{jj}$ - $a_{tj}$, \\{braces\\}, x\\textasciicircum{}2, \\textbackslash{} and \\$5\\par",
        "\\end{table}",
    ]


def test_the_latex_of_every_table_is_well_formed():
    """Braces close, dollars pair, rows have their columns, and nothing outside ASCII or special is left."""
    runs = [
        make_run(method, rows, seed)
        for method in ("ewc_dr", "mas")
        for seed, rows in enumerate(PLENTY, 1)
    ]
    for run in runs:
        run.scores["estimator"] = find_method(run.method)(
            strength=1.0
        ).describe()  # MAS has a formula in it
    for table in make_tables(group_runs(runs)):
        text = format_latex(table)
        plain = re.sub(r"\\[&%$#_{}]", "", text)
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert text.isascii()
        outside = re.sub(r"\$[^$]*\$", "", plain).replace("% needs", "needs")
        assert not re.findall(r"[%#_^~]", outside)
        inside = re.search(r"\\begin\{tabular\}\{(l?r*)\}\n(.*?)\\end\{tabular\}", plain, re.DOTALL)
        rows = [line for line in inside[2].splitlines() if line.rstrip().endswith("\\\\")]
        assert {row.count("&") + 1 for row in rows} == {len(inside[1])}
        assert (
            re.findall(r"\\begin\{([\w*]+)\}", text) == re.findall(r"\\end\{([\w*]+)\}", text)[::-1]
        )
        assert "\\begin{adjustbox}{max width=\\linewidth}" in text
        assert ("\\begin{table*}" in text) == (len(table.header) >= 8) == ("\\end{table*}" in text)


PLENTY = [
    [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]],
    [[81.0], [61.0, 91.0], [51.0, 81.0, 71.0], [41.0, 71.0, 61.0, 86.0]],
]


@pytest.mark.parametrize("width", [20, 300])
def test_on_the_terminal_nothing_is_cut_and_nothing_is_taken_for_markup(width):
    stream = io.StringIO()
    table = Table(
        "t",
        "a title that is longer than its table",
        ["method", "A_last"],
        [["ewc[bold]", "1.00"]],
        ["[red]x"],
    )
    print_tables([table], Console(file=stream, width=width, highlight=False))
    for words in ("a title that is longer than its table", "ewc[bold]", "[red]x"):
        assert words in stream.getvalue()


def test_no_two_tables_share_a_name():
    runs = [
        make_run("ewc", EWC[0], 1, {"order": ["a"], "method": {"name": "ewc", "x": x}}, **TWO)
        for x in ("a b", "a-b")
    ]
    names = [table.name for table in make_tables(group_runs(runs))]
    assert len(set(names)) == len(names) == 4
