"""The type checker finds nothing: annotations say what the code does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_type_checker_finds_nothing():
    if not (ROOT / "mcit").is_dir() or not (ROOT / "tasks").is_dir():
        pytest.skip("the sources are not a checkout")
    # with the cache in the checkout, since without one it takes minutes
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
