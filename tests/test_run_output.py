"""A run says at once what it does, and soon how long it takes: it never looks stuck."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mcit
from mcit.cli import main
from mcit.commands.run import describe_start
from mcit.config.files import load_config
from mcit.embedded.benchmark import Sizes, ensure_benchmark, read_settings
from mcit.runner import preparing

SMALL = (
    "--order=shapes:2x2",
    "--set=model.width=4",
    "--set=tasks.shapes.classes=4",
    "--set=tasks.shapes.first_epochs=2",
    "--set=tasks.shapes.later_epochs=2",
    "--quiet",
)


def test_the_first_line_is_known_without_torch():
    config = load_config(None, {"order": "vqa,nlvr2", "method": "ewc_dr"}, [])
    line = describe_start(config)
    assert line == f"mcit {mcit.__version__}: vqa, nlvr2 with ewc_dr; loading PyTorch ..."


@pytest.mark.slow
def test_a_run_announces_itself_and_estimates_every_task(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["run", *SMALL, "--method=finetune", "--output=here"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"mcit {mcit.__version__}: shapes:2x2 with finetune")
    estimates = [line for line in lines if re.search(r": 14 steps, about \d+ s$", line)]
    assert [line.partition(":")[0] for line in estimates] == [
        "shapes[0-1], task 1 of 2",
        "shapes[2-3], task 2 of 2",
    ]
    # each stands before the scores of its task
    scores = [number for number, line in enumerate(lines) if line.startswith("after ")]
    assert lines.index(estimates[0]) < scores[0] < lines.index(estimates[1]) < scores[1]


def test_writing_the_benchmark_is_said_beforehand_and_once(tmp_path, monkeypatch):
    place = tmp_path / "benchmark"
    said: list[str] = []

    def write() -> Path:
        assert any("writing the embedded benchmark" in line for line in said)
        root = ensure_benchmark(tmp_path / "cache", Sizes(20, 10))
        root.rename(place)
        return place

    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparing, "find_place", lambda: place)
    monkeypatch.setattr(preparing, "ensure_benchmark", write)
    config = load_config(None, {"order": "snli-ve", "method": "finetune"}, [])
    plan = preparing.prepare_plan(config, said.append)
    assert str(place) in "\n".join(said)
    assert plan.describe()["benchmark"] == read_settings(place)
    said.clear()
    monkeypatch.setattr(preparing, "ensure_benchmark", lambda: place)
    preparing.prepare_plan(config, said.append)
    assert not [line for line in said if "writing" in line]
