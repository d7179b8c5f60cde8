"""Runs that begin the same way share the work: stages under all that decides them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import accelerate
import torch
from torch import Tensor

import mcit
from mcit.answering import Answering
from mcit.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedError,
    digest_tensor,
    discard,
    read_checkpoint,
    write_checkpoint,
)
from mcit.classifier import Classifier
from mcit.config.identity import keep_kinds
from mcit.config.options import Kind
from mcit.config.parse import to_dict
from mcit.files import digest_file, make_folder
from mcit.method import Method, Stage
from mcit.models.learner import Learner
from mcit.parallel.processes import broadcast
from mcit.runner.plan import Plan
from mcit.task import Task
from mcit.training.trainer import Trainer
from mcit.transport import Transport

# modules that cannot affect results; editing any other invalidates the cache
OUTSIDE = (
    "reports",
    "commands",
    "bench",
    "reproduce",
    "sweeps",
    "doctor",
    "cli",
    "__main__",
    "arguments",
    "callback",
    "provenance",
    "runner/tracking",
    "runner/run_folder",
    "runner/checkpointer",
    "runner/interruption",
)
# members of a method that say what it is called and what answers, and decide no step
OF_ANSWERS = ("name", "answers", "carries", "describe", "find_problems", "explain_divergence")
# elements of a tensor whose digest is remembered
LARGE = 1 << 16

Say = Callable[[str], None]


class StageCache:
    """A folder of stages, for any number of runs at a time: an entry appears whole or not at all.

    The keys of a plan's stages are a chain: each is made of its parent, its task with its data, and
    the method. A task's steps alone have an entry of their own. Methods whose first task is
    finetuning share it; runs whose steps change the network only share those of all tasks, whatever
    answers, and so do methods that differ in nothing else.
    """

    def __init__(self, folder: Path, plan: Plan, trainer: Trainer, learner: Learner):
        self.folder = folder
        self.method = plan.method
        self.answering = plan.answering
        self.main = trainer.accelerator.is_main_process
        if self.main:
            make_folder(folder, "--stage-cache")
        # digests of large objects, valid as long as the plan lives
        self._memo: dict[int, bytes] = {}
        self._keys: list[str] = [digest(_describe_start(plan, trainer, learner))]

    def find(self, stage: Stage, say: Say) -> Checkpoint | None:
        """Return what a whole stage led to: fitted, concluded by the method, scored."""
        return self._read(self._key(stage), say)

    def find_fit(self, stage: Stage, say: Say) -> Checkpoint | None:
        """Return what a task's steps led to, if runs of other methods or classifiers share them."""
        key = self._fit_key(stage)
        return None if key is None else self._read(key, say)

    def store(self, stage: Stage, checkpoint: Checkpoint) -> None:
        """Keep a whole stage."""
        self._write(self._key(stage), checkpoint)

    def store_fit(self, stage: Stage, checkpoint: Checkpoint) -> None:
        """Keep a task's steps, if they are shared."""
        key = self._fit_key(stage)
        if key is not None:
            self._write(key, checkpoint)

    def _key(self, stage: Stage) -> str:
        """Return the key of a stage; a resumed run has not been asked for those before."""
        while len(self._keys) < stage.index + 2:
            due = dataclasses.replace(stage, index=len(self._keys) - 1)
            self._keys.append(self._chain(due))
        return self._keys[stage.index + 1]

    def _chain(self, stage: Stage) -> str:
        """Return the key of the stage that follows the last one known."""
        own = {
            "name": self.method.name,
            "options": to_dict(self.method),
            "code": [digest_file(inspect.getfile(type(part))) for part in self.method.parts()],
            # joint training learns more than the stage's own task
            "fitted": list(self.method.tasks_to_fit(stage)),
            "followed": bool(stage.later),
            "widened": stage.head_widens,
        }
        parent = self._keys[-1]
        whole = {"parent": parent, "task": stage.task, "method": own}
        if self.answering.needs:
            whole["answering"] = _describe_answering(self.answering)
        return digest(whole, self._memo)

    def _fit_key(self, stage: Stage) -> str | None:
        if self.answering.looks_while_training:
            return None
        if stage.index == 0 and self.method.first_task_is_finetuning:
            return digest({"parent": self._keys[0], "task": stage.task, "fit": True}, self._memo)
        if not self.method.steps_move_network_only:
            return None
        parent = self._keys[0]
        if stage.index > 0:
            earlier = self._fit_key(dataclasses.replace(stage, index=stage.index - 1))
            parent = earlier or parent
        whole = {
            "parent": parent,
            "task": stage.task,
            "fit": describe_training(self.method),
            "followed": bool(stage.later),
        }
        return digest(whole, self._memo)

    def _read(self, key: str, say: Say) -> Checkpoint | None:
        """Return the entry of a key; one that is damaged or belongs to another key is removed."""
        path = None
        checkpoint = None
        if self.main and os.path.lexists(self.folder / key):
            path = self.folder / key
            try:
                checkpoint = _read_entry(path)
            except CheckpointError as error:
                say(f"warning: {error}; the stage is computed again")
                # another run may be removing it at this moment
                with suppress(OSError):
                    discard(path)
                path = None
        path = broadcast(path)
        if path is not None and checkpoint is None:
            checkpoint = read_checkpoint(path)
        return checkpoint

    def _write(self, key: str, checkpoint: Checkpoint) -> None:
        # an entry that another run has written meanwhile stays
        if self.main:
            extra = {**checkpoint.extra, "key": key}
            entry = dataclasses.replace(checkpoint, extra=extra)
            write_checkpoint(self.folder / key, entry, keep_existing=True)


def _describe_answering(answering: Answering) -> list[Any]:
    """Return what decides the scores besides the network: classifiers, transport, their code."""
    parts: list[Classifier | Transport] = [*answering.classifiers.values(), answering.transport]
    described = []
    for part in parts:
        code = digest_file(inspect.getfile(type(part)))
        described.append([part.name, to_dict(part), code])
    return described


def describe_training(method: Method) -> dict[str, Any]:
    """Return what decides a method's steps besides tasks and network: its options and its code.

    Methods of the same options that run the same code, such as two that differ in what answers,
    have the same.
    """
    fields = {field.name for field in dataclasses.fields(method)}
    code: dict[str, str] = {}
    for name in dir(type(method)):
        if name.startswith("__") or name in fields or name in OF_ANSWERS:
            continue
        value = inspect.getattr_static(type(method), name)
        function = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if inspect.isfunction(function):
            source = digest_file(inspect.getfile(function))
            code[name] = f"{function.__module__}.{function.__qualname__} {source}"
        else:
            code[name] = repr(value)
    return {"options": to_dict(method), "code": code}


def _read_entry(path: Path) -> Checkpoint:
    """Return an entry; raise a DamagedError if it says that it belongs to another key."""
    checkpoint = read_checkpoint(path)
    key = checkpoint.extra.get("key")
    if key != path.name:
        raise DamagedError(f"entry {path} of the stage cache is damaged: it belongs to {key}")
    return checkpoint


def _describe_start(plan: Plan, trainer: Trainer, learner: Learner) -> dict[str, Any]:
    """Return everything that decides a run before its first task."""
    accelerator = trainer.accelerator
    decides = (Kind.RESULT, Kind.ROUNDING)
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "software": describe_software(),
        "machine": [platform.machine(), capability, accelerator.device.type],
        "processes": [accelerator.num_processes, accelerator.mixed_precision],
        "seed": plan.config.seed,
        "training": keep_kinds(trainer.config, *decides),
        "model": keep_kinds(plan.config.model, *decides),
        "weights": dict(learner.state_dict()),
        "processor": learner.processor,
    }


def describe_software() -> dict[str, Any]:
    """Return what can change the last digit of a number: sources, libraries, threads."""
    return {
        "mcit": _digest_sources(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "accelerate": accelerate.__version__,
        "threads": torch.get_num_threads(),
    }


def digest(value: Any, memo: dict[int, bytes] | None = None) -> str:
    """Return digits that change with anything in a nested value: tensors, tasks, dataclasses, JSON.

    memo: remembers objects and large tensors, and is valid as long as they live.
    """
    whole = hashlib.sha256()
    for piece in _pieces(value, {} if memo is None else memo):
        whole.update(piece)
    return whole.hexdigest()[:40]


def _pieces(value: Any, memo: dict[int, bytes]) -> Iterator[bytes]:
    """Yield the kind and the content of every value, so that no two values have the same pieces."""
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
        yield from _pieces([str(value), *_stamp(value)], memo)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield f"{type(value).__name__} {len(str(value))} {value!s};".encode()
    else:
        if id(value) not in memo:
            described = [type(value).__qualname__, _describe_object(value)]
            memo[id(value)] = digest(described, memo).encode()
        yield memo[id(value)]


def _stamp(path: Path) -> list[int | None]:
    """Return size and modification time of a file; of anything else nothing is known."""
    if not path.is_file():
        return [None, None]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _digest_tensor(tensor: Tensor, memo: dict[int, bytes]) -> bytes:
    if id(tensor) in memo:
        return memo[id(tensor)]
    found = digest_tensor(tensor).encode()
    if tensor.numel() >= LARGE:
        memo[id(tensor)] = found
    return found


def _describe_object(value: Any) -> Any:
    """Return what an object is made of: its settings if it can say them, or its attributes."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "get_vocab"):
        return [repr(value), value.get_vocab()]
    if hasattr(value, "to_dict"):
        return to_dict(value.to_dict())
    if hasattr(value, "__dict__"):
        return vars(value)
    kind = type(value).__name__
    raise TypeError(f"a {kind} has no digest; the stage cache cannot tell two of them apart")


def _describe_task(task: Task) -> dict[str, Any]:
    data = task.fingerprint()
    if data is None and task.root is not None:
        data = str(task.root)
    return {
        "name": task.name,
        "code": digest_file(inspect.getfile(type(task))),
        "options": keep_kinds(task, Kind.RESULT, Kind.ROUNDING),
        "data": data,
    }


@functools.cache
def _digest_sources() -> str:
    root = Path(mcit.__file__).parent
    kept = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root).with_suffix("").as_posix()
        if name not in OUTSIDE and name.partition("/")[0] not in OUTSIDE:
            kept[name] = digest_file(path)
    return digest(kept)[:16]
