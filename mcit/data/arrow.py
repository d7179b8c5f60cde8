"""Annotations parsed once into Arrow files, and memory mapped from then on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features
from datasets.arrow_writer import ArrowWriter

from mcit.task import DataError


def cache_folder() -> Path:
    """Where parsed data are kept: `$MCIT_CACHE`, or `~/.cache/mcit`."""
    return Path(os.environ.get("MCIT_CACHE") or Path.home() / ".cache" / "mcit")


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Hexadecimal digits that change with the content of any file and with any option, and with nothing else."""
    whole = hashlib.blake2b(digest_size=12)
    for path in paths:
        status = path.stat()
        whole.update(_digest(str(path.absolute()), status.st_size, status.st_mtime_ns))
    whole.update(json.dumps(options, sort_keys=True).encode())
    return whole.hexdigest()


def load_table(
    name: str,
    sources: Sequence[Path],
    options: Mapping[str, Any],
    features: Features,
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    about: Mapping[str, Any],
) -> Dataset:
    """The table of `rows()`, out of the cache if these very sources were parsed with these options before.

    `about` is kept beside it, as it reads when the last row is written.
    A table appears in the cache whole or not at all, so any number of processes may read and write at once.
    """
    folder = cache_folder() / "tables" / f"{name}-{fingerprint(sources, options)}"
    if not folder.is_dir():
        origin = {"sources": [str(path) for path in sources], "options": dict(options)}
        _write_table(folder, features, rows, lambda: {**origin, **about})
    return Dataset.from_file(str(folder / "rows.arrow"))


def read_about(table: Dataset) -> dict[str, Any]:
    """What was noted when the table was written."""
    return json.loads(Path(table.cache_files[0]["filename"]).with_name("about.json").read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write a file of the cache so that no reader ever sees half of it."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def make_folder(folder: Path) -> None:
    """Make a folder of the cache, or say what would do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the cache folder {folder} ({error.strerror}); set MCIT_CACHE to another"
        ) from error


@functools.lru_cache(maxsize=256)
def _digest(path: str, size: int, modified: int) -> bytes:
    # Size and time only spare a second reading within one process: what decides is the content.
    digest = hashlib.blake2b()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def _write_table(folder: Path, features: Features, rows: Callable[[], Iterable], about: Callable[[], dict]) -> None:
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    make_folder(draft)
    try:
        with ArrowWriter(features=features, path=str(draft / "rows.arrow"), writer_batch_size=1000) as writer:
            for row in rows():
                writer.write(row)
            count, _ = writer.finalize()
        (draft / "about.json").write_text(json.dumps({**about(), "rows": count}, indent=1), encoding="utf-8")
        try:
            os.rename(draft, folder)
        except OSError:
            if not folder.is_dir():  # another process was first, and wrote the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
