"""Trackers receive what the log receives; one that is not there is refused before any work."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType
from safetensors.torch import load_file
from tiny_run import configure, resolve

from mcit.cli import main
from mcit.runner.magnitudes import measure_magnitudes
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


def test_the_magnitudes_of_every_importance_are_sent(tracked):
    _, notebook = tracked
    sent = [(step, values) for step, values in notebook.entries if "importance/mean" in values]
    # nothing is measured for the last task, which nothing follows
    assert len(sent) == 2
    for _, values in sent:
        assert 0 < values["importance/mean"] <= values["importance/largest"]
        assert 0 <= values["importance/zero"] < 1


def test_magnitudes_are_those_of_numpy():
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a": torch.randn(40, 30, generator=generator).exp() * 1e-6,
        "b": torch.rand(500, generator=generator),
        "far": torch.tensor([0.0, 1e-30, 1e20]),
    }
    found = measure_magnitudes(tensors)
    flat = np.concatenate([tensor.double().numpy().ravel() for tensor in tensors.values()])
    assert found.mean == pytest.approx(flat.mean())
    assert found.largest == pytest.approx(1e20)
    assert found.zero == 1 / len(flat)
    logarithms = np.log10(flat[flat > 0]).clip(found.edges[0], found.edges[-1] - 1e-9)
    counts, _ = np.histogram(logarithms, bins=found.edges)
    assert list(found.counts) == counts.tolist()
    assert sum(found.counts) == len(flat) - 1


def test_nothing_is_counted_where_nothing_is_important():
    found = measure_magnitudes({"a": torch.zeros(3)})
    assert (found.mean, found.largest, found.zero, sum(found.counts)) == (0, 0, 1, 0)


def read_histogram(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = [
        path for path in folder.rglob("events.out.tfevents.*") if path.parent.name == "mcit"
    ]
    read = EventAccumulator(str(events), size_guidance={"histograms": 0})
    read.Reload()
    return [event.histogram_value for event in read.Histograms(name)]


def test_tensorboard_gets_the_histograms_of_importance(tmp_path):
    pytest.importorskip("tensorboard")
    config = configure(
        "shapes:2x3", "ewc", tracker="tensorboard", model__width=8, method__strength=0.01
    )
    result = run_sequence(resolve(config), tmp_path, progress=False, say=lambda line: None)
    (histogram,) = read_histogram(tmp_path, "importance/log10")
    path = next((result.output / "importance").glob("*.safetensors"))
    expected = measure_magnitudes(load_file(path))
    limits = np.array(histogram.bucket_limit)
    assert math.isclose(sum(histogram.bucket), sum(expected.counts))
    filled = {round(limit, 6): count for limit, count in zip(limits, histogram.bucket, strict=True)}
    for limit, count in zip(expected.edges[1:], expected.counts, strict=True):
        assert filled.get(round(limit, 6), 0) == count


def test_wandb_gets_the_group_and_the_histogram(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason='needs wandb: pip install "mcit[wandb]"')
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = configure(
        "shapes:2x3",
        "ewc",
        tracker="wandb",
        tracker_group="a-sweep",
        model__width=8,
        method__strength=0.01,
    )
    run_sequence(resolve(config), tmp_path / "run", progress=False, say=lambda line: None)
    # waits for the process that writes
    wandb.teardown()
    written = next(path for path in tmp_path.rglob("*.wandb") if path.parent.name != "latest-run")
    data = written.read_bytes()
    for word in (b"a-sweep", b"importance/log10", b"histogram", b"score/"):
        assert word in data


def test_mlflow_gets_the_group_and_the_counts(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason='needs mlflow: pip install "mcit[mlflow]"')
    monkeypatch.chdir(tmp_path)
    # newer versions keep their files in a database unless they are told to
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    config = configure(
        "shapes:2x3",
        "ewc",
        tracker="mlflow",
        tracker_group="a-sweep",
        model__width=8,
        method__strength=0.01,
    )
    result = run_sequence(resolve(config), tmp_path / "run", progress=False, say=lambda line: None)
    experiment = mlflow.get_experiment_by_name("mcit")
    (found,) = mlflow.MlflowClient().search_runs([experiment.experiment_id])
    assert found.data.tags["group"] == "a-sweep"
    assert found.info.run_name == "run"
    assert found.data.metrics["A_t"] == pytest.approx(result.matrix.seen[-1])
    # a name such as shapes[0-1] is written in the letters that mlflow takes
    assert any(name.startswith("score/shapes_") for name in found.data.metrics)
    (counted,) = (tmp_path / "store").rglob("step-*.json")
    assert sum(json.loads(counted.read_text())["counts"]) > 0
