"""The Python entry points: a run is the command's run, and a loaded run answers as it was
scored."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from tiny_run import RECIPE, write_world

import mcit
from mcit.checkpoint import CheckpointError
from mcit.cli import main
from mcit.embedded.shapes import CLASS_NAMES
from mcit.errors import ConfigError, DataError, FolderError
from mcit.registry import find_task

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
SMALL_SHAPES = {
    "model.width": 4,
    "tasks.shapes.classes": 6,
    "tasks.shapes.recipe.epochs": 1,
    "tasks.shapes.recipe.batch_size": 64,
}


def ignore(line: str) -> None:
    pass


def small_settings(world, **more):
    """Settings of runs on the tiny world, by dotted key."""
    settings = {"model.name": world["model.name"], "tasks.vqa.minimum": 1, **more}
    for task in TASKS:
        settings.update({f"tasks.{task}.recipe.{key}": value for key, value in RECIPE.items()})
    return settings


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run of the four tasks, loaded, and what it returned."""
    result = mcit.run(
        TASKS,
        "adapters",
        settings=small_settings(world, **{"method.rank": 2}),
        data_root=world["data_root"],
        output=tmp_path_factory.mktemp("runs") / "trained",
        progress=False,
        say=ignore,
    )
    return mcit.load_run(result.output), result


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "shapes"
    options = {"settings": SMALL_SHAPES, "output": output, "progress": False, "say": ignore}
    result = mcit.run("shapes:3x2", **options)
    return mcit.load_run(output), result


def test_a_call_is_the_command(world, tmp_path):
    settings = small_settings(world, **{"method.strength": 3.0})
    result = mcit.run(
        order="nlvr2,snli-ve",
        method="ewc",
        settings=settings,
        data_root=world["data_root"],
        output=tmp_path / "call",
        seed=5,
        progress=False,
        say=ignore,
    )
    command = ["run", "--order", "nlvr2,snli-ve", "--method", "ewc", "--seed", "5", "--quiet"]
    command += ["--data-root", world["data_root"], "--output", str(tmp_path / "command")]
    for key, value in settings.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    assert main(command) == 0
    called = json.loads((tmp_path / "call" / "scores.json").read_text())
    commanded = json.loads((tmp_path / "command" / "scores.json").read_text())
    assert result.output == tmp_path / "call"
    assert called["matrix"] == commanded["matrix"] == [list(row) for row in result.matrix.rows]
    assert called["metrics"] == commanded["metrics"] == json.loads(json.dumps(result.metrics))
    assert called["stiffness"] == commanded["stiffness"]


def test_all_that_is_wrong_with_a_call_is_one_error(world):
    with pytest.raises(ConfigError) as caught:
        mcit.run("nlvr,vqa", "ewcc", settings={"tasks.vqa.minimun": 3})
    assert len(caught.value.problems) == 3


def test_a_finished_run_is_returned_by_resume_and_not_overwritten_without_asking(shapes):
    _, result = shapes
    options = {"settings": SMALL_SHAPES, "output": result.output, "progress": False, "say": ignore}
    again = mcit.run("shapes:3x2", resume=True, **options)
    assert again.matrix == result.matrix
    with pytest.raises(ConfigError, match="already holds a run"):
        mcit.run("shapes:3x2", **options)


# Predictions


def take_inputs(example):
    """The images and texts of an example, as a user has them."""
    if "images" in example:
        return tuple(example["images"]), example["text"]
    if "choices" in example:
        return example["image"], (example["question"], *example["choices"])
    return example["image"], example["text"]


def score_answer(name, example, answer):
    """What an answer is worth by the data themselves."""
    if name == "vqa":
        return example["answers"].get(answer, 0.0)
    names = find_task(name)(root=None).output_names()
    return float(answer == names[example["label"]])


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_worth_the_score_of_the_evaluation(trained, name):
    run, result = trained
    split = run.find_task(name).examples("eval")
    examples = [split[place] for place in range(len(split))]
    images, texts = zip(*map(take_inputs, examples), strict=True)
    answers = run.predict(name, images=images, texts=texts)
    pairs = zip(examples, answers, strict=True)
    worth = [score_answer(name, example, answer) for example, answer in pairs]
    score = 100 * sum(worth) / len(worth)
    assert score == pytest.approx(run.evaluate(name).score)
    assert score == pytest.approx(result.matrix.rows[-1][TASKS.index(name)])


def test_answers_of_an_early_task_may_be_classes_of_a_later_one(shapes):
    run, result = shapes
    task = run.find_task("shapes[0-1]")
    pixels, labels = task.examples("eval").__getitems__(range(100))
    images = [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pixels]
    answers = run.predict("shapes[0-1]", images=images)
    # finetuning has forgotten the first task: later classes are answered
    assert set(answers) <= {CLASS_NAMES[label] for label in task.part.order}
    assert not set(answers) <= set(task.output_names())
    names = task.output_names()
    right = sum(answer == names[label] for answer, label in zip(answers, labels, strict=True))
    assert right == pytest.approx(result.matrix.rows[-1][0])


def test_a_loaded_run_knows_its_tasks(trained):
    run, _ = trained
    assert run.tasks == list(TASKS)
    assert not run.learner.training
    with pytest.raises(DataError, match=r"unknown task 'nlvr'; did you mean 'nlvr2'\? \(learned"):
        run.predict("nlvr", images=[], texts=[])


def test_a_folder_without_a_run_or_without_weights_is_named(tmp_path, shapes):
    with pytest.raises(
        FolderError, match=f"{tmp_path} has no config.yaml; give the folder of a run"
    ):
        mcit.load_run(tmp_path)
    _, result = shapes
    (tmp_path / "config.yaml").write_text((result.output / "config.yaml").read_text())
    with pytest.raises(CheckpointError, match="only its scores are left"):
        mcit.load_run(tmp_path)
