"""What many runs come to, worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def compute_study(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    # what a bare checkout needs would stay for other tests
    monkeypatch.setitem(sys.modules, "_checkout", ModuleType("_checkout"))
    import measure_scaling

    yield measure_scaling.compute_study
    sys.modules.pop("measure_scaling")


ONE = {
    "cpu_seconds": 90.0,
    "sent_bytes": 100,
    "written_bytes": 9_000,
    "left_bytes": 500,
    "result_bytes": 20,
}


def test_rounds_hours_and_money_are_those_of_the_machines(compute_study):
    rows = compute_study(ONE, runs=1000, machines=100, cores=4, price=2.0)
    found = {row["computed"]: row["value"] for row in rows}
    # 400 at once: three rounds of 90 seconds, on 100 machines
    assert found == {
        "runs at once": 400,
        "rounds": 3,
        "hours": 0.075,
        "machine hours": 7.5,
        "money": 15.0,
        "bytes sent": 100_000,
        "bytes written": 9_000_000,
        "bytes left": 500_000,
        "bytes of results": 20_000,
        "bytes written per second": 40_000,
    }


def test_more_room_than_runs_is_left_empty(compute_study):
    rows = compute_study(ONE, runs=10, machines=100, cores=4, price=2.0)
    found = {row["computed"]: row["value"] for row in rows}
    assert (found["runs at once"], found["rounds"]) == (10, 1)
    assert found["bytes written per second"] == 1_000
