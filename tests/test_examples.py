"""The examples run as they are, and show what they say they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "embedded_benchmark.ipynb"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(name: str, *words: str | Path, cwd: Path) -> str:
    """Run a script in another folder and return what it printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read_cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_says_how_it_is_run(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    assert f"python examples/{name}" in text.split('"""')[1]


@pytest.mark.slow
def test_plain_pytorch_forgets_less_with_importance_than_without(tmp_path):
    printed = run("plain_pytorch.py", cwd=tmp_path)
    rows = {}
    for line in printed.splitlines()[1:]:
        name, *scores = line.split()
        rows[name] = [float(score) for score in scores]
    assert list(rows) == ["finetune", "EWC", "EWC-DR"]
    for name in ("EWC", "EWC-DR"):
        assert rows[name][0] > rows["finetune"][0] + 10
        # and all tasks are learned
        assert rows[name][-1] > 90
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_adapters_of_a_language_model_are_held_in_a_trainer(tmp_path):
    printed = run("trainer_lora.py", cwd=tmp_path)
    found = re.findall(r"(\S+): first task +(\d+)%, second task +(\d+)%", printed)
    first = {name: int(score) for name, score, _ in found}
    second = {name: int(score) for name, _, score in found}
    assert list(first) == ["finetune", "EWC-LO"]
    assert first["EWC-LO"] >= first["finetune"] + 20
    assert min(second.values()) >= 80
    # of the base, nothing is held
    (held, of) = re.search(r"([\d,]+) of ([\d,]+) weights are held", printed).groups()
    assert 0 < int(held.replace(",", "")) < int(of.replace(",", "")) / 2


@pytest.mark.slow
def test_a_finetuned_model_is_protected_by_its_importance_file_alone(tmp_path):
    folder = tmp_path / "model"
    printed = run("protect_finetuned.py", folder, cwd=tmp_path)
    pattern = r"(\w+): old task (\d+)% -> (\d+)%, new task (\d+)%"
    found = {name: list(map(int, rest)) for name, *rest in re.findall(pattern, printed)}
    assert list(found) == ["unprotected", "protected"]
    assert found["protected"][0] == found["unprotected"][0] > 90
    assert found["protected"][1] > found["unprotected"][1] + 15
    assert min(found["protected"][2], found["unprotected"][2]) > 80
    # the second time the old task is not learned again: the file is what it starts from
    written = (folder / "importance.safetensors").stat().st_mtime_ns
    assert run("protect_finetuned.py", folder, cwd=tmp_path) == printed
    assert (folder / "importance.safetensors").stat().st_mtime_ns == written


# --- the notebook


def test_the_notebook_is_committed_as_it_ran_without_an_error():
    cells = [cell for cell in read_cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
    # nobody's folders are shown
    assert str(Path.home()) not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in read_cells():
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    results = names["results"]
    assert list(results) == ["finetune", "ewc", "ewc_dr"]
    learned = {result.matrix.rows[0][0] for result in results.values()}
    # the first task is the same for all, and learned
    assert len(learned) == 1
    assert learned.pop() > 60
    assert min(result.matrix.rows[1][1] for result in results.values()) > 20
    kept = {method: result.matrix.rows[1][0] for method, result in results.items()}
    assert min(kept["ewc"], kept["ewc_dr"]) > kept["finetune"] + 5
    assert "from the stage cache" in capsys.readouterr().out
    assert len(names["answers"]) == len(names["questions"])
