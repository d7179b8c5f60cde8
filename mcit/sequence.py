"""The outer loop: learn the tasks of a plan in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcit.runner.plan import Plan
from mcit.runner.result import Result
from mcit.session import RunSession


def run(plan: Plan, output: Path, **options: Any) -> Result:
    """Learn the tasks of `plan` in order and return the result; options are RunSession's."""
    with RunSession(plan, output, **options) as session:
        for stage in session.stages():
            session.begin(stage)
            session.fit(stage)
            outcome = session.conclude(stage)
            scores = session.score(stage)
            session.record(stage, scores, outcome)
        return session.result
