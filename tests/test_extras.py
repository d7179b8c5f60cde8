"""The core runs without the libraries of the extra `report`, and says what is missing where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# the start of a program in which the libraries of an extra are not installed
WITHOUT = """
import importlib.abc
import sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

import importlib.util
found = importlib.util.find_spec

def find_spec(name, package=None):
    return None if name in {libraries!r} else found(name, package)

importlib.util.find_spec = find_spec
sys.meta_path.insert(0, Missing())
"""
REPORT = ("matplotlib", "scipy")
SMALL = (
    "--order=shapes:2x2",
    "--set=model.width=4",
    "--set=tasks.shapes.classes=4",
    "--set=tasks.shapes.first_epochs=1",
    "--set=tasks.shapes.later_epochs=1",
    "--quiet",
)


def run(code: str, cwd: Path, libraries: tuple[str, ...] = REPORT) -> subprocess.CompletedProcess:
    """Run a program without these libraries."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(libraries=libraries) + code],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MCIT_CACHE": str(cwd / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def run_mcit(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    code = f"from mcit.cli import main\nsys.exit(main({list(words)!r}))"
    return run(code, cwd)


def test_the_simulation_has_no_matplotlib(tmp_path):
    done = run("import matplotlib", tmp_path)
    assert "No module named 'matplotlib'" in done.stderr
    code = "from mcit.reports.extras import check_extra; check_extra()"
    assert 'pip install "mcit[report]"' in run(code, tmp_path).stderr


def test_every_public_name_is_there_without_the_extra(tmp_path):
    code = "import mcit\nfor name in mcit.__all__: getattr(mcit, name)\nprint(len(mcit.__all__))"
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_the_manager_works_without_the_extra(tmp_path):
    code = """
import torch
from mcit import ConsolidationManager, measure_importance
model = torch.nn.Linear(4, 3)
loader = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))]
manager = ConsolidationManager(model, strength=10)
manager.consolidate(measure_importance(model, loader, score="reversed"))
model.weight.data += 1
manager.add_gradient_()
manager.save("held.safetensors")
print(float(model.weight.grad.abs().sum()) > 0)
"""
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


@pytest.mark.slow
def test_a_run_ends_with_its_scores_and_says_what_a_report_needs(tmp_path):
    done = run_mcit("run", *SMALL, "--method=ewc_dr", "--output=here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "A_last" in done.stdout
    assert "written to here: scores.json, config.yaml, provenance.json" in done.stdout
    advice = 'run pip install "mcit[report]", then mcit report here'
    assert "no report was written: reports need matplotlib and scipy" in done.stdout
    assert advice in done.stdout
    assert (tmp_path / "here" / "scores.json").is_file()
    assert not (tmp_path / "here" / "report.html").exists()

    again = run_mcit("run", *SMALL, "--method=ewc_dr", "--output=here", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert advice in again.stdout

    report = run_mcit("report", "here", cwd=tmp_path)
    assert report.returncode == 2
    assert 'pip install "mcit[report]"' in report.stderr
    assert "Traceback" not in report.stderr


@pytest.mark.parametrize(
    "words", [["sweep", "--order=shapes:5x4", "--methods=finetune"], ["explore", "missing"]]
)
def test_commands_that_end_with_figures_say_so_before_any_work(tmp_path, words):
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "importance").mkdir()
    done = run_mcit(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    if words[0] == "sweep":
        assert 'pip install "mcit[report]"' in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_executor_whose_extra_is_missing_is_refused_before_any_work(tmp_path, name, package):
    words = ["sweep", "--order=shapes:5x4", "--methods=finetune", f"--executor={name}"]
    code = f"from mcit.cli import main\nsys.exit(main({words!r}))"
    done = run(code, tmp_path, libraries=(package,))
    assert done.returncode == 2
    assert f'run pip install "mcit[{name}]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
