"""The front page: its loop works as printed, its tables are complete, its commands are those that CI runs."""

from __future__ import annotations

import re
import subprocess
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doc_pages import README, ROOT, read_blocks
from test_docs import is_held, make_points
from torch import nn

from mcit.registry import METHOD, list_names

TEXT = README.read_text(encoding="utf-8")
(PLAIN,) = [block.text for block in read_blocks(README) if block.language == "python"]


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_plain_loop_learns_and_holds():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"model": model, "optimizer": optimizer, "loader": make_points(1)}
    manager = run(PLAIN, loss_function=F.cross_entropy, **names)["manager"]
    assert not torch.equal(model.weight, before)
    assert is_held(manager, model)
    expected = "mean over examples of squared gradients: score reversed"
    assert manager.history[0].startswith(expected)


@pytest.mark.parametrize(
    ("make_optimizer", "stable"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0), False),
        (lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.9), True),
        (lambda p: torch.optim.AdamW(p, lr=1e-3), True),
    ],
)
def test_the_plain_loop_works_over_tasks_or_warns_that_it_will_not(make_optimizer, stable):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    names = {
        "model": model,
        "optimizer": make_optimizer(model.parameters()),
        "loss_function": F.cross_entropy,
    }
    setup, _, task = PLAIN.partition("for inputs")
    steps, _, consolidate = task.rpartition("manager.consolidate")
    names = run(setup, **names)
    warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in (1, 2, 3):
            names["loader"] = make_points(seed)
            for _ in range(10):
                run("for inputs" + steps, **names)
            run("manager.consolidate" + consolidate, **names)
            warned = any("stiffness" in str(warning.message) for warning in caught)
            if warned:
                break
    assert stable == (not warned)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def read_table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, cell by cell."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_method_is_in_the_table_once():
    named = [row[0].strip("`") for row in read_table("Methods")]
    assert sorted(named) == sorted(list_names(METHOD))


def test_papers_of_the_table_are_those_of_the_methods_files():
    for row in read_table("Methods"):
        for link in re.findall(r"\((https://[^)]+)\)", row[1]):
            source = (ROOT / "mcit" / "methods" / f"{row[0].strip('`')}.py").read_text("utf-8")
            assert link in source, row[0]


def test_the_first_screen_has_a_figure_that_exists():
    top = "\n".join(TEXT.splitlines()[:20])
    (figure,) = re.findall(r"^!\[[^]]+\]\(([^)]+)\)$", top, re.MULTILINE)
    assert (ROOT / figure).is_file()


def test_it_is_short_and_names_no_package_registry():
    assert len(TEXT.splitlines()) < 240
    assert not re.search(r"pypi\.|anaconda\.org|conda\.io", TEXT)


def test_the_two_commands_install_before_they_run():
    commands = [b.text.replace("\\\n", " ") for b in read_blocks(README) if b.language == "sh"]
    (start,) = [text for text in commands if "accelerate launch" in text]
    assert re.match(r"python -m venv \.venv && \. \.venv/bin/activate && pip install -e ", start)
    assert start.count("\n") == 1


def test_ci_runs_the_command_under_test():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (awk,) = re.findall(r"awk '(.+)' README\.md", script)
    found = subprocess.run(
        ["awk", awk, str(README)], capture_output=True, text=True, check=True
    ).stdout.strip()
    expected = '. .venv/bin/activate && pip install -e ".[test]" && ruff check . '
    assert expected in found
    assert found.endswith("python -m pytest")
