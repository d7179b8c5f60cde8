"""The provenance of a run: versions, command, machine and options, written next to every result."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mcit
from mcit.parallel.launch import describe_command

PACKAGES = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "peft",
    "evaluate",
    "safetensors",
    "numpy",
    "Pillow",
)


def make_provenance(**about: Any) -> dict[str, Any]:
    """Return everything that another machine needs to know to repeat a run."""
    return {
        "mcit": mcit.__version__,
        "source": _describe_source(),
        "command": describe_command(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _describe_processor(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        **about,
    }


def _describe_source() -> dict[str, Any] | None:
    """Return the commit that mcit runs from and whether files differ; None if not a checkout."""
    root = Path(mcit.__file__).resolve().parent.parent
    found = _ask_git(root, "rev-parse", "--show-toplevel", "HEAD")
    # an installed mcit may lie inside somebody's repository, whose commit says nothing about it
    if found is None or Path(found[0]).resolve() != root:
        return None
    return {
        "commit": found[1],
        "changed": bool(_ask_git(root, "status", "--porcelain", "--untracked-files=no")),
    }


def _ask_git(folder: Path, *words: str) -> list[str] | None:
    """Return the lines that git prints, or None if it is not installed or fails."""
    # a hook of another repository may have set where git looks
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()


def _describe_processor() -> str:
    """Return the model of the CPU, or what else is known of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
