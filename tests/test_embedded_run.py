"""The whole embedded sequence, as a new user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_every_task_is_learned_well_above_chance_and_finetuning_forgets(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "run_sequence.py", "--order", "vqa,nlvr2,snli-ve,vcr"]
    command += ["--method", "finetune", "--output", tmp_path / "run", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no --data-root: this run uses the embedded benchmark")
    scores = json.loads((tmp_path / "run" / "scores.json").read_text(encoding="utf-8"))
    for task, learned, chance in zip(scores["tasks"], scores["metrics"]["A_new"], scores["chance"], strict=True):
        assert learned >= chance + 20, f"{task} was learned to {learned:.1f}, chance is {chance:.1f}"
    lost = scores["metrics"]["forgetting_transfer"][-1]
    assert min(lost) > 25, f"of what was learned above chance only {lost} percent is lost"
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "forgetting transfer" in report
    assert "run --order vqa,nlvr2,snli-ve,vcr --method finetune" in report
