"""`mcit report`: what it writes, what it prints, and where; and the report at the end of a run."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_runs import TASKS, make_scores, write_run

from mcit.cli import main
from mcit.commands.report import choose_output
from mcit.commands.run import finish

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
    monkeypatch.setattr("mcit.reports.report.write_figures", lambda groups, folder: [])
    monkeypatch.setattr("mcit.reports.report._write_ranks", lambda groups, folder: [])


@pytest.mark.slow
def test_one_command_makes_tables_figures_and_pages(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs")
    assert main(["report", str(runs)]) == 0
    printed = capsys.readouterr().out
    report = runs / "report"
    assert {path.name for path in report.iterdir()} == {"report.md", "report.html", "tables", "figures"}
    assert {path.suffix for path in (report / "tables").iterdir()} == {".md", ".tex", ".csv"}
    names = {path.stem for path in (report / "tables").iterdir()}
    assert names == {"comparison", "matrix-ewc", "matrix-ewc-dr", "matrix-mas", "cost", "ranks", "pairs"}
    page = (report / "report.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert "figures/critical-difference.png" in figures
    assert [name for name in figures if not (report / name).is_file()] == []
    for words in (
        "## Methods on vqa,nlvr2,snli-ve,vcr",
        "**44.00 ± 2.83",
        f"    mcit report {runs}",
        "- ewc-seed1: `mcit run`",
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
    assert {path.name for path in (folder / "tables").iterdir()} >= {"matrix.md", "matrix.tex", "matrix.csv"}
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
    lines = [",".join(["after", *TASKS]), *(",".join([str(n), *map(str, row)]) for n, row in enumerate(PLENTY[2]))]
    (tmp_path / "lwf.csv").write_text("\n".join(lines), encoding="utf-8")
    assert main(["report", str(folder), str(tmp_path / "lwf.csv")]) == 0
    printed = capsys.readouterr().out
    assert "│ lwf" in printed
    assert "lwf: from lwf.csv; how it was made is not stated." in printed
    assert "before comparing: lwf.csv comes from elsewhere" in printed
    assert "44.00 (–)" in printed  # no chance level, no forgetting transfer


def test_foreign_results_alone_can_be_reported(tmp_path, no_figures):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    assert main(["report", str(tmp_path / "lwf.csv")]) == 0
    assert (tmp_path / "report" / "report.md").read_text(encoding="utf-8").startswith("# lwf\n")


@pytest.mark.parametrize(
    ("form", "words"),
    [("markdown", "| ewc | 2 |"), ("latex", "\\begin{tabular}{lrrrrrrrr}"), ("csv", "ewc,2,42.00,2.83,")],
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
    assert "before comparing: late is not complete (2 of 4 tasks)" in capsys.readouterr().out
    page = (runs / "report" / "report.md").read_text(encoding="utf-8")
    assert "Before comparing:\n\n- late is not complete (2 of 4 tasks)" in page


def test_what_cannot_be_reported_is_told_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert re.fullmatch(r"mcit: there is no run at .*nothing: give the folder of a run.*\n", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_with_its_report(tmp_path, no_figures, capsys):
    folder = write_run(tmp_path / "run", make_scores("ewc", PLENTY[1]))
    finish(folder, "mcit run --order x")
    assert (folder / "report.md").read_text(encoding="utf-8").endswith("    mcit run --order x\n")
    assert (folder / "report.html").is_file()
    printed = capsys.readouterr().out
    assert "ewc, seed 1" in printed
    assert "report.html" in printed
