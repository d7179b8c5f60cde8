"""Checkpoints: folders of tensors and JSON that exist whole or not at all.

They are written aside, flushed, renamed, and verified by digest when they are read. Files of
tensors that did not change since the checkpoint before are shared with it, by hard links.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mcit.errors import McitError
from mcit.files import digest_file, flush
from mcit.named_tensors import write_file

FORMAT = "mcit checkpoint 2"
STATE = "state.json"
# `sha256sum -c SHA256SUMS` verifies a checkpoint by hand
SUMS = "SHA256SUMS"
TENSORS = ".safetensors"
# fields whose tensors may stay the same from one checkpoint to the next: importance and anchor do
# while the steps of a task are taken, weights and their moments never
RESTING = ("method", "answering")
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
    Draft(path, checkpoint).write(keep_existing)


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors that the next checkpoint shares if they are still the same."""

    path: Path
    # digest of the tensors, and of the file's bytes
    content: str
    digest: str


class Draft:
    """A checkpoint on its way to the disk: its state is taken at once, and `write` brings it there.

    before: files of the checkpoint before, by name. copy: hold copies of the tensors, so that the
    state may change before it is written.
    """

    def __init__(
        self,
        path: Path,
        checkpoint: Checkpoint,
        before: Mapping[str, TensorFile] | None = None,
        copy: bool = False,
    ):
        self.path = path
        self.folder = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}.tmp")
        packed, files = _pack_fields(checkpoint)
        # the names are kept twice, so that a file is missed that is gone with its line in the list
        header = {"format": FORMAT, "files": list(files), "state": {"items": packed}}
        self.header = json.dumps(header, ensure_ascii=False)
        resting = [f"{name}{TENSORS}" for name in RESTING]
        self.contents = {name: _digest_content(files[name]) for name in resting if name in files}
        # digests of the files that are shared
        self.shared: dict[str, str] = {}
        with self._explaining():
            self.folder.mkdir(parents=True)
            self._share(before or {})
        self.tensors = {
            name: _separate(tensors, copy)
            for name, tensors in files.items()
            if name not in self.shared
        }

    def write(self, keep_existing: bool = False) -> dict[str, TensorFile]:
        """Bring the checkpoint to its place; return the files that the next one may share."""
        with self._explaining():
            sums = self._write_files()
            if keep_existing and self.path.exists():
                shutil.rmtree(self.folder)
                return {}
            discard(self.path)
            os.replace(self.folder, self.path)
            flush(self.path.parent)
        return {
            name: TensorFile(self.path / name, content, sums[name])
            for name, content in self.contents.items()
        }

    def _share(self, before: Mapping[str, TensorFile]) -> None:
        """Put files of the checkpoint before into the folder whose tensors are the same."""
        for name, content in self.contents.items():
            file = before.get(name)
            if file is None or file.content != content:
                continue
            try:
                os.link(file.path, self.folder / name)
            except OSError:
                # a file system without hard links: the file is written like any other
                continue
            self.shared[name] = file.digest

    def _write_files(self) -> dict[str, str]:
        """Write everything, flushed; return the digest of every file."""
        for name, tensors in self.tensors.items():
            write_file(tensors, self.folder / name)
        (self.folder / STATE).write_text(f"{self.header}\n", encoding="utf-8")
        written = sorted(self.folder.iterdir())
        sums = {}
        for file in written:
            sums[file.name] = self.shared.get(file.name) or digest_file(file)
        lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
        (self.folder / SUMS).write_text(lines, encoding="utf-8")
        for path in (*written, self.folder / SUMS, self.folder):
            flush(path)
        return sums

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Leave nothing behind where something cannot be written, and say what can be done."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            reason = getattr(error, "strerror", None) or str(error)
            raise CheckpointError(
                f"checkpoint {self.path} could not be written: {reason}. What was saved before is "
                "intact; make room or fix the folder, and continue with --resume"
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
            raise DamagedError(
                f"checkpoint {path} is damaged: {name} has changed since it was written"
            )
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


def digest_tensor(tensor: Tensor) -> str:
    """Return a digest of a tensor's type, shape and values."""
    plain = tensor.detach().cpu().contiguous()
    whole = hashlib.sha256(f"{plain.dtype} {list(plain.shape)}\n".encode())
    if plain.numel():
        whole.update(plain.view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _pack_fields(checkpoint: Checkpoint) -> tuple[list[Any], dict[str, dict[str, Tensor]]]:
    """Return the fields of a checkpoint as JSON, and their tensors by the file that holds them."""
    packed = []
    files: dict[str, dict[str, Tensor]] = {}
    for field_ in dataclasses.fields(checkpoint):
        value = getattr(checkpoint, field_.name)
        if isinstance(value, (Position, LearnerState)):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        tensors: dict[str, Tensor] = {}
        packed.append([field_.name, pack(value, tensors, field_.name)])
        if tensors:
            files[f"{field_.name}{TENSORS}"] = tensors
    return packed, files


def _digest_content(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the names and values of tensors."""
    lines = [f"{digest_tensor(tensor)}  {name}\n" for name, tensor in tensors.items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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


def _separate(tensors: Mapping[str, Tensor], copy: bool) -> dict[str, Tensor]:
    """Return tensors as a file can hold them: contiguous, on the CPU, no two in one memory.

    copy: none of them in the memory of the tensors that were given either.
    """
    separate: dict[str, Tensor] = {}
    memories: set[int] = set()
    if copy:
        memories = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in memories:
            tensor = tensor.clone()
        separate[name] = tensor
        memories.add(tensor.untyped_storage().data_ptr())
    return separate


def _order_of(name: str) -> tuple[int, int, int] | None:
    """Return what orders a checkpoint by its name, None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or (match[2] == "fit") != (match[3] is not None):
        return None
    return int(match[1]), list(Phase).index(Phase(match[2])), int(match[3] or 0)
