"""Trackers receive what the log receives; one that is not there is refused before any work."""

from __future__ import annotations

import json

import pytest
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType
from tiny_run import configure, resolve

from mcit.cli import main
from mcit.runner.result import Result
from mcit.runner.tracking import find_tracker_problems
from mcit.sequence import run as run_sequence


class Notebook(GeneralTracker):
    """Remembers everything."""

    name = "notebook"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.config, self.entries, self.finished = None, [], 0

    @property
    def tracker(self) -> list:
        return self.entries

    def store_init_configuration(self, values: dict) -> None:
        self.config = values

    def log(self, values: dict, step: int | None = None, **_: object) -> None:
        self.entries.append((step, values))

    def finish(self) -> None:
        self.finished += 1


def run(output, notebook: Notebook, **options: object) -> Result:
    config = configure("shapes:3x2", "ewc", method__strength=0.01, model__width=8, **options)
    return run_sequence(
        resolve(config), output, progress=False, say=lambda line: None, tracker=notebook
    )


@pytest.fixture(scope="module")
def tracked(tmp_path_factory) -> tuple[Result, Notebook]:
    notebook = Notebook()
    return run(tmp_path_factory.mktemp("run"), notebook), notebook


def test_every_logged_step_is_sent_with_its_statistics(tracked):
    result, notebook = tracked
    lines = [json.loads(line) for line in (result.output / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    sent = [(step, values) for step, values in notebook.entries if "train/loss" in values]
    assert [values["train/loss"] for _, values in sent] == [line["loss"] for line in steps]
    assert all({"train/penalty", "train/learning_rate"} <= values.keys() for _, values in sent)
    assert any(values.get("train/pull", 0) > 0 for _, values in sent)  # from the second task on


def test_steps_count_on_from_task_to_task(tracked):
    result, notebook = tracked
    steps = [step for step, values in notebook.entries if "train/loss" in values]
    assert steps == sorted(set(steps))
    each = result.cost["steps"] // 3
    assert {step // each for step in steps} == {0, 1, 2}


def test_scores_and_their_average_are_sent_after_every_task(tracked):
    result, notebook = tracked
    sent = [values for _, values in notebook.entries if "A_t" in values]
    tasks = result.matrix.tasks
    assert [{k: v for k, v in values.items() if k.startswith("score/")} for values in sent] == [
        {f"score/{task}": score for task, score in zip(tasks, row, strict=False)}
        for row in result.matrix.rows
    ]
    assert [values["A_t"] for values in sent] == pytest.approx(result.matrix.seen)


def test_the_configuration_is_plain_and_the_tracker_is_closed_once(tracked):
    _, notebook = tracked
    assert notebook.config["method.name"] == "ewc"
    assert notebook.config["order"] == "shapes:3x2"
    assert all(isinstance(value, (bool, int, float, str)) for value in notebook.config.values())
    assert notebook.finished == 1


def test_a_tracker_is_closed_when_a_run_fails(tmp_path):
    notebook = Notebook()
    with pytest.raises(FloatingPointError):
        run(tmp_path / "run", notebook, tasks__shapes__recipe__learning_rate=1e30)
    assert notebook.finished == 1


def test_an_unknown_tracker_is_answered_with_the_nearest():
    (problem,) = find_tracker_problems("tensorbord")
    assert problem.startswith(
        "unknown tracker 'tensorbord'; did you mean 'tensorboard'? (trackers: "
    )
    assert find_tracker_problems(None) == find_tracker_problems(Notebook()) == []


def test_a_tracker_that_is_not_installed_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    missing = [
        str(kind.value)
        for kind in LoggerType
        if kind not in (*get_available_trackers(), LoggerType.ALL)
    ]
    if not missing:
        pytest.skip("every tracker is installed")
    assert main(["run", "--order", "shapes:5x4", "--tracker", missing[0]]) == 2
    assert f"tracker '{missing[0]}' is not installed: pip install " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_a_file(tmp_path):
    pytest.importorskip("tensorboard")
    config = configure("shapes:2x3", "finetune", tracker="tensorboard", model__width=8)
    run_sequence(resolve(config), tmp_path, progress=False, say=lambda line: None)
    assert list(tmp_path.rglob("events.out.tfevents.*"))
