"""The embedded benchmark as a new user runs it, with the shortest two of its tasks."""

from __future__ import annotations

import json

import pytest

from mcit.cli import main


@pytest.mark.slow
def test_tasks_are_learned_well_above_chance_and_finetuning_forgets(tmp_path, capsys):
    output = tmp_path / "run"
    assert (
        main(
            [
                "run",
                "--order",
                "vcr,snli-ve",
                "--method",
                "finetune",
                "--output",
                str(output),
                "--quiet",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith(
        "no --data-root: this run uses the embedded benchmark"
    )
    scores = json.loads((output / "scores.json").read_text(encoding="utf-8"))
    for task, learned, chance in zip(
        scores["tasks"], scores["metrics"]["A_new"], scores["chance"], strict=True
    ):
        assert learned >= chance + 20, (
            f"{task} was learned to {learned:.1f}, chance is {chance:.1f}"
        )
    assert scores["metrics"]["BWT"] < -3
    assert "run --order vcr,snli-ve --method finetune" in (output / "report.md").read_text(
        encoding="utf-8"
    )
