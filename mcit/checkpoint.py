"""Checkpoints: folders of tensors and JSON that exist whole or not at all.

They are written aside, flushed, renamed, and verified by digest when they are read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcit.errors import McitError
from mcit.files import digest_file, flush

FORMAT = "mcit checkpoint 2"
STATE = "state.json"
# `sha256sum -c SHA256SUMS` verifies a checkpoint by hand
SUMS = "SHA256SUMS"
TENSORS = ".safetensors"
_NAME = re.compile(r"(\d+)-(fit|fitted|done)(?:-(\d+))?")

State = Mapping[str, Any]


class CheckpointError(McitError, OSError):
    """A checkpoint that cannot be written or resumed from."""


class DamagedError(CheckpointError):
    """A checkpoint whose files are not those that were written."""


class Phase(str, Enum):
    """How far a task is: inside its steps, after them, or after its scores are recorded."""

    FIT = "fit"
    FITTED = "fitted"
    DONE = "done"


@dataclass(frozen=True)
class Position:
    """Where a run is."""

    stage: int
    task: str
    phase: Phase
    # steps taken inside the task, of how many
    step: int = 0
    steps: int = 0

    @property
    def name(self) -> str:
        """Return the name of the checkpoint's folder, by which checkpoints are ordered."""
        if self.phase is Phase.FIT:
            return f"{self.stage:02d}-{self.phase.value}-{self.step:08d}"
        return f"{self.stage:02d}-{self.phase.value}"

    @property
    def next_stage(self) -> int:
        """Return the stage to continue with."""
        return self.stage + 1 if self.phase is Phase.DONE else self.stage

    def describe(self, count: int) -> str:
        """Return the place for a reader: `after 150 of 400 steps of nlvr2 (task 2 of 4)`."""
        phrases = {
            Phase.FIT: f"after {self.step} of {self.steps} steps of",
            Phase.FITTED: "after all steps, before the scores, of",
            Phase.DONE: "after",
        }
        return f"{phrases[self.phase]} {self.task} (task {self.stage + 1} of {count})"


@dataclass(frozen=True)
class LearnerState:
    """Everything of a learner that a run may have changed."""

    # heads and adapters that were added, as JSON
    structure: State
    # weights and buffers that trained or may have changed
    tensors: Mapping[str, Tensor]
    # parameters that do not train now
    frozen: Sequence[str]
    training: bool
    # digest of the weights that are not stored because they never train
    base: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A run at a moment."""

    position: Position
    learner: LearnerState
    method: State
    # random states of every process
    random: Sequence[State]
    # optimizer state, inside a task only
    optimizer: State | None = None
    # statistics of classes, and what else classifiers need
    answering: State = field(default_factory=dict)
    # state of the loss scaler of fp16
    scaler: State | None = None
    # what the run has found so far, see Result.state_dict
    result: State = field(default_factory=dict)
    # settings, data and processes that a run and its continuation must have in common
    experiment: State = field(default_factory=dict)
    data: State = field(default_factory=dict)
    launch: State = field(default_factory=dict)
    # software that they had better have in common
    origin: State = field(default_factory=dict)
    # score of the present task before it was learned, if that was measured
    before: float | None = None
    provenance: State = field(default_factory=dict)
    # size and digest of the log at that moment
    log: State = field(default_factory=dict)
    # digests of the importance files that were written
    importance_files: Mapping[str, str] = field(default_factory=dict)
    # further values of a cache entry
    extra: State = field(default_factory=dict)


def write_checkpoint(path: Path, checkpoint: Checkpoint, keep_existing: bool = False) -> None:
    """Write a checkpoint as the folder `path`; what was there stays until the new one is complete.

    keep_existing: leave alone a folder that another process has put there meanwhile.
    """
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        draft.mkdir(parents=True)
        _write_files(draft, checkpoint)
        if keep_existing and path.exists():
            shutil.rmtree(draft)
            return
        discard(path)
        os.replace(draft, path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"checkpoint {path} could not be written: {reason}. What was saved before is intact; "
            "make room or fix the folder, and continue with --resume"
        ) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint, verified; raise a CheckpointError if it is damaged or too old."""
    state, files = verify_checkpoint(path)
    tensors: dict[str, Tensor] = {}
    for name in files:
        if not name.endswith(TENSORS):
            continue
        try:
            tensors.update(load_file(path / name))
        except SafetensorError as error:
            raise DamagedError(
                f"checkpoint {path} is damaged: its tensors cannot be read ({error})"
            ) from None
    return _from_state(unpack(state, tensors))


def read_state(path: Path) -> Checkpoint:
    """Return a checkpoint, verified, without its tensors."""
    state, _ = verify_checkpoint(path)
    return _from_state(unpack(state, None))


def verify_checkpoint(path: Path) -> tuple[Any, list[str]]:
    """Return the packed state of a checkpoint and the names of its files.

    Raise a DamagedError unless its files are those that are listed, as they were written, and no
    others; raise a CheckpointError if the format is another.
    """
    sums = _read_sums(path)
    if STATE not in sums:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {STATE}")
    stray = sorted({entry.name for entry in path.iterdir()} - {SUMS, *sums})
    if stray:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {stray[0]}")
    for name, digest in sums.items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"checkpoint {path} is damaged: {name} is missing")
        if digest_file(file) != digest:
            raise DamagedError(f"checkpoint {path} is damaged: {name} is not as it was written")
    header = _read_header(path)
    found = header.get("format")
    if found != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has the format {found!r}, and this version of mcit reads "
            f"{FORMAT!r}: resume with the version that wrote it, or start again with --overwrite"
        )
    unlisted = sorted({*header["files"]} - {*sums})
    if unlisted:
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} does not name {unlisted[0]}")
    return header["state"], sorted(sums)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, the newest first."""
    if not folder.is_dir():
        return []
    found = {}
    for path in folder.iterdir():
        place = _order_of(path.name)
        if place is not None:
            found[path] = place
    return sorted(found, key=lambda path: found[path], reverse=True)


def read_position(path: Path) -> tuple[int, Phase]:
    """Return the stage and phase that a checkpoint's name says."""
    stage, _, rest = path.name.partition("-")
    return int(stage), Phase(rest.partition("-")[0])


def find_blocked_names(folder: Path) -> list[Path]:
    """Return entries that have the name of a checkpoint and are not a directory."""
    return sorted(path for path in list_checkpoints(folder) if not path.is_dir())


def discard(path: Path) -> None:
    """Remove a checkpoint, or whatever else has its name, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what was never completed."""
    for path in [*list_checkpoints(folder)[keep:], *folder.glob(".*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints; anything else in the folder stays."""
    prune_checkpoints(folder, keep=0)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def pack(value: Any, tensors: dict[str, Tensor], where: str = "") -> Any:
    """Return a nested state as JSON; its tensors go into `tensors`, and the JSON names them."""
    if isinstance(value, Tensor):
        # a key may itself have a slash, so that two places may have one name
        name = where if where not in tensors else f"{where}#{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        # as a list, since optimizer states have numbers as keys and JSON has not
        items = [[key, pack(item, tensors, f"{where}/{key}")] for key, item in value.items()]
        return {"items": items}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [pack(item, tensors, f"{where}/{place}") for place, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = type(value).__name__
    raise TypeError(f"a state holds tensors and JSON values only; {where or 'it'} is a {kind}")


def unpack(value: Any, tensors: Mapping[str, Tensor] | None) -> Any:
    """Return the state that `pack` was given; sequences are lists, missing tensors None."""
    if isinstance(value, dict):
        if "tensor" in value:
            return None if tensors is None else tensors[value["tensor"]]
        return {key: unpack(item, tensors) for key, item in value["items"]}
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    return value


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    files: dict[str, dict[str, Tensor]] = {}
    packed = []
    for field_ in dataclasses.fields(checkpoint):
        value = getattr(checkpoint, field_.name)
        if isinstance(value, (Position, LearnerState)):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        tensors: dict[str, Tensor] = {}
        packed.append([field_.name, pack(value, tensors, field_.name)])
        if tensors:
            files[f"{field_.name}{TENSORS}"] = tensors
    for name, tensors in files.items():
        save_file(_separate(tensors), folder / name)
    # the names are kept twice, so that a file is missed that is gone with its line in the list
    header = {"format": FORMAT, "files": list(files), "state": {"items": packed}}
    text = json.dumps(header, ensure_ascii=False)
    (folder / STATE).write_text(text + "\n", encoding="utf-8")
    written = sorted(folder.iterdir())
    sums = "".join(f"{digest_file(file)}  {file.name}\n" for file in written)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    for path in (*written, folder / SUMS, folder):
        flush(path)


def _from_state(state: Mapping[str, Any]) -> Checkpoint:
    position = dict(state["position"])
    position["phase"] = Phase(position["phase"])
    parts = {"position": Position(**position), "learner": LearnerState(**state["learner"])}
    return Checkpoint(**{**state, **parts})


def _read_header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads((path / STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedError(
            f"checkpoint {path} is damaged: {STATE} is not valid JSON ({error})"
        ) from None
    if not isinstance(header, dict):
        kind = type(header).__name__
        raise DamagedError(f"checkpoint {path} is damaged: {STATE} holds a {kind}, not an object")
    return header


def _read_sums(path: Path) -> dict[str, str]:
    """Return the digest of every file that a checkpoint's list names."""
    listed = path / SUMS
    # a pipe in its place would keep a reader waiting
    if not listed.is_file():
        raise DamagedError(f"checkpoint {path} is damaged: {SUMS} is missing")
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(
            f"checkpoint {path} is damaged: {SUMS} cannot be read ({error})"
        ) from None
    sums: dict[str, str] = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if name in sums:
            raise DamagedError(f"checkpoint {path} is damaged: {SUMS} names {name} twice")
        sums[name] = digest
    return sums


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a file can hold them: contiguous, on the CPU, no two in one memory."""
    separate: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        if memory in memories:
            tensor = tensor.clone()
        separate[name] = tensor
        memories.add(memory)
    return separate


def _order_of(name: str) -> tuple[int, int, int] | None:
    """Return what orders a checkpoint by its name, None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or (match[2] == "fit") != (match[3] is not None):
        return None
    return int(match[1]), list(Phase).index(Phase(match[2])), int(match[3] or 0)
