"""Studies: what a plan runs, and what raw scores say, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from report_runs import make_run

from mcit.cli import main
from mcit.errors import ConfigError, DataError
from mcit.metrics import FORM
from mcit.reports.runs import TEXT
from mcit.studies.analysis import Interval, choose_strengths, lead, pair
from mcit.studies.plan import Point, StudyPlan, read_plan
from mcit.studies.records import (
    Record,
    Scores,
    find_disagreements,
    make_record,
    read_records,
    write_records,
)
from mcit.studies.tables import (
    Study,
    make_tables,
    tabulate_best,
    tabulate_best_pairs,
    tabulate_leads,
)

PLAN = """
title: Two methods
order: [vqa, nlvr2]
minutes: 3
development: [11, 12]
seeds: [1, 2, 3]
levels: [0.1, 1]
entries:
  finetune:
  ewc: [10, 100]
  mas: {strengths: [1], set: [method.decay=1]}
  lwf: {strengths: [1, 3], levels: false}
"""


@pytest.fixture
def plan(tmp_path) -> StudyPlan:
    path = tmp_path / "study-two.yaml"
    path.write_text(PLAN, encoding="utf-8")
    return read_plan(str(path))


def make(plan: StudyPlan, point: Point, learned: float, kept: float, seconds: float = 60) -> Record:
    """A run of two tasks: A_new is `learned`, the first task ends at `kept`."""
    last = (kept + learned) / 2
    scores = Scores(rows=((learned,), (kept, learned)), seen=(learned, last), old=(kept,))
    return Record(
        entry=point.entry,
        seed=point.seed,
        plan=plan.digest(point.entry),
        scores={"head": scores},
        strength=point.strength,
        stiffness=point.stiffness,
        seconds=seconds,
    )


def gather(plan: StudyPlan, *made: tuple[Point, float, float]) -> dict[Point, Record]:
    return {point: make(plan, point, learned, kept) for point, learned, kept in made}


# --- the plan


def test_a_control_can_be_run_at_the_levels_alone(tmp_path):
    control = {"method": "ewc", "set": ["method.estimator.shuffle=true"], "levels": True}
    changed = {**yaml.safe_load(PLAN), "entries": {"ewc shuffled": control}}
    path = tmp_path / "study-control.yaml"
    path.write_text(yaml.safe_dump(changed), encoding="utf-8")
    plan = read_plan(str(path))
    assert plan.count() == {"development": 0, "best": 3, "levels": 6}
    point = plan.list_levels()[0]
    assert point.name == "ewc-shuffled@auto0.1-seed1"
    assert plan.given(point)["method"] == "ewc"
    assert plan.assignments(point)[0] == "method.estimator.shuffle=true"


def test_a_plan_lists_its_runs(plan):
    assert plan.count() == {"development": 10, "best": 12, "levels": 12}
    assert len(plan.list_best({"ewc": 10.0})) == 6
    points = plan.list_levels()
    assert {point.entry for point in points} == {"ewc", "mas"}
    assert plan.assignments(points[0]) == ["method.strength=auto", "method.stiffness=0.1"]
    mas = Point("mas", 11, strength=1.0)
    assert plan.assignments(mas) == ["method.decay=1", "method.strength=1.0"]
    assert mas.name == "mas@1-seed11"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seeds: [1, 12]", "'development' and 'seeds' share 12"),
        ("development: []", "'development' is empty, and the strength of 'ewc' is chosen"),
        ("levels: [0]", "'levels' holds numbers above 0, found 0"),
        ("levels: [1, 1]", "'levels' lists a number twice"),
        ("minutes: 0", "'minutes' must be above 0"),
        ("entries: {ewc: [-1]}", "'strengths' holds numbers from 0, found -1"),
        ("sedes: [1]", "did you mean 'seeds'"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_with_its_name(tmp_path, line, words):
    changed = {**yaml.safe_load(PLAN), **yaml.safe_load(line)}
    path = tmp_path / "study-wrong.yaml"
    path.write_text(yaml.safe_dump(changed), encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as error:
        read_plan(str(path))
    assert "study-wrong.yaml" in str(error.value)


def test_the_plans_that_ship_are_plans():
    folder = Path(__file__).parent.parent / "configs"
    for path in folder.glob("study-*.yaml"):
        plan = read_plan(str(path))
        assert min(plan.count().values()) > 0
        read_records(plan.raw, plan)


# --- the choice of strengths


def test_the_best_mean_on_development_seeds_is_chosen_and_other_seeds_do_not_count(plan):
    made = []
    for strength, lasts in ((10.0, (60, 80)), (100.0, (71, 71))):
        for seed, last in zip((11, 12), lasts, strict=True):
            made.append((Point("ewc", seed, strength=strength), last, last))
    # reported seeds say the opposite
    made.append((Point("ewc", 1, strength=10.0), 99, 99))
    choice = choose_strengths(plan, gather(plan, *made))["ewc"]
    assert choice.strength == 100.0
    assert choice.means == {10.0: 70.0, 100.0: 71.0}
    assert choice.at_edge


def test_of_equal_strengths_the_smaller_is_chosen(plan):
    made = [
        (Point("ewc", seed, strength=strength), 70, 70)
        for seed in (11, 12)
        for strength in (10.0, 100.0)
    ]
    assert choose_strengths(plan, gather(plan, *made))["ewc"].strength == 10.0


def test_nothing_is_chosen_before_all_development_runs_are_there(plan):
    made = [(Point("ewc", 11, strength=10.0), 70, 70), (Point("ewc", 12, strength=10.0), 70, 70)]
    assert choose_strengths(plan, gather(plan, *made)) == {}


# --- curves


def test_the_area_between_two_straight_curves():
    # 80 - x / 2 and 70 - x / 2 over 0..20, and half of it in common
    assert lead([(0, 80), (20, 70)], [(0, 70), (20, 60)]) == pytest.approx(10.0)
    assert lead([(0, 80), (20, 70)], [(10, 65), (30, 55)]) == pytest.approx(10.0)


def test_curves_that_cross_take_from_each_other():
    # from +10 to -10: two triangles of 25 each, of opposite sign
    assert lead([(0, 10), (10, 0)], [(0, 0), (10, 10)]) == pytest.approx(0.0)


def test_the_area_follows_every_corner():
    # a triangle of height 10 over a base of 10, and nothing over the other 10: 50 / 20
    roof = [(0, 0), (5, 10), (10, 0), (20, 0)]
    assert lead(roof, [(0, 0), (20, 0)]) == pytest.approx(2.5)
    assert lead([(0, 0), (20, 0)], roof) == pytest.approx(-2.5)


def test_points_are_joined_by_what_was_learned_and_equals_count_as_their_mean():
    assert lead([(20, 70), (0, 80)], [(0, 70), (20, 60)]) == pytest.approx(10.0)
    assert lead([(0, 9), (0, 11), (2, 10)], [(0, 0), (2, 0)]) == pytest.approx(10.0)


def test_curves_that_share_no_width_have_no_area():
    assert lead([(0, 1), (1, 1)], [(2, 1), (3, 1)]) is None
    assert lead([(0, 1), (1, 1)], [(1, 1), (3, 1)]) is None


def test_an_interval_is_student_s():
    # mean 2, deviation 1, three seeds: t(0.975, 2) = 4.302653 by its table
    found = pair([1.0, 2.0, 3.0])
    reach = 4.302653 / math.sqrt(3)
    assert found.mean == 2.0
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert pair([5.0, 5.0]) == Interval(5.0, 5.0, 5.0, 2)
    assert pair([5.0]) is None


# --- tables


def test_the_best_are_ranked_with_their_strengths_and_paired_by_seed(plan):
    made = [(Point("finetune", seed), 80, 40 + seed) for seed in (1, 2, 3)]
    for seed in (11, 12):
        made.append((Point("ewc", seed, strength=10.0), 70, 70))
        made.append((Point("ewc", seed, strength=100.0), 60, 60))
    # A_last is 70, 71, 72 and that of finetune 60.5, 61, 61.5: differences 9.5, 10, 10.5
    made += [(Point("ewc", seed, strength=10.0), 80, 58 + 2 * seed) for seed in (1, 2, 3)]
    study = Study.of(plan, gather(plan, *made))
    table = tabulate_best(study)
    assert [row.label for row in table.rows] == ["ewc", "finetune"]
    assert table.texts(table.rows[0]) == [
        "ewc",
        "10",
        "3",
        "71.00 ± 1.00",
        "80.00 ± 0.00",
        "62.00 ± 2.00",
    ]
    (row,) = tabulate_best_pairs(study).rows
    count, mean, low, high = (cell.mean for cell in row.cells)
    reach = 4.302653 * 0.5 / math.sqrt(3)
    assert (row.label, count) == ("ewc vs finetune", 3)
    assert (mean, low, high) == pytest.approx((10, 10 - reach, 10 + reach), abs=1e-5)


def test_an_upper_bound_is_compared_with_and_never_the_best(tmp_path):
    entries = {"finetune": None, "lwf": None, "joint": None}
    path = tmp_path / "study-bound.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(PLAN), "entries": entries}), encoding="utf-8")
    bounded = read_plan(str(path))
    made = []
    for seed in (1, 2, 3):
        made.append((Point("finetune", seed), 80, 40))
        made.append((Point("lwf", seed), 80, 60 + seed))
        made.append((Point("joint", seed), 90, 90))
    rows = tabulate_best_pairs(Study.of(bounded, gather(bounded, *made))).rows
    assert [row.label for row in rows] == ["lwf vs joint", "lwf vs finetune"]


def test_the_lead_at_equal_stiffness_is_paired_by_seed(plan):
    made = []
    for seed in (1, 2):
        # finetuning is the first point of both curves
        made.append((Point("finetune", seed), 90, 50))
        for level, learned in ((0.1, 80), (1.0, 70)):
            made.append((Point("mas", seed, stiffness=level), learned, 50))
            made.append((Point("ewc", seed, stiffness=level), learned, 50 + 10 * seed))
    # seed 1: a triangle of 10 by 10 and a square beside it, over 20: 7.5; seed 2 twice that
    (row,) = tabulate_leads(Study.of(plan, gather(plan, *made))).rows
    count, mean, low, _ = (cell.mean for cell in row.cells)
    # half of the difference is the deviation of the mean of two: t(0.975, 1) = 12.706205
    assert (row.label, count, mean) == ("ewc vs mas", 2, pytest.approx(11.25))
    assert low == pytest.approx(11.25 - 12.706205 * 3.75, abs=1e-4)


def test_a_study_without_records_has_no_tables(plan):
    assert make_tables(Study.of(plan, {})) == []


# --- raw scores


def test_records_are_read_as_they_were_written(plan):
    made = [(Point("ewc", 1, stiffness=0.1), 80.1234, 50), (Point("finetune", 2), 81, 51)]
    records = gather(plan, *made)
    write_records(plan.raw, records)
    assert read_records(plan.raw, plan) == records
    assert len(plan.raw.read_text(encoding="utf-8").splitlines()) == 2


def test_a_run_becomes_a_record(plan):
    tasks = {"tasks": ("vqa", "nlvr2"), "chance": (0.0, 50.0)}
    run = make_run("ewc", [[80.0], [60.0, 90.00004]], **tasks)
    record = make_record(run, Point("ewc", 1, strength=10.0), plan)
    scores = record.scores["head"]
    assert scores == Scores(((80.0,), (60.0, 90.0)), (80.0, 75.0), (60.0,))
    assert (scores.last, scores.learned, scores.kept) == (75.0, 85.0, 60.0)
    assert record.seconds == 70.0


def test_a_record_of_answers_in_words_has_the_shares_in_the_asked_form(plan):
    form = [[100.0], [25.0, 100.0]]
    run = make_run("ewc", [[80.0], [60.0, 90.0]], views={FORM: form}, track=TEXT)
    point = Point("ewc", 1, strength=10.0)
    record = make_record(run, point, plan)
    scores = record.scores["head"]
    assert (scores.form, scores.form_kept) == (((100.0,), (25.0, 100.0)), 25.0)
    write_records(plan.raw, {point: record})
    assert read_records(plan.raw, plan) == {point: record}


def test_the_table_of_answers_in_words_has_a_column_for_form(plan):
    record = make(plan, Point("finetune", 1), 80, 40)
    worded = replace(record.scores["head"], form=((100.0,), (50.0, 100.0)))
    table = tabulate_best(Study.of(plan, {record.point: replace(record, scores={"head": worded})}))
    assert [column.head for column in table.columns][-1] == "form kept"
    assert table.texts(table.rows[0])[-1] == "50.00"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"entry": "si"}, "is of 'si', which"),
        ({"plan": "other"}, "had other settings for 'finetune' when it ran"),
        ({"seed": "one"}, "is not a record of a run"),
        ({"scores": {"head": {"rows": [[1], [2]], "seen": [1, 2], "old": [1]}}}, "'rows' must"),
        ({}, "line 2 repeats finetune-seed1"),
    ],
)
def test_a_line_that_does_not_belong_is_refused(plan, change, words):
    write_records(plan.raw, gather(plan, (Point("finetune", 1), 80, 50)))
    line = json.loads(plan.raw.read_text(encoding="utf-8"))
    changed = json.dumps({**line, **change})
    plan.raw.write_text(f"{json.dumps(line)}\n{changed}\n", encoding="utf-8")
    with pytest.raises(DataError, match=words):
        read_records(plan.raw, plan)


def test_runs_that_are_repeated_agree_or_differ(plan):
    same, other = Point("finetune", 1), Point("finetune", 2)
    expected = gather(plan, (same, 80, 50), (other, 80, 50), (Point("finetune", 3), 80, 50))
    found = gather(plan, (same, 80.004, 50), (other, 80.02, 50))
    assert find_disagreements(expected, found) == (["finetune-seed1"], ["finetune-seed2"])


# --- the command


def test_a_dry_run_prints_runs_and_cost(plan, capsys):
    assert main(["study", str(plan.path), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "34 runs, 34 missing: about 1.7 hours" in printed
    assert "3.0 minutes a run, as the plan says" in printed
    write_records(plan.raw, {Point("finetune", 1): make(plan, Point("finetune", 1), 80, 50, 120)})
    main(["study", str(plan.path), "--dry-run"])
    printed = capsys.readouterr().out
    assert "best           12 runs, 1 recorded" in printed
    assert "33 missing: about 1.1 hours" in printed
    assert "2.0 minutes a run, as 1 recorded runs took" in printed


def test_tables_and_figure_are_made_from_raw_scores_alone(plan, tmp_path, capsys):
    made = []
    for seed in (1, 2, 3):
        made.append((Point("finetune", seed), 90, 50))
        for level, learned in ((0.1, 80), (1.0, 70)):
            made.append((Point("mas", seed, stiffness=level), learned, 50))
            made.append((Point("ewc", seed, stiffness=level), learned, 60 + seed))
    write_records(plan.raw, gather(plan, *made))
    output = tmp_path / "out"
    assert main(["study", str(plan.path), "--output", str(output)]) == 0
    page = (output / "study.md").read_text(encoding="utf-8")
    assert "## Between the curves of kept over learned" in page
    # a triangle and a square over 20, of heights 11, 12 and 13: three quarters of them
    assert "| ewc vs mas | 3 | +9.00 |" in page
    assert (output / "kept-over-learned.svg").is_file()
    assert "ewc vs mas" in capsys.readouterr().out


def test_a_study_cannot_be_run_and_only_planned(plan, capsys):
    assert main(["study", str(plan.path), "--dry-run", "--run"]) == 2
    assert "--run makes runs and --dry-run none" in capsys.readouterr().err


def test_a_study_that_ships_is_shown_by_reproduce(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "study-shapes"]) == 0
    printed = capsys.readouterr().out
    assert "Importance on generated shapes" in printed
    assert "of 0 runs made here, 0 agree and 0 differ" in printed
    assert main(["reproduce", "study", "--record"]) == 2
    assert "--record is for tables; a study is repeated whole" in capsys.readouterr().err


def test_runs_that_another_program_made_are_found_to_differ(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study-here.yaml"
    path.write_text(PLAN, encoding="utf-8")
    here = read_plan(str(path))
    write_records(here.raw, gather(here, (Point("finetune", 1), 80, 50)))
    output = tmp_path / "again"
    output.mkdir()
    write_records(output / here.raw.name, gather(here, (Point("finetune", 1), 80, 49)))
    assert main(["reproduce", "study-here.yaml", "--output", str(output)]) == 1
    assert "1 differ\n  differs: finetune-seed1" in capsys.readouterr().out
