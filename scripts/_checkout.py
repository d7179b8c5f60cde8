"""Lets a bare checkout run its own code, installed or not: import this before mcit."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mcit  # noqa: E402 - the line above is what makes it importable

mcit.__path__.append(str(ROOT))  # mcit.tasks and mcit.configs live at the top of the checkout
