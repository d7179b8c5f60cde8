"""When a run is saved, what it resumes from, and the files that go with its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcit.checkpoint import (
    Checkpoint,
    DamagedError,
    Draft,
    Phase,
    TensorFile,
    discard,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
)
from mcit.config.identity import find_differences
from mcit.config.schema import CheckpointConfig
from mcit.errors import FolderError
from mcit.files import digest_file, flush, read_object, write_json, write_text
from mcit.importance import Importance
from mcit.parallel.processes import broadcast
from mcit.runner.result import SCORES
from mcit.runner.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    PROVENANCE,
    REWRITTEN,
    find_changed_data,
    find_damage,
    name_importance,
    note_resumption,
    refuse_differences,
    set_aside,
)

Say = Callable[[str], None]


class Checkpointer:
    """The checkpoints of a run; the main process alone writes, all processes read.

    identity: a checkpoint with what a run and its continuation must have in common (experiment,
    data, launch), what they had better have in common (origin), and the provenance.
    """

    def __init__(
        self, output: Path, config: CheckpointConfig, identity: Mapping[str, Any], main: bool = True
    ):
        self.output = output
        self.folder = output / CHECKPOINTS
        self.config = config
        self.identity = identity
        self.main = main
        self.provenance: Mapping[str, Any] = identity["provenance"]
        self._importance_files: dict[str, str] = {}
        self._damaged: list[Path] = []
        # files that the next checkpoint may share
        self._files: Mapping[str, TensorFile] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        # the checkpoint that is being written while training goes on
        self._writing: Future[None] | None = None
        self._saved = time.monotonic()

    def is_due(self, taken: int) -> bool:
        """Whether to save after so many steps of a task.

        Raise the error of a checkpoint that could not be written meanwhile.
        """
        if self._writing is not None and self._writing.done():
            self.settle()
        steps = self.config.every_steps
        minutes = self.config.every_minutes
        if steps is not None and taken % steps == 0:
            return True
        return minutes is not None and time.monotonic() - self._saved >= 60 * minutes

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove the oldest once it is complete.

        One inside a task is written while training goes on; `settle` waits for it.
        """
        self.settle()
        if self.main:
            whole = replace(
                checkpoint,
                **{**self.identity, "provenance": self.provenance},
                importance_files=dict(self._importance_files),
            )
            path = self.folder / checkpoint.position.name
            background = self.config.background and checkpoint.position.phase is Phase.FIT
            draft = Draft(path, whole, self._files, copy=background)
            if background:
                self._writing = self._executor.submit(self._write, draft)
            else:
                self._write(draft)
        self._saved = time.monotonic()

    def settle(self) -> None:
        """Wait for a checkpoint that is being written; raise the error if it could not be."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def save_importance(self, importance: Importance, index: int, task: str) -> None:
        """Write a task's importance as a file, if that is wanted."""
        if self.main and self.config.importance:
            path = name_importance(self.output, index, task)
            path.parent.mkdir(exist_ok=True)
            importance.save(path, task=task)
            flush(path)
            self._importance_files[path.name] = digest_file(path)

    def finish(self) -> None:
        """Keep the last checkpoint only, which holds the final weights."""
        self.settle()
        if self.main:
            self._prune(keep=1)

    def find(self, say: Say) -> Checkpoint | None:
        """Return the newest undamaged checkpoint of this very run; None if there is none at all."""
        path, checkpoint = self._choose(say) if self.main else (None, None)
        path = broadcast(path)
        if path is not None and checkpoint is None:
            checkpoint = read_checkpoint(path)
        return checkpoint

    def renew_files(
        self, checkpoint: Checkpoint, scores: Mapping[str, Any], config: str, count: int, say: Say
    ) -> None:
        """Bring the files next to a checkpoint into line with it, and say what was damaged.

        scores: what scores.json should hold. config: the text of config.yaml. count: of tasks.
        """
        position = checkpoint.position
        last = position.next_stage == count
        damage = find_damage(self.output, checkpoint, scores if last else None)
        self._importance_files = dict(checkpoint.importance_files)
        for name, problem in damage.items():
            remedy = "its contents are lost, and only a new run can make them again"
            if name in REWRITTEN:
                remedy = "it is written again"
            elif name == LOG and not last:
                remedy = self._restart_log()
            self._importance_files.pop(Path(name).name, None)
            say(f"warning: {self.output / name} {problem}; {remedy}")
        found = None if PROVENANCE in damage else read_object(self.output / PROVENANCE)
        provenance = found or checkpoint.provenance
        changed = find_differences(provenance["config"], self.provenance["config"])
        self.provenance = note_resumption(provenance, position.describe(count), changed)
        write_json(self.output / PROVENANCE, self.provenance)
        if changed or not (self.output / CONFIG).is_file():
            write_text(self.output / CONFIG, config)
        if scores["matrix"]:
            write_json(self.output / SCORES, scores)

    def _write(self, draft: Draft) -> None:
        self._files = draft.write()
        self._damaged = [damaged for damaged in self._damaged if damaged != draft.path]
        self._prune(self.config.keep)

    def _restart_log(self) -> str:
        """Keep a damaged log under another name; return what was done, in words."""
        path = self.output / LOG
        if not path.is_file():
            return "a new one begins"
        return f"it is now called {set_aside(path).name}, and a new one begins"

    def _prune(self, keep: int) -> None:
        # damaged checkpoints may have the newest names and must not count among those kept
        for path in self._damaged:
            discard(path)
        self._damaged = []
        prune_checkpoints(self.folder, keep)

    def _choose(self, say: Say) -> tuple[Path | None, Checkpoint | None]:
        found = list_checkpoints(self.folder)
        for path in found:
            try:
                checkpoint = read_checkpoint(path)
            except DamagedError as error:
                say(f"warning: {error}; trying the one before")
                self._damaged.append(path)
                continue
            self._check_identity(path, checkpoint, say)
            return path, checkpoint
        if found:
            raise FolderError(
                f"every checkpoint in {self.folder} is damaged; start again with --overwrite"
            )
        return None, None

    def _check_identity(self, path: Path, checkpoint: Checkpoint, say: Say) -> None:
        """Raise if a checkpoint is of another run; warn if other software wrote it."""
        changed_data = find_changed_data(checkpoint.data, self.identity["data"])
        before = {**checkpoint.experiment, "launch": checkpoint.launch}
        now = {**self.identity["experiment"], "launch": self.identity["launch"]}
        if self.main:
            # it names the run, in scores.json and in reports
            before["preset"] = checkpoint.provenance["config"].get("preset")
            now["preset"] = self.provenance["config"].get("preset")
        refuse_differences(self.output, before, now, changed_data)
        differences = find_differences(checkpoint.origin, self.identity["origin"])
        if differences:
            listed = "; ".join(difference.describe() for difference in differences)
            say(
                f"warning: {path} was written by other software, and its continuation may differ "
                f"in the last digits ({listed})"
            )
