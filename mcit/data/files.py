"""Source files: only regular ones are opened, none is read beyond a limit, and many are told apart without reading.

A pipe would be waited for, a device has no end, and a link may lead to either: whoever opens a file of a data set does
it here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mcit.task import DataError

_THREADS = 8  # they wait for a network file system side by side; on a local disk they cost nothing
_PIECE = 1000  # files that a thread looks at in one go


def open_regular(path: str | Path) -> BinaryIO:
    """Return a regular file opened for reading; raise an OSError for anything else, without waiting for it."""
    # without O_NONBLOCK, opening a pipe lasts until somebody writes to it
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; raise a DataError if it has more than `limit` bytes."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataError(
            f"{path} has more than {limit:,} bytes, and is no file of these data; fetch it again"
        )
    return content


def describe_absence(path: Path) -> str:
    """Return what to say of a path that is no file and no folder: `is missing`, or that it is something else."""
    return "is a pipe, a device or a broken link" if os.path.lexists(path) else "is missing"


class Entry(NamedTuple):
    """A name in a folder; a pipe, a device or a link that leads nowhere is neither a folder nor a file."""

    name: str
    is_folder: bool
    is_file: bool


def list_folder(folder: Path, most: int | None = None) -> list[Entry]:
    """Return what a folder holds, sorted by name, or raise a DataError; links count as what they lead to.

    With `most`, no more entries than that are looked at, whichever they are.
    """
    try:
        with os.scandir(folder) as listing:
            # the listing itself knows files from folders, but for links; nothing else is asked file by file
            return sorted(_describe_entry(entry) for entry in islice(listing, most))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be listed: {error.strerror}") from error


def _describe_entry(entry: os.DirEntry) -> Entry:
    try:
        return Entry(entry.name, entry.is_dir(), entry.is_file())
    except OSError:
        # a link that leads back to itself
        return Entry(entry.name, is_folder=False, is_file=False)


@dataclass(frozen=True)
class Stamp:
    """What a listing tells of files: digests of their names and sizes, and of their times of change."""

    content: str
    times: str


def stamp_files(files: Sequence[tuple[str, str | Path]]) -> Stamp:
    """Return the stamp of (name, path) pairs in their order; a file that is not there counts as such."""
    pieces = [files[start : start + _PIECE] for start in range(0, len(files), _PIECE)]
    content = hashlib.blake2b(digest_size=16)
    times = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(_THREADS) as pool:
        for piece, found in zip(pieces, pool.map(_look_at, pieces), strict=True):
            for (name, _), (size, modified) in zip(piece, found, strict=True):
                mark = name.encode("utf-8", "surrogatepass")
                content.update(b"%s\0%d\n" % (mark, size))
                times.update(b"%s\0%d\n" % (mark, modified))
    return Stamp(content.hexdigest(), times.hexdigest())


def _look_at(files: Sequence[tuple[str, str | Path]]) -> list[tuple[int, int]]:
    """Sizes and times of change; -1 for a file that is not there."""
    found = []
    for _, path in files:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            found.append((-1, -1))
        except OSError as error:
            raise DataError(f"{path} cannot be looked at: {error.strerror}") from None
        else:
            found.append((status.st_size, status.st_mtime_ns))
    return found
