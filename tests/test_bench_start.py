"""What the first answers and the first step cost is measured; no test asserts a time."""

from __future__ import annotations

import sys

import pytest

from mcit.bench import start
from mcit.bench.start import COMMANDS, FIRST_STEP, GOALS, TORCH, Spent
from mcit.errors import McitError


def test_every_command_is_compared_with_an_import_of_torch(monkeypatch, capsys):
    monkeypatch.setattr(start, "time_import", lambda: Spent(2.0, 3.0))
    monkeypatch.setattr(start, "time_first_step", lambda: Spent(7.0, 9.0))
    begun = set()

    def time_command(words, code):
        if words in begun:
            return Spent(1.0, 1.5)
        # this one warms up, and does not count
        begun.add(words)
        return Spent(0.1, 0.1)

    monkeypatch.setattr(start, "time_command", time_command)
    result = start.measure(quick=True)
    names = {*COMMANDS, FIRST_STEP}
    assert result["over_import_torch"].keys() == names == set(GOALS)
    assert result["seconds"].keys() == result["clock_seconds"].keys() == {TORCH, *names}
    assert result["over_import_torch"]["list"] == 0.5
    assert result["over_import_torch"][FIRST_STEP] == 3.5
    start.print_result(result)
    printed = capsys.readouterr().out.splitlines()
    rows = {line.split("│")[1].strip(): line for line in printed if "│" in line}
    assert "missed" in rows[FIRST_STEP]
    assert "met" in rows["list"]


def test_a_command_is_timed_that_ends_as_it_should():
    spent = start.time_command(*COMMANDS["mistyped task"])
    assert spent.processor > 0
    assert spent.clock > 0


def test_a_command_that_ends_otherwise_is_no_figure():
    words, code = COMMANDS["mistyped task"]
    with pytest.raises(McitError, match=f"ended with {code} instead of 0(.|\n)*unknown task"):
        start.time_command(words, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", False),
        ('{"event": "warning"}\n', False),
        ('{"event": "step", "loss": 1.0', False),
        ('{"event": "warning"}\n{"event": "step", "loss": 1.0}\n{"ev', True),
    ],
)
def test_a_step_counts_once_its_line_is_whole(tmp_path, text, found):
    log = tmp_path / "log.jsonl"
    assert not start._has_step(log)
    log.write_text(text, encoding="utf-8")
    assert start._has_step(log) is found


def test_only_the_child_s_time_counts():
    code = (
        "import time; begun = time.process_time()\nwhile time.process_time() < begun + 0.05: pass"
    )
    spent = start._time([sys.executable, "-c", code], lambda process: start._expect(process, 0))
    assert spent.processor > 0.05
