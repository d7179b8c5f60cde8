"""What stands around the code says what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_imports import LAYERS

import mcit

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> dict:
    # YAML takes the key `on` of a workflow for a truth value
    return yaml.safe_load(read(name))


def list_commands(workflow: dict) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_ci_runs_the_tests_of_the_readme_on_every_version_that_is_supported():
    workflow = read_yaml(".github/workflows/ci.yml")
    versions = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    stated = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert versions == stated == ["3.10", "3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    commands = list_commands(workflow)
    for command in (".ci/run", "mypy mcit tasks", "ruff check .", "mkdocs build --strict"):
        assert command in commands


def test_a_release_is_built_checked_and_uploaded_without_a_password():
    workflow = read_yaml(".github/workflows/release.yml")
    assert "twine check --strict dist/*" in list_commands(workflow)
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert "secrets." not in read(".github/workflows/release.yml")


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_every_form_and_workflow_is_yaml(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == mcit.__version__
    assert versions[-1] == "0.1.0"


def test_the_citation_names_this_version():
    citation = read_yaml("CITATION.cff")
    assert citation["version"] == mcit.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]


def test_the_project_has_one_address():
    address = PROJECT["urls"]["Repository"]
    for path in (*PAGES, "CITATION.cff", "mcit/commands/export.py"):
        for found in re.findall(r"https://github\.com/[\w-]+/mcit\b", read(path)):
            assert found == address, path


@pytest.mark.parametrize("name", PAGES)
def test_links_within_the_project_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#:]+)\)", read(name)):
        assert (ROOT / target).exists(), target


def test_the_map_of_contributing_has_every_layer_in_its_order():
    table = read("CONTRIBUTING.md").partition("| layer |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)/?`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE))
    level = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
    assert set(named) <= set(level)
    packages = {path.parent.name for path in (ROOT / "mcit").glob("*/__init__.py")}
    assert packages <= set(named)
    rows = [re.findall(r"`(\w+)/?`", line.split("|")[1]) for line in table.splitlines()[2:]]
    lowest = [min(level[name] for name in row) for row in rows if row]
    assert lowest == sorted(lowest, reverse=True)


def test_every_command_of_contributing_names_files_that_exist():
    for word in re.findall(r"tests/\w+\.py", read("CONTRIBUTING.md")):
        assert (ROOT / word).is_file(), word


def test_pre_commit_runs_the_ruff_that_is_installed():
    config = read_yaml(".pre-commit-config.yaml")
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in hooks:
        words = hook["entry"].split()
        assert words[0] == "ruff"
        help_text = subprocess.run(
            [sys.executable, "-m", "ruff", words[1], "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert all(word in help_text for word in words[2:])


def list_plain_strings(path: Path) -> list[str]:
    """Return the strings of a file that are not f-strings, and the plain parts of those that are."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_no_sentence_shows_braces_where_a_value_belongs():
    field = re.compile(r"\{self\.|\{[a-z_.]+![rs]\}")
    lacking = []
    for folder in ("mcit", "tasks", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lacking += [
                (path.name, text) for text in list_plain_strings(path) if field.search(text)
            ]
    assert lacking == []
