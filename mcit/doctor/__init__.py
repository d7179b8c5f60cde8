"""Are the data there, whole and readable? What is missing, and what to do next."""

from __future__ import annotations

from mcit.doctor.examination import examine
from mcit.doctor.findings import Finding, Problem, SplitFinding, exit_code

__all__ = ["Finding", "Problem", "SplitFinding", "examine", "exit_code"]
