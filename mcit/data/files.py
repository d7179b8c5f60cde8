"""Source files: only regular ones are opened, and none is read beyond a limit.

A pipe would be waited for, a device has no end, and a link may lead to either: whatever opens a
file of a data set does it here.
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

from mcit.errors import DataError

# they wait for a network file system at the same time; on a local disk they cost nothing
_THREADS = 8
# files whose state a thread asks for in one go
_PIECE = 1000


def open_regular(path: str | Path) -> BinaryIO:
    """Return a regular file opened for reading; raise an OSError at once for anything else."""
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
            f"{path} has more than {limit:,} bytes, and cannot be of these data; fetch it again"
        )
    return content


def describe_absence(path: Path) -> str:
    """Return what to say of a path that is neither a file nor a folder."""
    if os.path.lexists(path):
        return "is a pipe, a device or a broken link"
    return "is missing"


class Entry(NamedTuple):
    """A name in a folder; a pipe, a device or a broken link is neither a folder nor a file."""

    name: str
    is_folder: bool
    is_file: bool


def list_folder(folder: Path, most: int | None = None) -> list[Entry]:
    """Return the entries of a folder, sorted by name; links count as what they lead to.

    With `most`, no more entries than that are read, whichever they are.
    """
    try:
        with os.scandir(folder) as listing:
            # the listing itself says what is a file, but for links: no other question per file
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
    """Digests of the names and sizes of files, and of their modification times."""

    content: str
    times: str


def stamp_files(files: Sequence[tuple[str, str | Path]]) -> Stamp:
    """Return the stamp of (name, path) pairs in their order; a missing file counts as such."""
    pieces = [files[start : start + _PIECE] for start in range(0, len(files), _PIECE)]
    content = hashlib.blake2b(digest_size=16)
    times = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(_THREADS) as pool:
        for states in pool.map(_read_states, pieces):
            for name, size, modified in states:
                content.update(b"%s\0%d\n" % (name, size))
                times.update(b"%s\0%d\n" % (name, modified))
    return Stamp(content.hexdigest(), times.hexdigest())


def _read_states(files: Sequence[tuple[str, str | Path]]) -> list[tuple[bytes, int, int]]:
    """Return names, sizes and modification times; -1 and -1 of a file that is missing."""
    states = []
    for name, path in files:
        encoded = name.encode("utf-8", "surrogatepass")
        try:
            status = os.stat(path)
        except FileNotFoundError:
            states.append((encoded, -1, -1))
        except OSError as error:
            raise DataError(f"{path} cannot be examined: {error.strerror}") from None
        else:
            states.append((encoded, status.st_size, status.st_mtime_ns))
    return states
