"""Files that appear whole or not at all, also if the power fails."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from mcit.errors import FolderError

# what the name of a file ends with while it is written
DRAFT = ".tmp"
# all that a run of a sweep printed, in the run's folder
CONSOLE_LOG = "console.log"


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never half of it."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all; an error names it."""
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


def digest_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    whole = hashlib.sha256()
    with Path(path).open("rb") as opened:
        while block := opened.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()


def flush(path: Path) -> None:
    """Bring a file or a folder onto the disk, so that it is there even if the machine loses power right after."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
