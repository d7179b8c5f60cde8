"""`mcit report`: what it writes, what it prints, and where; and the report at the end of a run."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_runs import TASKS, make_scores, write_run
from rich.console import Console

from mcit.cli import main
from mcit.commands.report import choose_output
from mcit.commands.run import write_report_and_print
from mcit.reports.formats import Cell, Column, Row, Table, TableKind, print_tables
from mcit.reports.tables import print_table

PLENTY = {
    1: [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]],
    2: [[81.0], [61.0, 91.0], [51.0, 81.0, 71.0], [44.0, 72.0, 62.0, 86.0]],
}


def write_runs(folder: Path, methods: tuple[str, ...] = ("ewc", "ewc_dr", "mas")) -> Path:
    """Two seeds of each method, each method better than the one before it."""
    for number, method in enumerate(methods):
        for seed, rows in PLENTY.items():
            better = [[value + number for value in row] for row in rows]
            write_run(folder / f"{method}-seed{seed}", make_scores(method, better, seed=seed))
    return folder


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes seconds, and one test does it for all."""
    monkeypatch.setattr("mcit.reports.figures.write_figures", lambda *options: [])


@pytest.mark.slow
def test_one_command_makes_tables_figures_and_pages(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs")
    assert main(["report", str(runs)]) == 0
    printed = capsys.readouterr().out
    report = runs / "report"
    assert {path.name for path in report.iterdir()} == {
        "report.md",
        "report.html",
        "tables",
        "figures",
    }
    assert {path.suffix for path in (report / "tables").iterdir()} == {".md", ".tex", ".csv"}
    names = {path.stem for path in (report / "tables").iterdir()}
    assert names == {
        "comparison",
        "matrix-ewc",
        "matrix-ewc-dr",
        "matrix-mas",
        "cost",
        "ranks",
        "pairs",
    }
    page = (report / "report.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert "figures/critical-difference.png" in figures
    assert [name for name in figures if not (report / name).is_file()] == []
    for words in (
        "## Methods on vqa,nlvr2,snli-ve,vcr",
        "**44.00 ± 2.83",
        f"    mcit report {runs}",
        "- ewc-seed1\n\n      mcit run\n",
    ):
        assert words in page
    assert f"written to {report}: report.md, report.html, tables/, figures/" in printed
    assert "44.00 ± 2.83" in printed  # what the best keeps of the first task: 42 and 46
    assert "<html" in (report / "report.html").read_text(encoding="utf-8")
    with (report / "tables" / "comparison.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["n"], row["vqa"], row["vqa spread"]) for row in rows[1:]] == [
        ("ewc", "2", "42.00", "2.83"),
        ("ewc_dr", "2", "43.00", "2.83"),
        ("mas", "2", "44.00", "2.83"),
    ]


def test_the_report_of_one_run_is_put_into_its_folder(tmp_path, no_figures, capsys):
    folder = write_run(tmp_path / "run", make_scores("ewc", PLENTY[1]))
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.md").read_text(encoding="utf-8").startswith("# ewc, seed 1\n")
    assert {path.name for path in (folder / "tables").iterdir()} >= {
        "matrix.md",
        "matrix.tex",
        "matrix.csv",
    }
    assert "before comparing" not in capsys.readouterr().out


def test_where_it_goes_can_be_said(tmp_path, no_figures):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    assert main(["report", str(runs), "--output", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / "report.md").is_file()
    assert not (runs / "report").exists()


def test_several_runs_are_reported_where_all_of_them_are(tmp_path, no_figures):
    one = write_run(tmp_path / "x" / "one", make_scores("ewc", PLENTY[1]))
    two = write_run(tmp_path / "y" / "two", make_scores("mas", PLENTY[1]))
    assert main(["report", str(one), str(two)]) == 0
    assert (tmp_path / "report" / "report.md").is_file()


def test_runs_that_have_nothing_in_common_are_reported_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [SimpleNamespace(folder=Path(name)) for name in ("/one/run", "/two/run")]
    assert choose_output(runs, ["/one/run", "/two/run"]) == tmp_path / "report"


def test_results_of_others_are_reported_beside_ours(tmp_path, no_figures, capsys):
    folder = write_run(tmp_path / "run", make_scores("ewc", PLENTY[1]))
    lines = [
        ",".join(["after", *TASKS]),
        *(",".join([str(n), *map(str, row)]) for n, row in enumerate(PLENTY[2])),
    ]
    (tmp_path / "lwf.csv").write_text("\n".join(lines), encoding="utf-8")
    assert main(["report", str(folder), str(tmp_path / "lwf.csv")]) == 0
    printed = capsys.readouterr().out
    assert "│ lwf" in printed
    assert "lwf: it does not say how it was made." in printed
    assert "before comparing: lwf comes from another source" in printed
    # no chance level, no forgetting transfer
    assert "44.00 (–)" in printed


def test_external_results_alone_can_be_reported(tmp_path, no_figures):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    assert main(["report", str(tmp_path / "lwf.csv")]) == 0
    assert (tmp_path / "report" / "report.md").read_text(encoding="utf-8").startswith("# lwf\n")


@pytest.mark.slow
def test_figures_for_a_paper_fit_its_columns(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc", "ewc_dr"))
    assert main(["report", str(runs), "--style", "paper"]) == 0
    drawn = (runs / "report" / "figures" / "overview.svg").read_text(encoding="utf-8")
    width = float(re.search(r'width="([\d.]+)pt"', drawn)[1])
    assert width == pytest.approx(3.3 * 72)


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path, capsys, monkeypatch
):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    monkeypatch.setattr(
        "mcit.reports.extras.find_spec", lambda name: None if name == "scipy" else name
    )
    assert main(["report", str(runs)]) == 2
    assert capsys.readouterr().err == (
        'mcit: reports need scipy, which is not installed: run pip install "mcit[report]"\n'
    )
    assert not (runs / "report" / "report.md").exists()


def test_reading_and_tabulating_runs_needs_neither_matplotlib_nor_scipy():
    code = (
        "import sys\n"
        "import mcit.reports.caveats, mcit.reports.page, mcit.reports.report, mcit.reports.tables\n"
        "assert not {'matplotlib', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("markdown", "| ewc | 2 |"),
        ("latex", "\\begin{tabular}{l@{\\hspace{8pt}}r@{\\hspace{8pt}}r@{\\,}r@{\\,}r"),
        ("csv", "ewc,2,42.00,2.83,"),
    ],
)
def test_what_is_printed_can_be_read_on(tmp_path, no_figures, capsys, form, words):
    runs = write_runs(tmp_path / "runs")
    assert main(["report", str(runs), "--format", form]) == 0
    printed = capsys.readouterr()
    assert words in printed.out
    assert "written to" not in printed.out
    assert "written to" in printed.err


def test_many_methods_are_compared_but_not_shown_one_by_one(tmp_path, no_figures, capsys):
    methods = ("ewc", "ewc_dr", "mas", "si", "finetune")
    assert main(["report", str(write_runs(tmp_path / "runs", methods))]) == 0
    printed = capsys.readouterr().out
    assert "mean over 2 seeds" not in printed
    assert "5 tables of one method each are in report.md" in printed


def test_unfinished_and_different_runs_are_told_before_comparing(tmp_path, no_figures, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    write_run(runs / "late", make_scores("mas", PLENTY[1][:2], seed=3))
    assert main(["report", str(runs)]) == 0
    assert "before comparing: late is unfinished (2 of 4 tasks)" in capsys.readouterr().out
    page = (runs / "report" / "report.md").read_text(encoding="utf-8")
    assert "Before comparing:\n\n- late is unfinished (2 of 4 tasks)" in page


def test_what_cannot_be_reported_is_told_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert re.fullmatch(
        r"mcit: there is no run at .*nothing: give the folder of a run.*\n", capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_with_its_report(tmp_path, no_figures, capsys):
    folder = write_run(tmp_path / "run", make_scores("ewc", PLENTY[1]))
    write_report_and_print(folder, "mcit run --order x")
    assert (folder / "report.md").read_text(encoding="utf-8").endswith("    mcit run --order x\n")
    assert (folder / "report.html").is_file()
    printed = capsys.readouterr().out
    assert "ewc, seed 1" in printed
    assert "report.html" in printed


# --- `mcit report runs/*`


def test_the_same_command_works_every_time(tmp_path, no_figures, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc", "mas"))
    for time in range(3):
        given = sorted(str(path) for path in runs.iterdir())  # as the shell would write `runs/*`
        assert (str(runs / "report") in given) == (time > 0)
        assert main(["report", *given]) == 0
        printed = capsys.readouterr().out
        assert (
            "4 runs" in (runs / "report" / "report.md").read_text(encoding="utf-8").splitlines()[0]
        )
        assert (f"left out: {runs / 'report'} holds no run" in printed) == (time > 0)


def test_what_is_no_run_among_many_is_left_out_and_said(tmp_path, no_figures, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    (runs / "begun").mkdir()
    (runs / "begun" / "config.yaml").write_text("order: [vqa]\n")
    (runs / "nohup.out").write_text("some words")
    assert main(["report", *sorted(str(path) for path in runs.iterdir())]) == 0
    printed = capsys.readouterr().out
    assert f"left out: {runs / 'begun'} holds no run: none of its tasks is finished yet" in printed
    assert f"left out: {runs / 'nohup.out'} is not a matrix of scores" in printed


def test_what_is_left_out_does_not_disturb_what_is_read_on(tmp_path, no_figures, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    (runs / "empty").mkdir()
    assert main(["report", *sorted(str(path) for path in runs.iterdir()), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert "left out" not in printed.out
    assert "left out" in printed.err


def test_one_folder_without_a_run_is_still_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no run: there is no scores.json" in capsys.readouterr().err
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "none of the paths holds a run:\n  - " in capsys.readouterr().err


def test_a_misspelt_folder_among_many_is_still_an_error(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    assert main(["report", str(runs), str(tmp_path / "rnus")]) == 2
    assert "there is no run at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "reason"),
    [("rc.txt", "File exists"), ("rc.txt/tables", "Not a directory"), ("/proc/x", "No such file")],
)
def test_a_place_that_cannot_be_written_to_is_told_with_the_option(
    tmp_path, capsys, monkeypatch, output, reason
):
    monkeypatch.chdir(tmp_path)
    write_runs(tmp_path / "runs", ("ewc",))
    (tmp_path / "rc.txt").write_text("a file")
    assert main(["report", "runs", "--output", output]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"mcit: {output} cannot be written to ({reason}")
    assert message.endswith("; choose another --output\n")
    assert "Errno" not in message


def test_a_file_where_a_folder_of_the_report_goes_is_told(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs", ("ewc",))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tables").write_text("a file")
    assert main(["report", str(runs), "--output", str(tmp_path / "out")]) == 2
    assert "out/tables is a file; --output names the folder to write to" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tables"]


def test_a_matrix_of_one_row_is_counted_as_one_everywhere(tmp_path, no_figures, capsys):
    (tmp_path / "lwf.csv").write_text("vqa,nlvr2\n80,\n", encoding="utf-8")
    assert main(["report", str(tmp_path / "lwf.csv")]) == 0
    printed = capsys.readouterr().out
    assert "lwf (1 of 2 tasks)" in printed
    assert "Unfinished: averages are over 1 of 2 tasks." in printed
    assert "0 of 2" not in printed


# --- names that are anything


NAMES = [
    "$\\undefined$",
    "$title $$",
    "a\x00b",
    "=HYPERLINK(1)",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:1)",
]


def write_external(folder: Path, names: list[str]) -> Path:
    rows = [[90.0 - number - task for task in range(number + 1)] for number in range(len(names))]
    data = {"method": names[0], "tasks": names, "matrix": rows, "chance": [1.0] * len(names)}
    (folder / "odd.json").write_text(json.dumps(data), encoding="utf-8")
    return folder / "odd.json"


def test_names_of_any_kind_are_drawn_written_and_shown(tmp_path):
    assert (
        main(["report", str(write_external(tmp_path, NAMES)), "--output", str(tmp_path / "out")])
        == 0
    )
    figures = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    assert {"curves.svg", "matrix.svg", "forgetting.svg"} <= set(figures)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "$title $$" in page
    assert "\\$" not in page  # what matplotlib needs is for matplotlib only


def test_half_of_a_character_in_a_name_is_refused(tmp_path, capsys):
    """JSON can hold half of a surrogate pair, which neither a terminal nor a file in UTF-8 can."""
    assert main(["report", str(write_external(tmp_path, ["a\ud800", "b"]))]) == 2
    assert "it holds half a character: '\\ud800'" in capsys.readouterr().err


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(tmp_path, no_figures):
    names = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(1)", "\tx", "plain"]
    assert (
        main(["report", str(write_external(tmp_path, names)), "--output", str(tmp_path / "out")])
        == 0
    )
    with (tmp_path / "out" / "tables" / "matrix.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    first = rows[0][1]
    assert first == "'=HYPERLINK(1)"
    for cell in [cell for row in rows for cell in row if cell]:
        assert cell[0] not in "=+-@\t\r" or re.fullmatch(r"[+-]?\d+(\.\d+)?", cell), cell
    assert next(row for row in rows if row[0] == "plain")[1] == "85.00"


def test_markdown_has_no_html_and_no_link_of_a_name(tmp_path, no_figures):
    assert (
        main(["report", str(write_external(tmp_path, NAMES)), "--output", str(tmp_path / "out")])
        == 0
    )
    for page in ("report.md", "tables/matrix.md"):
        text = (tmp_path / "out" / page).read_text(encoding="utf-8")
        assert "<img" not in text
        assert "&lt;img src=x" in text
        assert "](javascript" not in text


# --- narrow terminals


BORDERS = tuple("┏┃┡│└")


def show(tables: list, width: int, terminal: bool = True) -> list[str]:
    heard = io.StringIO()
    console = Console(
        file=heard, width=width, force_terminal=terminal, color_system=None, highlight=False
    )
    print_tables(tables, console)
    return heard.getvalue().splitlines()


def make_wide(label: str = "ewc_dr", tasks: int = 5) -> Table:
    names = [f"shapes[{4 * n}-{4 * n + 3}]" for n in range(tasks)]
    columns = [Column(name) for name in ("method", *names, "A_t", "A_new", "A_old")]
    cells = [Cell(10.0 * n, 1.0, float(n)) for n in range(1, tasks + 1)]
    rows = [
        Row("chance", [Cell(5.0)] * (tasks + 3), reference=True),
        Row(label, [*cells, Cell(1.0), Cell(2.0), Cell(3.0)]),
    ]
    return Table(TableKind.COMPARISON, "wide", "Wide", columns, rows)


@pytest.mark.parametrize("width", [40, 80, 100, 120, 137])
@pytest.mark.parametrize(
    "label", ["ewc_dr", "a_method_with_a_name_that_is_longer_than_half_of_a_narrow_terminal"]
)
def test_no_border_is_broken_on_a_narrow_terminal(width, label):
    table = make_wide(label)
    lines = [line for line in show([table], width) if line.startswith(BORDERS)]
    assert max(map(len, lines)) <= width
    blocks = "\n".join(lines).split("┏")[1:]
    for block in blocks:
        first, *others = block.splitlines()
        assert {len(line) for line in others} == {
            len(first) + 1
        }  # every line of a block is as wide as its top
    shown = "".join(lines).replace(" ", "")
    heads = [column.head for column in table.columns[1:]]
    for cell in [*heads, *table.texts(table.rows[1])[1:]]:
        # on 40 columns even a number goes over two lines
        assert cell.replace(" ", "") in shown or width == 40


def test_a_table_that_nearly_fits_is_set_closer():
    (needed,) = {len(line) for line in show([make_wide()], 500) if line.startswith(BORDERS)}
    lines = [line for line in show([make_wide()], needed - 1) if line[:1] == "┏"]
    assert len(lines) == 1
    assert len(lines[0]) < needed


def test_a_file_takes_a_table_of_any_width():
    lines = [line for line in show([make_wide()], 80, terminal=False) if line[:1] == "┏"]
    assert len(lines) == 1
    assert len(lines[0]) > 80


def test_brackets_in_a_name_are_no_style(capsys):
    print_table(make_scores("[/red]", [[80.0]], ("a[/b]",), (0.0,)))
    printed = capsys.readouterr().out
    assert "[/red], seed 1" in printed
    assert "a[/b]" in printed
