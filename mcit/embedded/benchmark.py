"""The benchmark as files: four tasks in the official formats and layout under one root."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from mcit.data.workers import count_jobs, map_pieces
from mcit.embedded.nlvr2 import write_nlvr2
from mcit.embedded.snli_ve import write_snli_ve
from mcit.embedded.vcr import write_vcr
from mcit.embedded.vqav2 import write_vqav2
from mcit.files import cache_folder, make_folder, read_object

# the small ViLT, a folder in Hugging Face format
VILT = Path(__file__).with_name("vilt")
# the small LLaVA, likewise
LLAVA = Path(__file__).with_name("llava")
# of the generator: whatever changes a written byte raises it
VERSION = 2
WRITERS = {"vqav2": write_vqav2, "nlvr2": write_nlvr2, "snli-ve": write_snli_ve, "vcr": write_vcr}
# seconds; a run knows its images by their times too, which must be the same wherever they are made
WRITTEN = 1_600_000_000
SETTINGS = "embedded.json"
# training examples per task from which on more processes are worth their start
LARGE = 1000
# official names of the training split and of those that are scored
SPLITS = {
    "vqav2": ("train", "val"),
    "nlvr2": ("train", "dev", "test1"),
    "snli-ve": ("train", "dev", "test"),
    "vcr": ("train", "val"),
}


@dataclass(frozen=True)
class Sizes:
    """The number of examples of each task for training, and in each split that is scored."""

    train: int = 4096
    evaluation: int = 768


DEFAULT_SIZES = Sizes()


def write_benchmark(root: Path, sizes: Sizes = DEFAULT_SIZES, seed: int = 0) -> None:
    """Write all four tasks under `root`. Every split has its own scenes.

    The same sizes and seed make the same bytes.
    """
    # longest first, so that processes end together
    parts = [(task, "train", sizes.train) for task in SPLITS]
    for task, splits in SPLITS.items():
        parts += [(task, split, sizes.evaluation) for split in splits if split != "train"]
    jobs = count_jobs() if sizes.train >= LARGE else 1
    for _ in map_pieces(partial(_write_split, root, seed), parts, jobs):
        pass
    settings = {"version": VERSION, "seed": seed, **dataclasses.asdict(sizes)}
    (root / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _write_split(root: Path, seed: int, part: tuple[str, str, int]) -> None:
    task, split, count = part
    WRITERS[task](root, split, count, Random(f"benchmark {seed} {task} {split}"))


def read_settings(root: Path) -> dict[str, Any] | None:
    """Return version, seed and sizes of the benchmark under `root`; None if there is none."""
    return read_object(root / SETTINGS)


def find_place(
    cache: str | Path | None = None, sizes: Sizes = DEFAULT_SIZES, seed: int = 0
) -> Path:
    """Return where the benchmark is, or will be, in the cache."""
    folder = Path(cache).expanduser() if cache else cache_folder()
    return folder / f"embedded-v{VERSION}-{sizes.train}-{sizes.evaluation}-seed{seed}"


def ensure_benchmark(
    cache: str | Path | None = None, sizes: Sizes = DEFAULT_SIZES, seed: int = 0
) -> Path:
    """Return the root of the benchmark in the cache, written if it is not there.

    The files are written next to their place and moved there in one step, so that an interrupted
    run leaves nothing half made and two runs at once agree.
    """
    root = find_place(cache, sizes, seed)
    if root.is_dir():
        return root
    folder = root.parent
    make_folder(folder, "MCIT_CACHE")
    draft = Path(tempfile.mkdtemp(prefix=f"{root.name}.", suffix=".part", dir=folder))
    try:
        write_benchmark(draft, sizes, seed)
        for path in draft.rglob("*"):
            os.utime(path, (WRITTEN, WRITTEN))
        # mkdtemp keeps others out, a cache need not
        draft.chmod(0o755)
        _settle(draft, root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _settle(draft: Path, root: Path) -> None:
    """Move the draft to its place, unless another process was quicker with the same bytes."""
    try:
        draft.rename(root)
    except OSError:
        if not root.is_dir():
            raise
