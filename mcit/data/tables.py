"""Annotations parsed once into Arrow files, and memory mapped from then on.

Nothing in the cache is trusted: what is kept has a digest of its content and of the name it is kept
under, which is verified before it is used. What is damaged, or in the place of something else, is
made again, and that is said on stderr.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter

from mcit.data.files import open_regular, read_bytes
from mcit.errors import DataError
from mcit.files import (
    LockedError,
    cache_folder,
    hold_lock,
    make_folder,
    read_object,
    write_json,
    write_text,
)
from mcit.printable import printable

# yields the rows, and notes in the dictionary it is given what else is to be kept with them
Parse = Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]
_ROWS = "rows.arrow"
_ABOUT = "about.json"


def open_cache(name: str) -> Path:
    """Return a folder of the cache, made if it is not there."""
    folder = cache_folder() / name
    # one that is there may belong to somebody else, and can be read
    if not folder.is_dir():
        make_folder(folder, "MCIT_CACHE")
    return folder


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return digits that change with the content of any file and any option, and nothing else."""
    whole = hashlib.blake2b(digest_size=12)
    for path in paths:
        whole.update(_digest_source(path))
    whole.update(json.dumps(options, sort_keys=True).encode())
    return whole.hexdigest()


def load_table(
    name: str,
    sources: Sequence[Path],
    options: Mapping[str, Any],
    columns: Mapping[str, str | list[str]],
    parse: Parse,
) -> Dataset:
    """Return the table of what `parse` yields, from the cache if these sources were parsed before.

    columns: the type of each column, in a list if it holds lists. A table appears in the cache
    whole or not at all, so that many processes may read and write at once.
    """
    folder = open_cache("tables") / f"{name}-{fingerprint(sources, options)}"
    origin = {"sources": [str(path) for path in sources], "options": dict(options)}
    write = functools.partial(_write_table, folder, _read_columns(columns), parse, origin)
    if not os.path.lexists(folder):
        write()
    elif not _is_whole(folder):
        _write_again(folder, write)
    return Dataset.from_file(str(folder / _ROWS))


def read_about(table: Dataset) -> dict[str, Any]:
    """Return what was noted when the table was written."""
    folder = Path(table.cache_files[0]["filename"]).parent
    about = _unseal(folder / _ABOUT)
    if about is None:
        raise DataError(
            f"{folder} was damaged while it was in use; start again, and it is parsed again"
        )
    return about


def keep_text(path: Path, text: str) -> None:
    """Write a file of the cache unless it holds this very text."""
    try:
        known = read_bytes(path, limit=len(text.encode()))
    except (OSError, DataError):
        known = b""
    if known != text.encode():
        with _hold_cache():
            write_text(path, text)


def write_sealed(path: Path, value: Any) -> None:
    """Write JSON with a digest of it and of the name of its file."""
    with _hold_cache():
        write_json(path, {"digest": _seal(path.name, value), "value": value})


def read_sealed(path: Path) -> Any:
    """Return what was written under that name, or None; if it is damaged, that is said."""
    value = _unseal(path)
    if value is None and os.path.lexists(path):
        _say(f"{path} is damaged (or of an earlier version): making it again")
    return value


def _unseal(path: Path) -> Any:
    sealed = read_object(path)
    if sealed is None or sealed.get("digest") != _seal(path.name, sealed.get("value")):
        return None
    return sealed["value"]


def _seal(name: str, value: Any) -> str:
    text = json.dumps([name, value], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _digest_source(path: Path) -> bytes:
    try:
        status = path.stat()
        return _digest_once(str(path.absolute()), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=256)
def _digest_once(path: str, size: int, modified: int, node: int = 0) -> bytes:
    # size and time only spare a second reading within one process: the content decides
    whole = hashlib.blake2b()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            whole.update(block)
    return whole.digest()


def _is_whole(folder: Path) -> bool:
    """Whether the files of a table are those that were written for its key."""
    about = _unseal(folder / _ABOUT)
    if about is None or about.get("key") != folder.name:
        return False
    rows = folder / _ROWS
    try:
        status = rows.stat()
        digest = _digest_once(str(rows), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        return False
    return about.get("digest") == digest.hex()


def _read_columns(columns: Mapping[str, str | list[str]]) -> Features:
    features = {}
    for name, kind in columns.items():
        features[name] = [Value(kind[0])] if isinstance(kind, list) else Value(kind)
    return Features(features)


def _write_table(folder: Path, features: Features, parse: Parse, origin: Mapping[str, Any]) -> None:
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    draft.mkdir()
    about: dict[str, Any] = {}
    try:
        path = str(draft / _ROWS)
        with ArrowWriter(features=features, path=path, writer_batch_size=1000) as writer:
            for row in parse(about):
                writer.write(row)
            count, _ = writer.finalize()
        digest = _digest_source(draft / _ROWS).hex()
        known = {"key": folder.name, "digest": digest, "rows": count}
        noted = {**origin, **about, **known}
        write_json(draft / _ABOUT, {"digest": _seal(_ABOUT, noted), "value": noted})
        try:
            os.rename(draft, folder)
        except OSError:
            # another process was first, and wrote the same
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_again(folder: Path, write: Callable[[], None]) -> None:
    """Replace a damaged table; of several processes that find it damaged, one does."""
    try:
        with _hold_cache():
            if not _is_whole(folder):
                _replace_table(folder, write)
    except OSError as error:
        raise DataError(
            f"{folder} is damaged and cannot be written again ({error.strerror or error}); "
            "remove it, or set MCIT_CACHE to another folder"
        ) from error


def _replace_table(folder: Path, write: Callable[[], None]) -> None:
    _say(
        f"the parsed annotations in {folder} are damaged (or of an earlier version): "
        "parsing them again"
    )
    aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    # whatever reads the damaged files has them open, and keeps them
    os.rename(folder, aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
    write()


@contextmanager
def _hold_cache() -> Iterator[None]:
    """Hold the lock of the cache, in which several processes may write the same file at once."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_lock(cache_folder() / ".lock"))
                break
            except LockedError:
                time.sleep(0.05)
        yield


def _say(text: str) -> None:
    print(printable(f"mcit: {text}"), file=sys.stderr, flush=True)
