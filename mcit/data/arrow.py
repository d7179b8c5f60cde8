"""Annotations parsed once into Arrow files, and memory mapped from then on.

Nothing in the cache is trusted: a table has a digest of its files and of the key it is kept under, which is verified
before the table is used. One that is damaged, or in the place of another, is parsed again, and that is said on stderr.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset, Features
from datasets.arrow_writer import ArrowWriter

from mcit.config import cache_root
from mcit.data.files import open_regular, read_bytes
from mcit.printable import printable
from mcit.task import DataError

_ROWS, _ABOUT, _DIGEST = "rows.arrow", "about.json", "digest"
_CHUNK = 1 << 20  # bytes read at a time
_MOST_BYTES = 1 << 30  # of a small file of the cache, which may list every image of a data set


def cache_folder() -> Path:
    """Where parsed data are kept: `$MCIT_CACHE`, or `~/.cache/mcit`."""
    return cache_root()


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Hexadecimal digits that change with the content of any file and with any option, and with nothing else."""
    whole = hashlib.blake2b(digest_size=12)
    for path in paths:
        try:
            status = path.stat()
            whole.update(_digest(str(path.absolute()), status.st_size, status.st_mtime_ns))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
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
    origin = {"sources": [str(path) for path in sources], "options": dict(options)}
    write = functools.partial(_write_table, folder, features, rows, lambda: {**origin, **about})
    if not os.path.lexists(folder):
        write()
    elif not is_whole(folder):
        _write_again(folder, write)
    return Dataset.from_file(str(folder / _ROWS))


def read_about(table: Dataset) -> dict[str, Any]:
    """What was noted when the table was written."""
    folder = Path(table.cache_files[0]["filename"]).parent
    if not is_whole(folder):
        raise DataError(
            f"{folder} was damaged while it was in use; start again, and it is parsed again"
        )
    return json.loads((folder / _ABOUT).read_text(encoding="utf-8"))


def is_whole(folder: Path) -> bool:
    """Whether the files of a table are those that were written for its key; they are read once by a process."""
    try:
        states = [os.stat(folder / name) for name in (_ROWS, _ABOUT, _DIGEST)]
    except OSError:
        return False
    return _is_whole(
        str(folder), tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
    )


def write_sealed(path: Path, value: Any) -> None:
    """Write JSON to the cache with a digest of it and of the name of its file."""
    write_text(path, json.dumps({"digest": _seal(path.name, value), "value": value}))


def read_sealed(path: Path) -> Any:
    """Return what was written by that name; None where nothing was, or where it is damaged, which is said."""
    if not os.path.lexists(path):
        return None
    try:
        found = json.loads(read_bytes(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found.get("digest") == _seal(path.name, found.get("value")):
        return found["value"]
    _say_damaged(f"{path} is damaged (or of an earlier version): making it again")
    return None


def keep_text(path: Path, text: str) -> None:
    """Write a file of the cache unless it is there with this very text."""
    content = text.encode()
    try:
        same = read_bytes(path, len(content)) == content
    except (OSError, DataError):
        same = False
    if not same:
        write_text(path, text)


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
    _add_file(digest, path)
    return digest.digest()


def _add_file(digest: Any, path: str | Path) -> None:
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)


def _digest_table(folder: Path, key: str) -> str:
    """Of the key that a table is kept under, of its rows and of what is noted beside them."""
    digest = hashlib.blake2b(key.encode(), digest_size=32)
    for name in (_ROWS, _ABOUT):
        digest.update(f"\0{name} {(folder / name).stat().st_size}\0".encode())
        _add_file(digest, folder / name)
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _is_whole(folder: str, states: tuple[tuple[int, int, int], ...]) -> bool:
    # as above: within one process, a table that is as it was is not read a second time
    path = Path(folder)
    try:
        expected = read_bytes(path / _DIGEST, limit=1000)
        return expected == _digest_table(path, path.name).encode()
    except (OSError, DataError):
        return False


def _seal(name: str, value: Any) -> str:
    text = json.dumps([name, value], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _write_table(
    folder: Path, features: Features, rows: Callable[[], Iterable], about: Callable[[], dict]
) -> None:
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    make_folder(draft)
    try:
        with ArrowWriter(
            features=features, path=str(draft / _ROWS), writer_batch_size=1000
        ) as writer:
            for row in rows():
                writer.write(row)
            count, _ = writer.finalize()
        (draft / _ABOUT).write_text(
            json.dumps({**about(), "rows": count}, indent=1), encoding="utf-8"
        )
        (draft / _DIGEST).write_text(_digest_table(draft, folder.name), encoding="utf-8")
        try:
            os.rename(draft, folder)
        except OSError:
            if not folder.is_dir():  # another process was first, and wrote the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_again(folder: Path, write: Callable[[], None]) -> None:
    """Put a new table in the place of a damaged one; of several processes that find it, one does."""
    try:
        with _alone(folder.parent):
            if is_whole(folder):
                return
            _say_damaged(
                f"the parsed annotations in {folder} are damaged (or of an earlier version): parsing them again"
            )
            aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
            # whoever reads the damaged files has them open, and keeps them
            os.rename(folder, aside)
            if aside.is_dir() and not aside.is_symlink():
                shutil.rmtree(aside)
            else:
                aside.unlink()
            write()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{folder} is damaged and cannot be written again ({reason}); remove it, or set MCIT_CACHE to another"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is replacing a table in a folder; a killed one lets go."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say_damaged(text: str) -> None:
    print(printable(f"mcit: {text}"), file=sys.stderr, flush=True)
