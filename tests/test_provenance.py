"""The provenance of a run is recorded, and files are written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mcit
from mcit.files import write_json
from mcit.provenance import PACKAGES, make_provenance


def test_a_provenance_names_versions_command_and_what_it_is_given(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/mcit", "run", "--order", "shapes:5x4"])
    provenance = make_provenance(config={"seed": 3}, estimator="none")
    assert provenance["mcit"] == mcit.__version__
    assert provenance["command"] == ["mcit", "run", "--order", "shapes:5x4"]
    assert provenance["python"] == platform.python_version()
    assert provenance["packages"]["torch"] == torch.__version__
    assert set(provenance["packages"]) == set(PACKAGES)
    assert None not in provenance["packages"].values()
    assert provenance["config"] == {"seed": 3}
    assert provenance["estimator"] == "none"
    assert json.loads(json.dumps(provenance)) == provenance


@pytest.mark.parametrize(
    ("started", "named"),
    [
        ("scripts/run_sequence.py", ["python", "scripts/run_sequence.py"]),
        ("/a/mcit/__main__.py", ["mcit"]),
        ("", ["mcit"]),
    ],
)
def test_a_provenance_names_the_command_so_that_it_can_be_repeated(monkeypatch, started, named):
    monkeypatch.setattr("sys.argv", [started, "--order", "vqa"])
    assert make_provenance()["command"] == [*named, "--order", "vqa"]


NAMING = "from mcit.parallel.launch import describe_command; print(describe_command())"
STARTING = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[-3:]]))"


@pytest.mark.parametrize("flags", [[], ["--config_file", "cpu2.yaml"]])
def test_a_provenance_names_the_launcher_with_its_options(tmp_path, flags):
    """The launcher here is a program of that name: only its name and its options count."""
    (tmp_path / "script.py").write_text(NAMING)
    (tmp_path / "accelerate").write_text(STARTING)
    words = [str(tmp_path / "accelerate"), "launch", *flags, "script.py", "--order", "shapes:5x4"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout == f"{['accelerate', 'launch', *flags, 'script.py', '--order', 'shapes:5x4']}\n"
    )


def test_a_provenance_names_the_commit_of_a_checkout_and_whether_it_was_changed(
    tmp_path, monkeypatch
):
    (tmp_path / "mcit").mkdir()
    source = tmp_path / "mcit" / "__init__.py"
    source.write_text("")
    monkeypatch.setattr("mcit.__file__", str(source))
    assert make_provenance()["source"] is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert make_provenance()["source"] == {"commit": commit, "changed": False}
    source.write_text("changed = True\n")
    assert make_provenance()["source"] == {"commit": commit, "changed": True}


def test_a_provenance_of_an_installed_mcit_names_no_commit_of_the_repository_around_it(
    tmp_path, monkeypatch
):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "site-packages" / "mcit").mkdir(parents=True)
    monkeypatch.setattr("mcit.__file__", str(tmp_path / "site-packages" / "mcit" / "__init__.py"))
    assert make_provenance()["source"] is None


def test_a_provenance_names_the_processor():
    assert make_provenance()["processor"].strip()


def test_threads_are_noted(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert make_provenance()["threads"] == 3


def test_a_package_that_is_absent_is_noted_as_absent(monkeypatch):
    monkeypatch.setattr("mcit.provenance.PACKAGES", ("torch", "no-such-package"))
    assert make_provenance()["packages"]["no-such-package"] is None


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, {"matrix": [[1.5]], "name": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"matrix": [[1.5]], "name": "é"}
    with pytest.raises(ValueError):
        write_json(path, {"matrix": [[float("nan")]]})
    assert json.loads(path.read_text(encoding="utf-8"))["matrix"] == [[1.5]]
    write_json(path, {"matrix": []})
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power cut there is the old file or the new one, and not an empty one."""
    events = []
    replace = os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
    )
    monkeypatch.setattr(os, "replace", lambda *names: (events.append("renamed"), replace(*names)))
    write_json(tmp_path / "scores.json", {})
    assert events == ["scores.json.tmp", "renamed", tmp_path.name]
