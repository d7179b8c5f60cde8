"""The benchmark as files: the four tasks in the official formats and layout under one root, made once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mcit.config import cache_root
from mcit.embedded.nlvr2 import write_nlvr2
from mcit.embedded.snli_ve import write_snli_ve
from mcit.embedded.vcr import write_vcr
from mcit.embedded.vqav2 import write_vqav2

VERSION = 2  # of the generator: whatever changes a written byte raises it
WRITERS = {"vqav2": write_vqav2, "nlvr2": write_nlvr2, "snli-ve": write_snli_ve, "vcr": write_vcr}
# seconds; a run knows its images by their times too, and must find the same wherever and whenever they are made
WRITTEN = 1_600_000_000
SPLITS = {  # official names of the training split and of those that are scored
    "vqav2": ("train", "val"),
    "nlvr2": ("train", "dev", "test1"),
    "snli-ve": ("train", "dev", "test"),
    "vcr": ("train", "val"),
}


@dataclass(frozen=True)
class Sizes:
    """How many examples each task has for training, and in each split that is scored."""

    train: int = 4096
    evaluation: int = 768


def write_benchmark(root: Path, sizes: Sizes | None = None, seed: int = 0) -> None:
    """All four tasks under `root`. The same sizes and seed give the same bytes; every split has its own scenes."""
    sizes = sizes or Sizes()
    for task, splits in SPLITS.items():
        for split in splits:
            count = sizes.train if split == "train" else sizes.evaluation
            WRITERS[task](root, split, count, Random(f"benchmark {seed} {task} {split}"))
    settings = {"version": VERSION, "seed": seed, **dataclasses.asdict(sizes)}
    (root / "embedded.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def ensure_benchmark(
    cache_dir: str | Path | None = None, sizes: Sizes | None = None, seed: int = 0
) -> Path:
    """The root of the benchmark in the cache, written now if it is not there yet.

    The cache is `cache_dir`, else `$MCIT_CACHE`, else `~/.cache/mcit`. The files are written beside their place and
    moved there in one step, so that an interrupted run leaves nothing half made and two runs at once agree.
    """
    sizes = sizes or Sizes()
    cache = Path(cache_dir).expanduser() if cache_dir else cache_root()
    root = cache / f"embedded-v{VERSION}-{sizes.train}-{sizes.evaluation}-seed{seed}"
    if root.is_dir():
        return root
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{root.name}.", suffix=".part", dir=cache))
    try:
        write_benchmark(draft, sizes, seed)
        for path in draft.rglob("*"):
            os.utime(path, (WRITTEN, WRITTEN))
        draft.chmod(0o755)  # mkdtemp keeps others out, a cache need not
        _settle(draft, root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _settle(draft: Path, root: Path) -> None:
    """Move the draft to its place, unless another process has been quicker with the same bytes."""
    try:
        draft.rename(root)
    except OSError:
        if not root.is_dir():
            raise


def digest(root: Path) -> str:
    """A fingerprint of every file below a folder, names and bytes."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            total.update(
                path.relative_to(root).as_posix().encode()
                + b"\0"
                + hashlib.sha256(path.read_bytes()).digest()
            )
    return total.hexdigest()
