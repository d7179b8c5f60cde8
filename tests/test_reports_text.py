"""Reports of runs that answer in words: form and content told apart, other names, zero-shot."""

from __future__ import annotations

import json

import pytest
from report_runs import make_run, make_scores

from mcit.errors import DataError
from mcit.metrics import ScoreMatrix, SplitLoss, backward_transfer, name_as_published, split_loss
from mcit.reports.figures import draw_form, draw_views
from mcit.reports.figures.style import SCREEN, drawing_in
from mcit.reports.formats import Table, TableKind, format_csv
from mcit.reports.groups import group_runs
from mcit.reports.latex import format_latex
from mcit.reports.runs import read_run
from mcit.reports.summary import summarize_settings
from mcit.reports.tables import make_tables

TASKS = {"tasks": ("word", "yesno", "letter"), "chance": (0.0, 50.0, 25.0)}
ZERO_SHOT = {"score": [10.0, 40.0, 10.0], "normalized": [30.0, 50.0, 25.0], "obedience": [5.0] * 3}
# finetuning forgets the form of earlier answers, and some content
FREE = [[80.0], [20.0, 90.0], [10.0, 5.0, 70.0]]
FREE_CONTENT = [[84.0], [70.0, 90.0], [62.0, 73.0, 72.0]]
FREE_FORM = [[98.0], [30.0, 100.0], [14.0, 8.0, 99.0]]
HELD = [[80.0], [76.0, 86.0], [70.0, 80.0, 64.0]]
HELD_CONTENT = [[84.0], [80.0, 86.0], [76.0, 82.0, 66.0]]
HELD_FORM = [[98.0], [96.0, 100.0], [94.0, 98.0, 97.0]]


def run(method, rows, content, form, seed=1, **changes):
    views = {"normalized": content, "obedience": form}
    about = {"track": "instructions", "views": views, "zero_shot": ZERO_SHOT, **changes}
    return make_run(method, rows, seed, **TASKS, **about)


RUNS = [
    run("finetune", FREE, FREE_CONTENT, FREE_FORM),
    run("ewc_lo", HELD, HELD_CONTENT, HELD_FORM),
]


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {table.name: table for table in make_tables(group_runs(RUNS))}


def show(table: Table) -> dict[str, dict[str, str]]:
    """Return the texts of a table by row and column."""
    heads = [column.head for column in table.columns[1:]]
    return {row.label: dict(zip(heads, table.texts(row)[1:], strict=True)) for row in table.rows}


def test_a_loss_divides_into_content_and_form():
    matrix = ScoreMatrix(**TASKS, rows=FREE)
    content = ScoreMatrix(**TASKS, rows=FREE_CONTENT)
    loss = split_loss(matrix, content)
    # (80 - 10 + 90 - 5) / 2, and of content (84 - 62 + 90 - 73) / 2
    assert loss == SplitLoss(total=77.5, content=19.5)
    assert loss.form == 58.0
    first = ScoreMatrix(**TASKS, rows=FREE[:1])
    assert split_loss(first, first) is None


def test_the_names_of_other_papers_are_our_averages():
    # MLLM-DCL, LoRA: with five tasks, BWT (MFN - MFT) 5 / 4 as published
    matrix = ScoreMatrix(**TASKS, rows=FREE)
    names = name_as_published(matrix)
    assert names["MFT"] == pytest.approx((80 + 90 + 70) / 3)
    assert names["MFN"] == pytest.approx((10 + 5 + 70) / 3)
    assert names["MAA"] == pytest.approx((80 + 55 + 85 / 3) / 3)
    assert backward_transfer(matrix) == pytest.approx((names["MFN"] - names["MFT"]) * 3 / 2)


def test_a_comparison_has_other_names_zero_shot_content_and_form(tables):
    shown = show(tables["comparison"])
    assert list(shown) == ["chance", "zero-shot", "finetune", "ewc_lo"]
    assert shown["zero-shot"]["yesno"] == "40.00"
    assert shown["zero-shot"]["A_last (MFN)"] == "20.00"
    assert shown["zero-shot"]["content A_last"] == "35.00"
    free = shown["finetune"]
    assert free["A_last (MFN)"] == "28.33"
    assert free["A_avg (MAA)"] == "54.44"
    assert free["A_new (MFT)"] == "80.00"
    assert free["BWT"] == "-77.50"
    assert free["content A_last"] == "69.00"
    assert free["form A_last"] == "40.33"
    assert "$A_{\\mathrm{last}}$ (MFN)" in format_latex(tables["comparison"])
    assert "A_last (MFN)" in format_csv(tables["comparison"]).splitlines()[0]


def test_a_table_divides_what_was_lost(tables):
    assert tables["form"].kind is TableKind.FORM
    shown = show(tables["form"])
    assert shown["finetune"] == {
        "n": "1",
        "lost": "77.50",
        "content lost": "19.50",
        "form lost": "58.00",
        "form learned": "99.00",
        "form kept": "11.00",
    }
    assert shown["ewc_lo"]["content lost"] == "6.00"
    marked = [[cell.best for cell in row.cells] for row in tables["form"].rows]
    assert marked == [[False] * 6, [False, True, True, True, False, True]]


def test_every_method_has_its_matrices_of_content_and_form(tables):
    form = show(tables["matrix-finetune-form"])
    assert form["zero-shot"]["word"] == "5.00"
    # of 98 percent of answers in the asked form 14 are left
    assert form["letter"]["word"] == "14.00 (85.71)"
    content = show(tables["matrix-finetune-content"])
    assert content["letter"]["word"] == "62.00 (26.19)"
    assert content["zero-shot"]["A_t"] == "35.00"


def test_models_that_differ_have_a_zero_shot_row_each():
    other = {name: [1.0, 2.0, 3.0] for name in ZERO_SHOT}
    runs = [*RUNS, run("lwf", HELD, HELD_CONTENT, HELD_FORM, zero_shot=other)]
    shown = show(make_tables(group_runs(runs))[0])
    assert shown["zero-shot of finetune"]["word"] == "10.00"
    assert shown["zero-shot of lwf"]["word"] == "1.00"


def test_sentences_tell_form_from_content():
    remarks = summarize_settings(group_runs(RUNS))[0].remarks
    assert (
        "finetune lost 77.5 points on earlier tasks: 19.5 of content, and 58.0 because right "
        "answers had the wrong form; answers in the asked form fell from 99.0 % to 11.0 %."
    ) in remarks
    assert (
        "ewc_lo lost 8.0 points, 6.0 of content and 2.0 of form (99.0 % to 96.0 % in the asked "
        "form)."
    ) in remarks
    assert "The pretrained model scored 20.0 % before it learned any task." in remarks


def test_a_bar_shows_what_is_right_what_has_the_wrong_form_and_what_is_gone():
    groups = group_runs(RUNS)
    with drawing_in(SCREEN):
        form = draw_form(groups, SCREEN)
        views = draw_views(groups, SCREEN)
    bars = form.figure.axes[0].patches
    # the best method comes first: kept, known in the wrong form, gone
    widths = [bar.get_width() for bar in bars]
    assert widths == pytest.approx([75, 4, 6, 7.5, 60, 19.5])
    panels = views.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["score, $A_t$", "content", "form"]
    lines = {line.get_label(): line for line in panels[2].containers}
    assert lines["finetune"].lines[0].get_ydata().tolist() == pytest.approx([98, 65, 121 / 3])


def test_runs_of_other_tracks_have_none_of_it():
    runs = [make_run(method, FREE, **TASKS) for method in ("finetune", "ewc_lo")]
    groups = group_runs(runs)
    tables = make_tables(groups)
    assert TableKind.FORM not in [table.kind for table in tables]
    assert [column.head for column in tables[0].columns][-3:] == ["A_last", "A_avg", "A_new"]
    assert draw_form(groups, SCREEN) is None
    assert draw_views(groups, SCREEN) is None


def test_scores_that_were_changed_are_refused(tmp_path):
    scores = make_scores("ewc", HELD, **TASKS, track="instructions", zero_shot={"score": [1.0]})
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(DataError, match=r"'zero_shot.score' must have 3 items, found 1"):
        read_run(tmp_path)
