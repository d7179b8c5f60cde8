"""Where the data are: what is said where --data-root is missing or another than was meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doc_pages import read_blocks
from test_docs import desk, world  # noqa: F401 - fixtures

from mcit.cli import main
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.registry import find_task

GUIDE = Path(__file__).parent.parent / "docs" / "new-task.md"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=20, evaluation=10))
    return root


@pytest.fixture(autouse=True)
def embedded(small, tmp_path, monkeypatch) -> Path:
    """The embedded benchmark in small: the whole takes a minute to make."""
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mcit.runner.preparing.ensure_benchmark", lambda: small)
    return small


@pytest.fixture
def colors(desk) -> None:  # noqa: F811
    """The task of docs/new-task.md, with its data in `data`."""
    desk.write_files(read_blocks(GUIDE))
    desk.run_commands("python make_colors.py\nexport MCIT_PATH=mine")


def test_a_task_of_ones_own_without_its_folder_gets_the_message_of_the_guide(
    colors, capsys, monkeypatch
):
    monkeypatch.setattr(
        "mcit.runner.preparing.ensure_benchmark", lambda: pytest.fail("nobody needs it")
    )
    assert main(["run", "--order", "colors", "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        "mcit: colors: task 'colors' needs the folder of its data: set --data-root\n"
    )


def test_it_gets_the_same_message_among_embedded_tasks(colors, capsys):
    assert main(["run", "--order", "snli-ve,colors", "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert "no --data-root: snli-ve uses the embedded benchmark" in printed.out
    assert (
        printed.err == "mcit: colors: task 'colors' needs the folder of its data: set --data-root\n"
    )


def test_a_task_of_ones_own_joins_the_embedded_ones(colors, capsys):
    argv = [
        "run",
        "--order",
        "snli-ve,colors,nlvr2",
        "--set",
        "tasks.colors.root=data",
        "--dry-run",
    ]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert "no --data-root: snli-ve, nlvr2 use the embedded benchmark" in printed
    assert "finetune on embedded" in printed
    assert all(name in printed for name in ("snli-ve", "colors", "nlvr2"))


def test_a_run_on_embedded_tasks_and_ones_own_is_learned_and_reported(colors, capsys):
    recipes = [f"--set=tasks.{name}.recipe.epochs=1" for name in ("snli-ve", "colors")]
    argv = [
        "run",
        "--order",
        "snli-ve,colors",
        "--set",
        "tasks.colors.root=data",
        "--output",
        "run",
        "--quiet",
    ]
    assert main([*argv, *recipes]) == 0
    scores = json.loads(Path("run/scores.json").read_text())
    assert scores["tasks"] == ["snli-ve", "colors"]
    provenance = json.loads(Path("run/provenance.json").read_text())
    assert provenance["data"]["snli-ve"] is not None


def test_all_tasks_on_the_embedded_data_are_said_to_be(capsys):
    assert main(["run", "--order", "snli-ve,nlvr2", "--dry-run"]) == 0
    assert "no --data-root: this run uses the embedded benchmark" in capsys.readouterr().out


def test_a_missing_data_root_is_named_where_a_vocabulary_of_the_official_data_is_asked_for(
    capsys, embedded
):
    assert main(["run", "--config", "climb", "--dry-run", "--set", "tasks.vqa.minimum=1"]) == 2
    error = capsys.readouterr().err
    assert (
        f"because {embedded} is the embedded benchmark; set --data-root to the folder of the "
        "official" in error
    )
    assert "where tasks.vqa.answers asks for 3129" in error
    assert "vocabularies" not in error  # a file of the cache is not what was wrong


def test_a_data_root_with_a_part_of_the_data_is_named(capsys, tmp_path):
    write_benchmark(tmp_path / "part", Sizes(train=12, evaluation=8))
    (tmp_path / "part" / "embedded.json").unlink()
    argv = ["run", "--order", "vqa", "--data-root", str(tmp_path / "part"), "--dry-run"]
    assert main([*argv, "--set", "tasks.vqa.answers=3129", "--set", "tasks.vqa.minimum=1"]) == 2
    error = capsys.readouterr().err
    assert (
        "part holds 12 of 443,757 records of train2014 and 8 of 214,354 records of val2014; "
        "set --data-root" in error
    )
    known = len(find_task("vqa")(root=tmp_path / "part", minimum=1).answer_ids)
    assert f"--set tasks.vqa.answers={known}" in error


def test_the_doctor_splits_it_into_problem_and_remedy(capsys, embedded):
    argv = [
        "doctor",
        "--data-root",
        str(embedded),
        "--order",
        "vqa",
        "--set",
        "tasks.vqa.minimum=1",
    ]
    assert main([*argv, "--set", "tasks.vqa.answers=3129"]) == 1
    printed = capsys.readouterr().out
    assert (
        "is the embedded benchmark\n    next: set --data-root to the folder of the official data"
        in printed
    )


def test_prepare_names_the_problems_of_what_it_leaves_alone(tmp_path, capsys):
    write_benchmark(tmp_path / "data", Sizes(train=3, evaluation=2))
    for name in ("train2014", "val2014"):
        (tmp_path / "data" / "vqav2" / f"v2_mscoco_{name}_annotations.json").unlink()
        (tmp_path / "data" / "vqav2" / f"v2_OpenEnded_mscoco_{name}_questions.json").unlink()
    (tmp_path / "data" / "nlvr2" / "data" / "dev.json").unlink()
    assert main(["prepare", "--data-root", str(tmp_path / "data"), "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("vqa: left alone, the data have 2 problems:")
    assert lines[place + 1].startswith("  - ")
    assert "v2_OpenEnded_mscoco_train2014_questions.json is missing; unpack" in lines[place + 1]
    assert "v2_mscoco_train2014_annotations.json is missing; unpack" in lines[place + 2]
    (line,) = [line for line in lines if line.startswith("nlvr2: ")]
    assert "left alone, " in line
    assert "dev.json is missing; unpack" in line


def test_prepare_has_nothing_to_do_for_images_that_are_used_as_they_are(tmp_path, capsys):
    assert main(["prepare", "--data-root", str(tmp_path), "--order", "shapes:5x4"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "shapes: its images are used as they are; nothing to prepare\n"
    assert printed.err == ""
