"""Recorded runs next to a new one: shown if nothing but method and seed differs, and never else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_scores

import mcit
from mcit.commands.run import show_table
from mcit.config.files import load_config, to_yaml
from mcit.embedded.benchmark import DEFAULT_SIZES, VERSION
from mcit.files import write_json
from mcit.reports.runs import Run, read_run
from mcit.reproduce.baselines import compare_with_recorded, comparison_key
from mcit.reproduce.cells import Cell, find_runs, make_cells, record
from mcit.reproduce.expected import ExpectedResults, read_expected
from mcit.reproduce.recorded import read_kept
from mcit.runner.plan import Plan, resolve

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
ORDER = ",".join(TASKS)
BENCHMARK = {"version": VERSION, "seed": 0, **dataclasses.asdict(DEFAULT_SIZES)}
TABLE = read_expected("baselines")


def plan_run(method: str, **options: Any) -> Plan:
    settings = options.pop("set", ())
    return resolve(load_config(None, {"order": ORDER, "method": method, **options}, settings))


def write_run(folder: Path, plan: Plan, last: float, **about: Any) -> Run:
    """Write the folder of a run on the embedded benchmark that ends with `last` on every task."""
    rows = [[90.0] * count for count in range(1, len(TASKS))]
    chance = [task.chance for task in plan.tasks]
    scores = make_scores(
        plan.config.method.name,
        [*rows, [last] * len(TASKS)],
        list(TASKS),
        chance,
        seed=plan.config.seed,
        embedded=True,
    )
    provenance = {
        "mcit": mcit.__version__,
        "experiment": plan.experiment(),
        "embedded": True,
        "benchmark": BENCHMARK,
        "data": dict.fromkeys(TASKS, "a digest"),
        "threads": 1,
        **about,
    }
    folder.mkdir(parents=True)
    write_json(folder / "scores.json", scores)
    write_json(folder / "provenance.json", provenance)
    (folder / "config.yaml").write_text(to_yaml(plan.config), encoding="utf-8")
    return read_run(folder)


def make_recorded(folder: Path) -> list[Cell]:
    """Return the cells of the vision-language setting with a run of 55 percent and one of 85."""
    cells = make_cells(TABLE, folder, settings=["vision-language"])
    for cell, last in zip(cells, (55.0, 85.0), strict=True):
        write_run(folder / cell.method, cell.jobs[0].plan, last)
    return find_runs(cells, [folder])


@pytest.fixture
def recorded(tmp_path, monkeypatch) -> Path:
    """A file that `mcit reproduce baselines --record` would have written."""
    path = tmp_path / "baselines.json"
    cells = make_recorded(tmp_path / "recorded")
    write_json(path, record(dataclasses.replace(TABLE, seeds=(1,)), cells))
    monkeypatch.setattr(ExpectedResults, "path", property(lambda table: path))
    return path


def test_a_new_run_stands_above_the_recorded_ones(recorded, tmp_path):
    run = write_run(tmp_path / "new", plan_run("ewc_dr"), 70.0)
    table = compare_with_recorded(run)
    assert [row.label for row in table.rows] == [
        "chance",
        "ewc_dr",
        "finetune (recorded)",
        "joint (recorded)",
    ]
    place = [column.name for column in table.columns].index("A_last") - 1
    assert [row.cells[place].mean for row in table.rows[1:]] == [70.0, 55.0, 85.0]
    (note,) = table.notes
    assert f"made by mcit {mcit.__version__} with seed 1" in note.text
    assert "mcit reproduce baselines" in note.text


def test_the_end_of_a_run_prints_them(recorded, tmp_path, capsys):
    write_run(tmp_path / "new", plan_run("ewc_dr"), 70.0)
    show_table(tmp_path / "new")
    printed = capsys.readouterr().out
    assert "next to recorded runs" in printed
    for word in ("finetune (recorded)", "joint (recorded)", "70.00", "55.00", "85.00"):
        assert word in printed


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"seed": 7}, {}),
        ({"output": "elsewhere", "tracker": "tensorboard"}, {}),
        # image files differ in size from one Pillow to the next
        ({}, {"data": dict.fromkeys(TASKS, "another digest")}),
    ],
)
def test_seed_place_and_compression_of_images_may_differ(recorded, tmp_path, options, about):
    run = write_run(tmp_path / "new", plan_run("ewc", **options), 70.0, **about)
    assert compare_with_recorded(run) is not None


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({}, {"mcit": "0.0.1"}),
        ({}, {"benchmark": {**BENCHMARK, "seed": 1}}),
        ({}, {"benchmark": None}),
        ({"set": ["tasks.vqa.recipe.epochs=1"]}, {}),
        ({"set": ["training.clip_norm=2"]}, {}),
        ({"set": ["model.lora.rank=4"]}, {}),
        ({"order": "nlvr2,vqa,snli-ve,vcr"}, {}),
    ],
)
def test_what_is_not_comparable_is_not_shown(recorded, tmp_path, capsys, options, about):
    run = write_run(tmp_path / "new", plan_run("ewc", **options), 70.0, **about)
    assert compare_with_recorded(run) is None
    show_table(tmp_path / "new")
    printed = capsys.readouterr().out
    assert "A_last 70.00" in printed
    assert "recorded" not in printed


def test_an_unfinished_run_is_compared_with_nothing(recorded, tmp_path):
    run = write_run(tmp_path / "new", plan_run("ewc"), 70.0)
    matrix = dataclasses.replace(run.matrix, rows=run.matrix.rows[:2])
    assert compare_with_recorded(dataclasses.replace(run, matrix=matrix)) is None


def test_the_file_names_no_place_of_the_machine(recorded, tmp_path):
    assert str(tmp_path) not in recorded.read_text(encoding="utf-8")


# --- the file that ships


def test_what_ships_was_recorded_by_this_version_with_these_settings():
    """Whoever changes a recipe, a preset or the benchmark records it again."""
    shipped = json.loads(TABLE.path.read_text(encoding="utf-8"))
    assert shipped["mcit"] == mcit.__version__
    cells = make_cells(TABLE, Path("runs"))
    assert {(cell.setting, cell.method) for cell in cells} == {
        (setting, method) for setting, rows in shipped["cells"].items() for method in rows
    }
    for cell in cells:
        plan = cell.jobs[0].plan
        provenance = {"mcit": mcit.__version__, "experiment": plan.experiment()}
        if plan.embedded:
            provenance["benchmark"] = BENCHMARK
        else:
            provenance["data"] = plan.describe()["data"]
        found = shipped["cells"][cell.setting][cell.method]
        assert found["key"] == comparison_key(provenance), f"{cell.setting}, {cell.method}"
        (run,) = (read_kept(scores, TABLE.path) for scores in found["runs"])
        assert (run.method, run.seed, run.complete) == (cell.method, 1, True)
        assert round(run.metrics["A_last"], 2) == found["A_last"]


def test_joint_is_above_finetune_wherever_both_are_recorded():
    shipped = json.loads(TABLE.path.read_text(encoding="utf-8"))
    for rows in shipped["cells"].values():
        assert rows["joint"]["A_last"] > rows["finetune"]["A_last"] + 10
