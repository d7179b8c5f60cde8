"""What ran is written down, whole or not at all."""

from __future__ import annotations

import json
import platform

import pytest
import torch

import mcit
from mcit.passport import PACKAGES, make_passport, write_json


def test_a_passport_names_versions_command_and_what_it_is_told(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/mcit", "run", "--order", "shapes:5x4"])
    passport = make_passport(config={"seed": 3}, estimator="none")
    assert passport["mcit"] == mcit.__version__
    assert passport["command"] == ["mcit", "run", "--order", "shapes:5x4"]
    assert passport["python"] == platform.python_version()
    assert passport["packages"]["torch"] == torch.__version__
    assert set(passport["packages"]) == set(PACKAGES)
    assert None not in passport["packages"].values()
    assert passport["config"] == {"seed": 3}
    assert passport["estimator"] == "none"
    assert json.loads(json.dumps(passport)) == passport


@pytest.mark.parametrize(
    ("started", "named"),
    [("scripts/run_sequence.py", "run_sequence.py"), ("/a/mcit/__main__.py", "mcit"), ("", "mcit")],
)
def test_a_passport_tells_a_script_from_the_installed_program(monkeypatch, started, named):
    monkeypatch.setattr("sys.argv", [started, "--order", "vqa"])
    assert make_passport()["command"] == [named, "--order", "vqa"]


def test_threads_are_noted(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert make_passport()["threads"] == 3


def test_a_package_that_is_absent_is_noted_as_absent(monkeypatch):
    monkeypatch.setattr("mcit.passport.PACKAGES", ("torch", "no-such-package"))
    assert make_passport()["packages"]["no-such-package"] is None


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, {"matrix": [[1.5]], "name": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"matrix": [[1.5]], "name": "é"}
    with pytest.raises(ValueError):
        write_json(path, {"matrix": [[float("nan")]]})
    assert json.loads(path.read_text(encoding="utf-8"))["matrix"] == [[1.5]]
    write_json(path, {"matrix": []})
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]
