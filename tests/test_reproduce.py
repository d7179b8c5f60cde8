"""Expected results: every number of a table has a command, a verdict and a cost."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from report_runs import make_scores

from mcit.arguments import Parser
from mcit.cli import main
from mcit.commands.reproduce import list_commands
from mcit.commands.run import add_options, read_config
from mcit.config.files import to_yaml
from mcit.errors import ConfigError
from mcit.reports.runs import read_run
from mcit.reproduce import expected
from mcit.reproduce.cells import (
    Cell,
    find_runs,
    make_cells,
    read_metric,
    record,
    tabulate,
)
from mcit.reproduce.cost import count_examples, describe_cost, estimate_hours
from mcit.reproduce.expected import find_place, list_tables, read_expected
from mcit.runner.plan import resolve

PAPER = json.loads(expected.PAPER.read_text(encoding="utf-8"))
EFCIL = {
    "cifar100": "cifar100",
    "tiny-imagenet": "tiny_imagenet",
    "imagenet-subset": "imagenet_subset",
}


def cells_of(name: str, output: Path = Path("runs"), **chosen: object) -> list[Cell]:
    return make_cells(read_expected(name), output, **chosen)


def write_run(cell: Cell, number: int, folder: Path, a_last: float, **changes: object) -> None:
    """Write a complete run of a cell's job, whose A_avg is 1 above its A_last, to any folder."""
    job = cell.jobs[number]
    tasks = [task.name for task in job.plan.tasks]
    before = a_last + 1 + 1 / (len(tasks) - 1)
    rows = [[before] * (count + 1) for count in range(len(tasks) - 1)]
    rows.append([a_last] * len(tasks))
    scores = make_scores(
        job.method,
        rows,
        tasks,
        [task.chance for task in job.plan.tasks],
        track=job.plan.track.value,
        seed=job.seed,
        **changes,
    )
    provenance = {"mcit": "0.2.0", "threads": 1, "experiment": job.plan.experiment()}
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (folder / "config.yaml").write_text(to_yaml(job.plan.config), encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")


# --- what the tables say


def test_the_papers_tables_and_the_small_ones_are_there():
    text = {"coin", "ucit", "mllm-dcl"}
    others = {"supplement-a", "supplement-b", "exemplar-free"}
    own = {"baselines", "embedded", "mini", "shapes"}
    assert set(list_tables()) == {*EFCIL, *text, *others, *own, "climb"}
    with pytest.raises(ConfigError, match="no table 'cifar10'; did you mean 'cifar100'"):
        read_expected("cifar10")


@pytest.mark.parametrize("name", EFCIL)
def test_every_number_of_the_class_incremental_tables_is_in_a_cell(name):
    """Six settings, five methods, two numbers each; found by another way than the table's."""
    cells = cells_of(name)
    assert len(cells) == 30
    for cell in cells:
        kind, length = cell.setting.split("-")
        split = {"bigstart": "big_start", "equal": "equal_split"}[kind]
        assert cell.expected == PAPER["efcil"][EFCIL[name]][cell.method][split][length]
        assert [job.seed for job in cell.jobs] == [1, 2, 3]
        tasks = cell.jobs[0].plan.tasks
        assert len(tasks) == int(length) + (kind == "bigstart")
        assert tasks[-1].span.total == {"tiny-imagenet": 200}.get(name, 100)


def test_every_number_of_the_supplement_is_in_a_cell():
    """But MUC's, whose outside images are not in the data."""
    first = PAPER["efcil_cifar100_big_start_A_avg_other_methods"]
    table = read_expected("supplement-a")
    assert table.methods.keys() == first.keys() - {"T", "muc"}
    for place, length in enumerate(first["T"]):
        for method in table.methods:
            assert table.find_numbers(f"bigstart-{length}", method) == first[method][place]
    second = PAPER["efcil_cifar100_seed1993_A_avg"]
    table = read_expected("supplement-b")
    for place, length in enumerate(second["T"]):
        for method in table.methods:
            for kind, split in (("bigstart", "big_start"), ("equal", "equal_split")):
                found = table.find_numbers(f"{kind}-{length}", method)
                assert found == second[split][method][place]
    assert find_place(61.5, table.metrics["A_avg"]) == 61.5


def test_published_rows_of_exemplar_free_methods_say_which_paper_prints_them():
    table = read_expected("exemplar-free")
    numbers = table.read_numbers()
    for setting in table.settings:
        assert numbers[setting].keys() <= table.methods.keys()
        assert all(row["source"] for row in numbers[setting].values())
    assert table.published
    assert table.find_numbers("equal-10", "dpcr")["A_last"] == 50.24


def test_every_number_of_the_vision_language_table_is_in_a_cell():
    for cell in cells_of("climb"):
        numbers = PAPER["mcit"][cell.method]
        order = PAPER["mcit"]["order"]
        wanted = {"A_last": numbers["A_T"]}
        for after, row in zip(order, numbers["a"], strict=True):
            for task, score in zip(order, row, strict=False):
                wanted[f"a[{after},{task}]"] = score
        assert cell.expected == wanted


@pytest.mark.parametrize("name", list_tables())
def test_every_cell_has_a_command_that_mcit_run_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("DIR").mkdir()
    parser = Parser()
    add_options(parser)
    for cell in cells_of(name, seeds=(1,)):
        (command,) = list_commands([cell])
        assert command.startswith("mcit run ")
        (job,) = cell.jobs
        config = read_config(parser.parse_args(job.words))
        assert resolve(config).config == job.plan.config
        assert job.seed == 1
        assert ("--data-root DIR" in command) == (read_expected(name).data is not None)


def test_strengths_are_those_of_the_release():
    cells = cells_of("cifar100", settings=["equal-10"], methods=["ewc", "ewc_dr"])
    methods = [cell.jobs[0].plan.method for cell in cells]
    assert [method.strength for method in methods] == [1000, 10000]
    for method in methods:
        estimator = method.estimator
        assert (estimator.unit, estimator.mode, estimator.cap) == ("batch", "train", 1e-4)


def test_the_tolerance_is_above_what_the_paper_differs_from_itself():
    table = read_expected("cifar100")
    alone = PAPER["efcil_cifar100_seed1993_A_avg"]
    differences = []
    for split in ("big_start", "equal_split"):
        for method in ("ewc", "ewc_dr"):
            means = PAPER["efcil"]["cifar100"][method][split]
            for length, score in zip(alone["T"], alone[split][method], strict=True):
                differences.append(abs(means[str(length)]["A_avg"] - score))
    assert 3.5 < max(differences) < table.tolerance
    assert f"{max(differences):.1f} points" in table.tolerance_basis


# --- cost


def test_the_cost_counts_every_image_of_every_epoch():
    """Half of the 50,000 images of CIFAR-100 200 times, the other half, in 10 tasks, 180 times."""
    table = read_expected("cifar100")
    (cell,) = cells_of("cifar100", settings=["bigstart-10"], methods=["ewc"])
    assert count_examples(table.cost, cell) == 200 * 25_000 + 180 * 25_000
    assert estimate_hours(table, cell, 10) == pytest.approx(9.5e6 * 3.33e9 / 10e12 / 3600)
    assert estimate_hours(table, cell, 20) == pytest.approx(estimate_hours(table, cell, 10) / 2)
    text = describe_cost(table, [cell], 10)
    assert text.startswith("3 runs, 3 of them still to be made; about 2.64 GPU-hours in all")
    assert "an estimate, not a measurement" in text


@pytest.mark.parametrize("name", list_tables())
def test_the_cost_of_every_table_is_described(name):
    """Also of those that were published without operations to count."""
    cells = cells_of(name)
    text = describe_cost(read_expected(name), cells, 10)
    assert text.startswith(f"{sum(len(cell.jobs) for cell in cells)} runs")


def test_the_cost_of_the_vision_language_table_counts_passes():
    table = read_expected("climb")
    cell = cells_of("climb")[0]
    passes = {
        "vqa": 443_757 * 10,
        "nlvr2": 2 * 86_373 * 10,
        "snli-ve": 529_527 * 5,
        "vcr": 4 * 212_923 * 10,
    }
    assert count_examples(table.cost, cell) == sum(passes.values())


# --- what was measured


def test_runs_are_found_by_what_they_are_and_not_by_their_folder(tmp_path):
    (cell,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc_dr"], data_root="here")
    (other,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc"], data_root="there")
    assert [found.runs for found in find_runs([cell], [tmp_path])] == [()]
    write_run(cell, 0, tmp_path / "anything", a_last=48.0)
    # the name of the folder says one thing, its settings another
    write_run(other, 1, tmp_path / "equal-5-ewc_dr-seed2", a_last=10.0)
    (found,) = find_runs([cell], [tmp_path])
    assert [run.folder.name for run in found.runs] == ["anything"]
    assert found.measured("A_last") == pytest.approx(48.0)
    assert found.missing == list(cell.jobs[1:])


def test_data_may_be_in_another_folder(tmp_path):
    (here,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc_dr"], data_root="here")
    (there,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc_dr"], data_root="there")
    write_run(here, 0, tmp_path / "run", a_last=48.0)
    (found,) = find_runs([there], [tmp_path])
    assert len(found.runs) == 1


def test_a_run_that_is_not_complete_does_not_count(tmp_path):
    (cell,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc_dr"])
    write_run(cell, 0, tmp_path / "run", a_last=48.0)
    path = tmp_path / "run" / "scores.json"
    scores = json.loads(path.read_text())
    for entries in (scores["matrix"], scores["seen"], scores["metrics"]["A_old"]):
        entries.pop()
    path.write_text(json.dumps(scores))
    assert find_runs([cell], [tmp_path])[0].runs == ()


def test_a_run_that_does_not_say_what_it_is_belongs_to_no_cell(tmp_path):
    (cell,) = cells_of("mini", settings=["equal-5"], methods=["ewc"])
    write_run(cell, 0, tmp_path / "run", a_last=20.0)
    (tmp_path / "run" / "provenance.json").unlink()
    assert find_runs([cell], [tmp_path])[0].runs == ()


def test_a_number_is_met_within_the_tolerance(tmp_path):
    table = read_expected("cifar100")
    # the paper: 46.89 and 61.47
    (cell,) = cells_of("cifar100", settings=["equal-5"], methods=["ewc_dr"])
    assert cell.judge("A_last", table.tolerance) == "not run"
    write_run(cell, 0, tmp_path / "1", a_last=48.0)
    write_run(cell, 1, tmp_path / "2", a_last=50.0)
    (cell,) = find_runs([cell], [tmp_path])
    assert cell.measured("A_last") == pytest.approx(49.0)
    assert cell.judge("A_last", table.tolerance) == "agrees"
    assert cell.judge("A_avg", table.tolerance) == "differs"
    shown = tabulate(table, [cell])
    rows = [shown.texts(row) for row in shown.rows]
    numbers = ["46.89", "49.00", "+2.11"]
    assert rows[0] == ["equal-5", "ewc_dr", "A_last", *numbers, "2 of 3", "agrees"]
    assert rows[1][-1] == "DIFFERS"
    notes = "\n".join(note.text for note in shown.notes)
    for words in (
        "1 agrees, 1 differs",
        "tolerance 4 points",
        "seed 1993",
        "170",
        "strength 10000",
    ):
        assert words in notes


def test_a_cell_of_a_matrix_is_a_metric(tmp_path):
    (cell,) = cells_of("climb", methods=["ewc"], data_root="DIR")
    write_run(cell, 0, tmp_path / "run", a_last=40.0)
    (cell,) = find_runs([cell], [tmp_path])
    assert read_metric(cell.runs[0], "a[vcr,vqa]") == 40.0
    assert read_metric(cell.runs[0], "a[nlvr2,nlvr2]") == pytest.approx(41 + 1 / 3)
    assert read_metric(cell.runs[0], "A_last") == 40.0


def test_a_place_in_a_file_of_numbers_is_found_or_nothing_is():
    data = {"a": [[1.0], [2.0, 3.0]], "b": {"c": None}}
    assert find_place(data, "a.1.1") == 3.0
    for place in ("a.2.0", "a.1.5", "b.c.d", "x"):
        assert find_place(data, place) is None


# --- as a command


def test_without_a_table_all_are_listed(capsys):
    assert main(["reproduce"]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", printed, re.MULTILINE) for name in list_tables())


def test_a_plan_is_printed_with_cost_numbers_deviations_and_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce",
        "cifar100",
        "--only",
        "ewc_dr,mas",
        "--setting",
        "bigstart-10",
        "--data-root",
        "DIR",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "6 runs, 6 of them still to be made" in printed
    for words in (
        "44.88",
        "60.94",
        "not run",
        "GPU-hours",
        "deviation: ",
        "mas: strength, cap and code are not published",
    ):
        assert words in printed
    command = (
        "mcit run --config efcil/cifar100-bigstart-10 --data-root DIR --method ewc_dr --seed 1"
    )
    assert command in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar100", "--only", "ewc_d"], "no method 'ewc_d'; did you mean 'ewc_dr'"),
        (["cifar100", "--setting", "equal"], "no setting 'equal'; did you mean 'equal-"),
        (["cifar100", "--record"], "the numbers of cifar100 are the paper's"),
        (["shapes", "--record", "--only", "ewc"], "--record takes the whole table"),
        (["shapes", "--teraflops", "0"], "--teraflops must be above 0"),
        (["shapes", "--seeds", "one"], "seeds are whole numbers"),
        (
            ["cifar100", "--setting", "equal-5", "--only", "ewc", "--run"],
            "--run needs --data-root: CIFAR-100",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_what_was_measured_becomes_the_numbers_of_a_table_of_ours(tmp_path):
    table = read_expected("shapes")
    cells = cells_of("shapes")
    with pytest.raises(
        ConfigError, match="nothing was recorded: equal-5 finetune, equal-5 ewc, equal-5 ewc_dr not"
    ):
        record(table, cells)
    for place, cell in enumerate(cells):
        for number, job in enumerate(cell.jobs):
            write_run(cell, number, tmp_path / f"{place}-{job.seed}", a_last=10 * place + job.seed)
    data = record(table, find_runs(cells, [tmp_path]))
    found = find_place(data, "cells.equal-5.ewc")
    assert (found["A_last"], found["by_seed"]["A_last"]) == (
        12.0,
        {"1": 11.0, "2": 12.0, "3": 13.0},
    )
    assert (found["seconds"], found["command"]) == (
        70,
        "mcit run --order shapes:5x4 --method ewc --seed 1",
    )
    assert str(tmp_path) not in json.dumps(data, allow_nan=False)


def test_recorded_numbers_are_agreed_with_at_once(tmp_path, monkeypatch, capsys):
    shutil.copy(expected.TABLES / "shapes.yaml", tmp_path)
    monkeypatch.setattr(expected, "TABLES", tmp_path)
    monkeypatch.chdir(tmp_path)
    for place, cell in enumerate(cells_of("shapes")):
        for number, job in enumerate(cell.jobs):
            folder = tmp_path / "runs" / f"{place}-{job.seed}"
            write_run(cell, number, folder, a_last=10 * place + job.seed)
    assert main(["reproduce", "shapes", "--output", "runs", "--record"]) == 0
    assert "9 agrees" in capsys.readouterr().out
    data = json.loads((tmp_path / "shapes.json").read_text())
    data["cells"]["equal-5"]["ewc"]["A_avg"] += 6
    (tmp_path / "shapes.json").write_text(json.dumps(data))
    assert main(["reproduce", "shapes", "--output", "runs"]) == 1
    printed = capsys.readouterr().out
    assert "8 agrees, 1 differs" in printed
    # 70 s each
    assert "9 runs, 0 of them still to be made; about 0.175 hours in all" in printed


@pytest.mark.parametrize("name", list_tables())
def test_what_a_row_sets_by_setting_is_set_there(name):
    table = read_expected(name)
    for method, row in table.methods.items():
        assert set(row.set_by_setting) <= set(table.settings)
        for setting, assignments in row.set_by_setting.items():
            options = table.options_of(setting, method, 1)
            assert options.assignments == (*row.set, *assignments)


def test_a_metric_of_every_task_counts_as_its_mean(tmp_path):
    cell = cells_of("shapes")[0]
    write_run(cell, 0, tmp_path / "run", a_last=40.0)
    run = read_run(tmp_path / "run")
    assert read_metric(run, "A_new") == pytest.approx(sum(run.metrics["A_new"]) / len(run.tasks))


@pytest.mark.parametrize("name", list_tables())
def test_a_setting_is_a_configuration_or_an_order(name):
    for setting in read_expected(name).settings.values():
        assert (setting.config is None) != (setting.order is None)


@pytest.mark.parametrize("name", ["coin", "ucit", "mllm-dcl"])
def test_published_rows_of_instructions_agree_with_their_own_averages(name):
    """MFN is the mean of the final scores, and BWT (MFN - MFT) T / (T - 1), as we define them."""
    table = read_expected(name)
    numbers = table.read_numbers()[name]
    order = numbers.pop("order")
    assert [f"a[{order[-1]},{task}]" in table.metrics for task in order] == [True] * len(order)
    assert tuple(task.name for task in cells_of(name)[0].jobs[0].plan.tasks) == tuple(order)
    rows = [row for row in numbers.values() if isinstance(row, dict) and "final" in row]
    assert rows
    for row in rows:
        assert row["MFN"] == pytest.approx(sum(row["final"]) / len(order), abs=0.06)
        if "BWT" in row:
            lost = (row["MFN"] - row["MFT"]) * len(order) / (len(order) - 1)
            assert row["BWT"] == pytest.approx(lost, abs=0.02)
