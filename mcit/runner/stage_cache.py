"""Runs that begin alike share the work: what a stage led to, kept under all that decides it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from torch import Tensor, nn

import mcit
from mcit.checkpoint import (
    CheckpointError,
    DamagedError,
    Snapshot,
    digest_file,
    discard,
    read_checkpoint,
    write_checkpoint,
)
from mcit.config import to_dict
from mcit.folders import make_folder
from mcit.method import Stage
from mcit.parallel.processes import share
from mcit.runner.plan import Plan
from mcit.task import Task
from mcit.training import Trainer

# Sources that change no weight and no score; a change anywhere else makes the cache forget.
OUTSIDE = (
    "reports",
    "commands",
    "bench",
    "reproduce",
    "sweeps",
    "doctor",
    "cli",
    "__main__",
    "callback",
    "passport",
)
OUTSIDE += tuple(
    f"runner/{name}" for name in ("dry_run", "tracking", "run_folder", "keeper", "interruption")
)
LARGE = 1 << 16  # elements of a tensor that is not read twice

Say = Callable[[str], None]


class StageCache:
    """A folder of stages, for any number of runs at a time: an entry appears whole or not at all.

    The keys of a plan's stages are a chain, each of its parent, its task with its data, and what the method says.
    """

    def __init__(self, folder: Path, plan: Plan, trainer: Trainer, learner: nn.Module):
        self.folder, self.plan, self.main = folder, plan, trainer.accelerator.is_main_process
        if self.main:
            make_folder(folder, "--stage-cache")
        self._memo: dict[int, bytes] = {}  # of what the plan's tasks hold
        self._stages: dict[int, str] = {}
        self._root = digest(_describe_beginning(plan, trainer, learner))

    def find(self, stage: Stage, say: Say) -> Snapshot | None:
        """What a whole stage led to: fitted, concluded by the method, scored."""
        return self._read(self._key(stage), say)

    def find_fit(self, stage: Stage, say: Say) -> Snapshot | None:
        """What a stage's steps led to, which methods may have in common."""
        return self._read(self._fit_key(stage), say)

    def store(self, stage: Stage, snapshot: Snapshot) -> None:
        """Keep a whole stage."""
        self._write(self._key(stage), snapshot)

    def store_fit(self, stage: Stage, snapshot: Snapshot) -> None:
        """Keep a stage's steps, if the method shares them."""
        self._write(self._fit_key(stage), snapshot)

    def _key(self, stage: Stage) -> str:
        if stage.index not in self._stages:
            code = digest_file(inspect.getfile(type(self.plan.method)))
            self._stages[stage.index] = self._chain(
                stage, {"method": self.plan.method.key(stage), "code": code}
            )
        return self._stages[stage.index]

    def _fit_key(self, stage: Stage) -> str | None:
        own = self.plan.method.fit_key(stage)
        return None if own is None else self._chain(stage, {"fit": own})

    def _chain(self, stage: Stage, own: Mapping[str, Any]) -> str:
        parent = (
            self._key(dataclasses.replace(stage, index=stage.index - 1))
            if stage.index
            else self._root
        )
        return digest({"parent": parent, "task": stage.task, **own}, self._memo)

    def _read(self, key: str | None, say: Say) -> Snapshot | None:
        """Return the entry of a key; one that is damaged or belongs to another key is removed."""
        path, snapshot = None, None
        if self.main and key is not None and os.path.lexists(self.folder / key):
            path = self.folder / key
            try:
                snapshot = _read_entry(path)
            except CheckpointError as error:
                say(f"warning: {error}; the stage is computed again")
                # where another run removes it at this moment, or it cannot be removed, it stays and is told of again
                with suppress(OSError):
                    discard(path)
        path = share(path if snapshot is not None else None)
        return read_checkpoint(path) if path is not None and snapshot is None else snapshot

    def _write(self, key: str | None, snapshot: Snapshot) -> None:
        """An entry that another run has written meanwhile stays."""
        if self.main and key is not None:
            knowing = Snapshot({**snapshot.about, "key": key}, snapshot.parts)
            write_checkpoint(self.folder / key, knowing, yield_to_others=True)


def _read_entry(path: Path) -> Snapshot:
    """Return an entry, which says itself what it is the entry of; raise a DamagedError if that is another."""
    snapshot = read_checkpoint(path)
    found = snapshot.about.get("key")
    if found != path.name:
        raise DamagedError(
            f"entry {path} of the stage cache is damaged: it says that it belongs to {found}"
        )
    return snapshot


def _describe_beginning(plan: Plan, trainer: Trainer, learner: nn.Module) -> dict[str, Any]:
    accelerator, training = trainer.accelerator, to_dict(trainer.config)
    training.pop("log_every")
    return {
        "software": describe_software(),
        "machine": [
            platform.machine(),
            torch.backends.cpu.get_cpu_capability(),
            accelerator.device.type,
        ],
        "processes": [accelerator.num_processes, accelerator.mixed_precision],
        "seed": plan.config.seed,
        "training": training,
        "model": to_dict(plan.config.model),
        "weights": dict(learner.state_dict()),
        "processor": learner.processor,
    }


def describe_software() -> dict[str, Any]:
    """What can change the last digit of a number: the sources, the libraries, the threads."""
    return {
        "mcit": _digest_sources(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
        "threads": torch.get_num_threads(),
    }


def digest(value: Any, memo: dict[int, bytes] | None = None) -> str:
    """Hexadecimal digits that change with anything in a nested value: tensors, tasks, data classes, JSON.

    `memo` remembers objects and large tensors, and is good as long as they live.
    """
    whole = hashlib.sha256()
    for piece in _pieces(value, {} if memo is None else memo):
        whole.update(piece)
    return whole.hexdigest()[:40]


def _pieces(value: Any, memo: dict[int, bytes]) -> Iterator[bytes]:
    """Of every value its kind and its content, so that no two values have the same pieces."""
    if isinstance(value, Task):
        yield from _pieces(_describe_task(value), memo)
    elif isinstance(value, Tensor):
        yield _digest_tensor(value, memo)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)};".encode()
        for key in sorted(value, key=str):
            yield from _pieces(key, memo)
            yield from _pieces(value[key], memo)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield f"sequence {len(value)};".encode()
        for item in value:
            yield from _pieces(item, memo)
    elif isinstance(value, Path):
        status = value.stat() if value.is_file() else None
        yield from _pieces(
            [str(value), status and status.st_size, status and status.st_mtime_ns], memo
        )
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield f"{type(value).__name__} {len(str(value))} {value!s};".encode()
    else:
        if id(value) not in memo:
            memo[id(value)] = digest(
                [type(value).__qualname__, _describe_object(value)], memo
            ).encode()
        yield memo[id(value)]


def _digest_tensor(tensor: Tensor, memo: dict[int, bytes]) -> bytes:
    if id(tensor) in memo:
        return memo[id(tensor)]
    plain = tensor.detach().cpu().contiguous()
    whole = hashlib.sha256(f"tensor {plain.dtype} {list(plain.shape)};".encode())
    if plain.numel():
        whole.update(plain.view(-1).view(torch.uint8).numpy().data)
    if plain.numel() >= LARGE:
        memo[id(tensor)] = whole.digest()
    return whole.digest()


def _describe_object(value: Any) -> Any:
    """What an object is made of: the settings that it knows how to tell, or its attributes."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "get_vocab"):
        return [repr(value), value.get_vocab()]
    if hasattr(value, "to_dict"):
        return to_dict(value.to_dict())
    if hasattr(value, "__dict__"):
        return vars(value)
    raise TypeError(
        f"a {type(value).__name__} has no digest; the stage cache cannot tell two of them apart"
    )


def _describe_task(task: Task) -> dict[str, Any]:
    data = task.fingerprint()
    options = {
        field.name: getattr(task, field.name)
        for field in dataclasses.fields(task)
        if field.name != "root"
    }
    about = {
        "name": task.name,
        "code": digest_file(inspect.getfile(type(task))),
        "options": options,
    }
    if data is None:  # then it is told by the images in memory, or by the place they are read from
        for split in ("train", "eval"):
            task.examples(split)
        data = None if task.root is None else str(task.root)
    return {**about, "data": data}


@functools.cache
def _digest_sources() -> str:
    root = Path(mcit.__file__).parent
    found = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.py")}
    kept = {
        name: path
        for name, path in found.items()
        if not {name, name.partition("/")[0]} & set(OUTSIDE)
    }
    return digest({name: digest_file(path) for name, path in kept.items()})[:16]
