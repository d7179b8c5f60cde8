"""The embedded benchmark as a new user runs it, with the shortest two of its tasks."""

from __future__ import annotations

import json

import pytest

from mcit.cli import main


@pytest.mark.slow
def test_tasks_are_learned_well_above_chance_and_finetuning_forgets(tmp_path, capsys):
    output = tmp_path / "run"
    command = ["run", "--order", "vcr,snli-ve", "--method", "finetune"]
    assert main([*command, "--output", str(output), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "no --data-root: this run uses the embedded benchmark" in printed
    scores = json.loads((output / "scores.json").read_text(encoding="utf-8"))
    learned = scores["metrics"]["A_new"]
    for task, score, chance in zip(scores["tasks"], learned, scores["chance"], strict=True):
        assert score >= chance + 20, f"{task} was learned to {score:.1f}, chance is {chance:.1f}"
    assert scores["metrics"]["BWT"] < -3
    report = (output / "report.md").read_text(encoding="utf-8")
    assert "run --order vcr,snli-ve --method finetune" in report
