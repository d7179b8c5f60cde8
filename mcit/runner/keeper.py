"""When a run is saved, and what it goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mcit.checkpoint import (
    DamagedError,
    Snapshot,
    digest_file,
    discard,
    flush,
    list_checkpoints,
    name_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from mcit.config import CheckpointConfig
from mcit.files import write_json
from mcit.importance import Importance
from mcit.method import Method
from mcit.parallel.processes import share
from mcit.runner.run_folder import (
    CHECKPOINTS,
    LOG,
    MADE_AGAIN,
    PASSPORT,
    SCORES,
    FolderError,
    find_changed_data,
    find_damage,
    find_differences,
    find_newest,
    name_importance,
    read_object,
    refuse_differences,
    set_aside,
)
from mcit.task import Recipe

WRITTEN_AGAIN = "it is written again"
LOST = "what it held is lost, and only a new run makes it again"

Say = Callable[[str], None]


class Keeper:
    """The checkpoints of a run, and what is made again from them; the main process alone writes, all read.

    `identity` is what a run and its continuation must have in common, `origin` what they had better. `passport` goes
    into every checkpoint, so that the file can be made again.
    """

    def __init__(
        self,
        output: Path,
        config: CheckpointConfig,
        identity: Mapping[str, Any],
        origin: Mapping[str, Any],
        passport: Mapping[str, Any] | None = None,
        main: bool = True,
    ):
        self.output, self.folder, self.config = output, output / CHECKPOINTS, config
        self.identity, self.origin, self.main = identity, origin, main
        self.passport: Mapping[str, Any] = passport or {}
        self._importance: dict[str, str] = {}  # the digest of every file of importance
        self._damaged: list[Path] = []
        self._saved = time.monotonic()

    def due(self, taken: int) -> bool:
        """Whether to save after so many steps of a task."""
        steps, minutes = self.config.every_steps, self.config.every_minutes
        waited = time.monotonic() - self._saved
        return (steps is not None and taken % steps == 0) or (
            minutes is not None and waited >= 60 * minutes
        )

    def save(self, snapshot: Snapshot) -> None:
        """Write it, and remove the oldest once it is complete."""
        if self.main:
            about = {**snapshot.about, "identity": self.identity, "origin": self.origin}
            about |= {"passport": self.passport, "importance_files": self._importance}
            path = self.folder / name_checkpoint(about["stage"], about["phase"], about["step"])
            write_checkpoint(path, Snapshot(about, snapshot.parts))
            self._damaged = [damaged for damaged in self._damaged if damaged != path]
            self._prune(self.config.keep)
        self._saved = time.monotonic()

    def keep_importance(self, importance: Importance, index: int, task: str) -> None:
        """Write a task's importance as a file, where that is wanted."""
        if self.main and self.config.importance:
            path = name_importance(self.output, index, task)
            path.parent.mkdir(exist_ok=True)
            importance.save(path, task=task)
            flush(path)
            self._importance[path.name] = digest_file(path)

    def renew_files(
        self, about: Mapping[str, Any], scores: Mapping[str, Any], last: bool, say: Say
    ) -> None:
        """Bring the files beside the checkpoint that says `about` into line with it, and say what was damaged.

        scores: what scores.json should hold. last: whether the checkpoint is the run's last, so that it must.
        """
        damage = find_damage(self.output, about, scores if last else None)
        self._importance = dict(about.get("importance_files", {}))
        for name, problem in damage.items():
            remedy = WRITTEN_AGAIN if name in MADE_AGAIN else LOST
            if name == LOG and not last:
                remedy = _begin_log_anew(self.output / LOG)
            self._importance.pop(Path(name).name, None)
            say(f"warning: {self.output / name} {problem}; {remedy}")
        passport = None if PASSPORT in damage else read_object(self.output / PASSPORT)
        self.passport = passport or about.get("passport", self.passport)
        if scores["matrix"]:
            write_json(self.output / SCORES, scores)

    def finish(self) -> None:
        """All is known: the last checkpoint, which holds the final weights, is enough."""
        if self.main:
            self._prune(keep=1)

    def find(self, say: Say) -> Snapshot | None:
        """The newest whole checkpoint, of this very run; None where there is none at all."""
        path, snapshot = self._choose(say) if self.main else (None, None)
        path = share(path)
        if path is not None and snapshot is None:
            snapshot = read_checkpoint(path)
        return snapshot

    def explain(self, error: FloatingPointError, method: Method, recipe: Recipe) -> str:
        """What went wrong, how stiff the penalty was, and what is left."""
        lines = [str(error)]
        manager = getattr(method, "manager", None)
        if manager is not None and manager.importance:
            step = (recipe.learning_rate, recipe.momentum) if recipe.optimizer == "sgd" else ()
            found = manager.diagnose(*step)
            lines += [f"the penalty: {found.describe()}", *filter(None, [found.warning()])]
        newest = find_newest(self.output)
        lines.append(
            f"the last good checkpoint is {newest}" if newest else "no checkpoint had been saved"
        )
        return "\n  ".join(lines)

    def _prune(self, keep: int) -> None:
        """Leave the newest; damaged ones, which may have the newest names, must not count among them."""
        for path in self._damaged:
            discard(path)
        self._damaged = []
        prune_checkpoints(self.folder, keep)

    def _choose(self, say: Say) -> tuple[Path | None, Snapshot | None]:
        found = list_checkpoints(self.folder)
        for path in found:
            try:
                snapshot = read_checkpoint(path)
            except DamagedError as error:
                say(f"warning: {error}; trying the one before")
                self._damaged.append(path)
                continue
            self._check(path, snapshot, say)
            return path, snapshot
        if found:
            raise FolderError(
                f"no whole checkpoint is left in {self.folder}; start the run anew with --overwrite"
            )
        return None, None

    def _check(self, path: Path, snapshot: Snapshot, say: Say) -> None:
        before = snapshot.about["identity"]
        changed_data = find_changed_data(before.get("data", {}), self.identity.get("data", {}))
        refuse_differences(self.output, find_differences(before, self.identity), changed_data)
        changed = find_differences(snapshot.about["origin"], self.origin)
        if changed:
            say(
                f"warning: {path} was written by other software, and its continuation may differ in the last digits "
                f"({'; '.join(changed)})"
            )


def describe_place(about: Mapping[str, Any], count: int) -> str:
    """Where a snapshot was taken, for a reader: `after 150 of 400 steps of nlvr2 (task 2 of 4)`."""
    number = about["stage"] + 1
    what = {
        "fit": f"after {about['step']} of {about.get('steps')} steps of",
        "fitted": "after all steps, before the scores, of",
        "done": "after",
    }[about["phase"]]
    return f"{what} {about['task']} (task {number} of {count})"


def _begin_log_anew(path: Path) -> str:
    """Keep a damaged log under another name; return what was done, in words."""
    if not path.is_file():
        return "a new one begins"
    return f"it is now called {set_aside(path).name}, and a new one begins"
