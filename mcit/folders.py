"""Folders that commands write to: made or refused before any work, with the option that would do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from mcit.errors import FolderError


def make_folder(folder: Path, option: str) -> None:
    """Make the folder, or raise a FolderError that names the option that would do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refuse(folder, error.strerror, option) from None
    if not _is_writable(folder):
        raise _refuse(folder, os.strerror(errno.EACCES), option)


def find_folder_problem(folder: Path, option: str) -> str | None:
    """Return why the folder could not be made or written to, or None; nothing is made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is a file; {option} names the folder to write to"
    if not _is_writable(place):
        return f"{option} {str(folder)!r} cannot be written to ({os.strerror(errno.EACCES)}); choose another"
    return None


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _refuse(folder: Path, reason: str | None, option: str) -> FolderError:
    return FolderError(f"{folder} cannot be written to ({reason}); choose another {option}")
