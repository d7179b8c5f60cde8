"""What ran: versions, seeds, command and options, written beside every result."""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mcit

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "peft", "evaluate", "safetensors", "numpy", "Pillow")


def make_passport(**about: Any) -> dict[str, Any]:
    """Everything that another machine needs to know to repeat a run."""
    return {
        "mcit": mcit.__version__,
        "command": [_program(), *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        **about,
    }


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never half of it."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all; an error names it."""
    draft = path.with_name(path.name + ".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _program() -> str:
    """The name of what was started, without the path to it: `mcit`, or a script such as run_sequence.py."""
    name = Path(sys.argv[0]).name
    return "mcit" if name in ("", "__main__.py") else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
