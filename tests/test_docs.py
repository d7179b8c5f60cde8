"""The guides work as they are written: their files are put where they say, their commands and code are run."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcit.cli import main
from mcit.config import ConfigError, own_folders
from mcit.registry import find_method

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = ("new-method", "new-estimator", "new-task")
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
# Commands are run in small: the guides name orders that a reader would try.
SMALL = {"shapes:5x4": "shapes:2x1"}
SMALLER = (
    "model.width=8",
    "tasks.shapes.classes=2",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
)


@dataclass(frozen=True)
class Block:
    language: str
    file: str | None
    text: str


def read_blocks(guide: str) -> list[Block]:
    return [
        Block(*match) for match in BLOCK.findall((DOCS / f"{guide}.md").read_text(encoding="utf-8"))
    ]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in; the packages of tasks and methods are afterwards what they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    for kind in ("tasks", "methods"):
        package = importlib.import_module(f"mcit.{kind}")
        monkeypatch.setattr(package, "__path__", list(package.__path__))
    yield tmp_path
    for name in set(sys.modules) - before:
        if re.fullmatch(r"mcit\.(tasks|methods)\.\w+", name):
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            vars(sys.modules[package]).pop(attribute, None)


def shrink(command: str) -> list[str]:
    words = [SMALL.get(word, word) for word in shlex.split(command)]
    return (
        words
        if SMALL["shapes:5x4"] not in words
        else [*words, *(w for s in SMALLER for w in ("--set", s))]
    )


def run_commands(text: str, monkeypatch) -> None:
    for line in text.splitlines():
        if line.startswith("export "):
            key, _, value = line.removeprefix("export ").partition("=")
            monkeypatch.setenv(key, value)
            for kind in ("tasks", "methods"):  # as a new process would find them
                importlib.import_module(f"mcit.{kind}").__path__ += own_folders(kind)
        elif line.startswith("python "):
            runpy.run_path(line.removeprefix("python "))
        else:
            program, *words = shrink(line)
            assert program == "mcit", f"what would run {line!r}?"
            assert main(words) == 0, line


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_does_what_it_says(guide, desk, monkeypatch, capsys):
    blocks = read_blocks(guide)
    for block in blocks:
        if block.file:
            path = desk / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    for block in blocks:
        if block.language == "sh":
            run_commands(block.text, monkeypatch)
        elif not block.file:
            exec(compile(block.text, f"{guide}.md", "exec"), {})
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_of_a_guide_is_one_that_is_run(guide):
    text = (DOCS / f"{guide}.md").read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(read_blocks(guide)) > 0
    assert {block.language for block in read_blocks(guide)} <= {"python", "sh"}


def test_the_links_of_the_guides_lead_somewhere():
    for path in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (DOCS / target).exists(), f"{path.name}: {target}"


def test_mcit_path_adds_the_users_own_files(tmp_path):
    for name in ("tasks/pets.py", "methods/gentle.py"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True)
        (tmp_path / "mine" / name).write_text("")
    environment = {**os.environ, "MCIT_PATH": "mine"}
    command = [sys.executable, "-m", "mcit", "list"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert {"pets", "gentle"} <= set(listed)


def test_a_folder_of_ones_own_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MCIT_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere', which has no folder tasks or methods"):
        own_folders("tasks")
    monkeypatch.delenv("MCIT_PATH")
    assert own_folders("tasks") == []


def test_a_name_that_ships_cannot_be_taken(desk, monkeypatch):
    (desk / "methods").mkdir()
    (desk / "methods" / "ewc.py").write_text("")
    importlib.import_module("mcit.methods").__path__.append(str(desk / "methods"))
    with pytest.raises(
        ConfigError, match=r"'ewc' is in two files, .*ewc\.py and .*ewc\.py: a name is one file"
    ):
        find_method("ewc")
