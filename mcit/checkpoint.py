"""Folders of tensors and JSON that exist whole or not at all: written aside, flushed, renamed, verified by digest."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcit.errors import McitError
from mcit.files import digest_file, flush

FORMAT = "mcit checkpoint 1"
STATE = "state.json"
SUMS = "SHA256SUMS"  # `sha256sum -c SHA256SUMS` verifies a checkpoint by hand
TENSORS = ".safetensors"
PHASES = (
    "fit",
    "fitted",
    "done",
)  # within a task's steps, after them, and after its scores are known
_NAME = re.compile(r"(\d+)-(?:(fit)-(\d+)|(fitted)|(done))")


class CheckpointError(McitError, OSError):
    """A checkpoint that cannot be written, or that cannot be gone on from."""


class DamagedError(CheckpointError):
    """A checkpoint whose files are not those that were written."""


@dataclass(frozen=True)
class Snapshot:
    """JSON values, and tensors by part; a part is a file."""

    about: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


def name_checkpoint(stage: int, phase: str, step: int = 0) -> str:
    """The folder's name, by which checkpoints are ordered."""
    return f"{stage:02d}-{phase}" + (f"-{step:08d}" if phase == "fit" else "")


def list_checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, the newest first."""
    found = [path for path in folder.iterdir() if _place(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: _place(path.name), reverse=True)


def write_checkpoint(path: Path, snapshot: Snapshot, yield_to_others: bool = False) -> None:
    """Write a snapshot as the folder `path`; what was there before is there until the new one is complete.

    With `yield_to_others`, a folder that another process has put there meanwhile stays.
    """
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        draft.mkdir(parents=True)
        _write_files(draft, snapshot)
        if yield_to_others and path.exists():
            shutil.rmtree(draft)
            return
        discard(path)
        os.replace(draft, path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"checkpoint {path} could not be written: {reason}. What was saved before is as it was; "
            "make room or mend the folder, and go on with --resume"
        ) from error


def read_checkpoint(path: Path) -> Snapshot:
    """Return the snapshot of a folder, verified; raise a CheckpointError if it is damaged or of another version."""
    about, names = verify_checkpoint(path)
    files = [path / name for name in names if name.endswith(TENSORS)]
    try:
        return Snapshot(about, {file.stem: load_file(file) for file in files})
    except SafetensorError as error:
        raise DamagedError(
            f"checkpoint {path} is damaged: its tensors cannot be read ({error})"
        ) from None


def verify_checkpoint(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON values of a checkpoint and the names of its files, without reading the tensors.

    Raise a DamagedError unless its files are those that are listed, as they were written, and no others; raise a
    CheckpointError if the format is another.
    """
    noted = _read_sums(path)
    if STATE not in noted:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {STATE}")
    stray = sorted({entry.name for entry in path.iterdir()} - {SUMS, *noted})
    if stray:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {stray[0]}")
    for name, digest in noted.items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"checkpoint {path} is damaged: {name} is missing")
        if digest_file(file) != digest:
            raise DamagedError(f"checkpoint {path} is damaged: {name} is not as it was written")
    about = _read_state(path)
    found = about.get("format")
    if found != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has the format {found!r} where this version of mcit reads {FORMAT!r}: "
            "go on with the version that wrote it, or start the run anew with --overwrite"
        )
    unlisted = sorted({*about.get("files", [])} - {*noted})
    if unlisted:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {unlisted[0]}")
    return about, sorted(noted)


def find_blocked_names(folder: Path) -> list[Path]:
    """Return what has the name of a checkpoint and is no folder, so that none could be written or read there."""
    return sorted(path for path in list_checkpoints(folder) if not path.is_dir())


def discard(path: Path) -> None:
    """Remove a checkpoint, or whatever else has its name; nothing there is as good."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Leave the newest `keep` checkpoints, and nothing of those that were never completed."""
    for path in [*list_checkpoints(folder)[keep:], *folder.glob(".*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints; anything else in the folder stays."""
    prune_checkpoints(folder, keep=0)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def pack(value: Any, tensors: dict[str, Tensor], where: str = "") -> Any:
    """A nested state as JSON; its tensors go into `tensors`, and places in the JSON name them."""
    if isinstance(value, Tensor):
        name = (
            where if where not in tensors else f"{where}#{len(tensors)}"
        )  # a key may itself have a slash
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        # keys may be numbers, which JSON has not
        return {
            "items": [[key, pack(item, tensors, f"{where}/{key}")] for key, item in value.items()]
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [pack(item, tensors, f"{where}/{place}") for place, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"a state holds tensors and JSON values only; {where or 'it'} is a {type(value).__name__}"
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `pack` was given; sequences are lists."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: unpack(item, tensors) for key, item in value["items"]}
    return [unpack(item, tensors) for item in value] if isinstance(value, list) else value


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    names = [f"{part}{TENSORS}" for part, tensors in snapshot.parts.items() if tensors]
    for name in names:
        save_file(_separate(snapshot.parts[name.removesuffix(TENSORS)]), folder / name)
    # the names are kept twice: a file that is gone together with its line in the list is missed all the same
    about = json.dumps({"format": FORMAT, "files": names, **snapshot.about}, ensure_ascii=False)
    (folder / STATE).write_text(about + "\n", encoding="utf-8")
    files = sorted(folder.iterdir())
    sums = "".join(f"{digest_file(file)}  {file.name}\n" for file in files)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    for path in (*files, folder / SUMS, folder):
        flush(path)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedError(
            f"checkpoint {path} is damaged: {STATE} is not valid JSON ({error})"
        ) from None
    if not isinstance(about, dict):
        raise DamagedError(
            f"checkpoint {path} is damaged: {STATE} holds a {type(about).__name__}, not an object"
        )
    return about


def _read_sums(path: Path) -> dict[str, str]:
    """Return the digest of every file that a checkpoint's list names."""
    listed = path / SUMS
    # a pipe in its place would keep a reader waiting
    if not listed.is_file():
        raise DamagedError(
            f"checkpoint {path} is damaged: {SUMS} cannot be read (there is no such file)"
        )
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(
            f"checkpoint {path} is damaged: {SUMS} cannot be read ({error})"
        ) from None
    noted = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if name in noted:
            raise DamagedError(f"checkpoint {path} is damaged: {SUMS} names {name} twice")
        noted[name] = digest
    return noted


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as a file can hold them: contiguous, on the CPU, no two in one memory."""
    found: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if memory in memories else tensor
        memories.add(memory)
    return found


def _place(name: str) -> tuple[int, int, int] | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stage, fit, step, fitted, done = found.groups()
    return int(stage), PHASES.index(fit or fitted or done), int(step or 0)
