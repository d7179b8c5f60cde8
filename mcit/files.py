"""Files and folders: written whole or not at all, digests, locks, and the cache folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcit.errors import ConfigError, FolderError

# the ending of a file's name while it is being written
DRAFT = ".tmp"
# everything a run of a sweep printed, in the run's folder
CONSOLE_LOG = "console.log"
# held by the process that writes to the run's folder
LOCK = ".lock"


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never half of it."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all."""
    draft = path.with_name(path.name + DRAFT)
    try:
        draft.write_text(text, encoding="utf-8")
        flush(draft)
        draft.replace(path)
        flush(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise FolderError(
            f"{path} could not be written: {error.strerror}; make room, or choose another folder"
        ) from error


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if it is missing, damaged or something else."""
    # a pipe in its place would keep a reader waiting
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return data


def digest_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    whole = hashlib.sha256()
    with Path(path).open("rb") as opened:
        while block := opened.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()


def flush(path: Path) -> None:
    """Bring a file or a folder onto the disk, so that it survives a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, option: str) -> None:
    """Make the folder, or raise a FolderError that names the option to change."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be written to ({error.strerror}); choose another {option}"
        ) from None
    if not _is_writable(folder):
        denied = os.strerror(errno.EACCES)
        raise FolderError(f"{folder} cannot be written to ({denied}); choose another {option}")


def find_folder_problem(folder: Path, option: str) -> str | None:
    """Return why the folder could not be made or written to, or None; nothing is made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is a file; {option} names the folder to write to"
    if not _is_writable(place):
        denied = os.strerror(errno.EACCES)
        return f"{option} {str(folder)!r} cannot be written to ({denied}); choose another"
    return None


def find_path_problems(option: str, name: str | None) -> list[str]:
    """Return why a folder cannot have this name; None means no folder and has no problem."""
    if name is None:
        return []
    if not name:
        return [f"'{option}' is empty; give the name of a folder, or leave it out"]
    if "\0" in name:
        return [f"'{option}' is {name!r}, and a folder's name cannot hold a zero byte"]
    try:
        # a run writes the names of its folders into text files
        name.encode("utf-8")
    except UnicodeEncodeError:
        return [f"'{option}' is {name!r}, which is not valid UTF-8; rename the folder"]
    return []


def cache_folder() -> Path:
    """Return the folder of what is kept between runs: `$MCIT_CACHE`, or `~/.cache/mcit`."""
    named = os.environ.get("MCIT_CACHE")
    try:
        if named:
            return Path(named).expanduser()
        return Path.home() / ".cache" / "mcit"
    except RuntimeError as error:
        where = f"MCIT_CACHE is {named!r}" if named else "HOME is not set"
        raise ConfigError(
            [f"there is no folder for caches ({where}: {error}); set MCIT_CACHE to a folder"]
        ) from None


class LockedError(FolderError):
    """Another process holds the lock."""


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file; raise a LockedError that says who holds it if another process does.

    The lock ends with the process, also if that is killed.
    """
    # imported late: `mcit list` and a mistyped option need no locks
    from filelock import FileLock, Timeout

    holder = path.with_name(f"{path.name}.pid")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        who = holder.read_text(encoding="utf-8").strip() if holder.is_file() else "unknown"
        raise LockedError(f"{path} is held by process {who}") from None
    try:
        holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
