"""When a run is saved, and what it goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mcit.checkpoint import (
    DamagedError,
    Snapshot,
    list_checkpoints,
    name_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from mcit.config import CheckpointConfig
from mcit.method import Method
from mcit.parallel.processes import share
from mcit.runner.run_folder import CHECKPOINTS, FolderError, find_differences, find_newest, refuse_differences
from mcit.task import Recipe


class Keeper:
    """The checkpoints of a run; the main process alone writes, all read.

    `identity` is what a run and its continuation must have in common, `origin` what they had better.
    """

    def __init__(
        self,
        output: Path,
        config: CheckpointConfig,
        identity: Mapping[str, Any],
        origin: Mapping[str, Any],
        main: bool = True,
    ):
        self.output, self.folder, self.config = output, output / CHECKPOINTS, config
        self.identity, self.origin, self.main = identity, origin, main
        self._saved = time.monotonic()

    def due(self, taken: int) -> bool:
        """Whether to save after so many steps of a task."""
        steps, minutes = self.config.every_steps, self.config.every_minutes
        waited = time.monotonic() - self._saved
        return (steps is not None and taken % steps == 0) or (minutes is not None and waited >= 60 * minutes)

    def save(self, snapshot: Snapshot) -> None:
        """Write it, and remove the oldest once it is complete."""
        if self.main:
            about = {**snapshot.about, "identity": self.identity, "origin": self.origin}
            name = name_checkpoint(about["stage"], about["phase"], about["step"])
            write_checkpoint(self.folder / name, Snapshot(about, snapshot.parts))
            prune_checkpoints(self.folder, self.config.keep)
        self._saved = time.monotonic()

    def finish(self) -> None:
        """All is known: the last checkpoint, which holds the final weights, is enough."""
        if self.main:
            prune_checkpoints(self.folder, keep=1)

    def find(self, say: Callable[[str], None]) -> Snapshot | None:
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
        lines.append(f"the last good checkpoint is {newest}" if newest else "no checkpoint had been saved")
        return "\n  ".join(lines)

    def _choose(self, say: Callable[[str], None]) -> tuple[Path | None, Snapshot | None]:
        found = list_checkpoints(self.folder)
        for path in found:
            try:
                snapshot = read_checkpoint(path)
            except DamagedError as error:
                say(f"warning: {error}; trying the one before")
                continue
            self._check(path, snapshot, say)
            return path, snapshot
        if found:
            raise FolderError(f"no whole checkpoint is left in {self.folder}; start the run anew with --overwrite")
        return None, None

    def _check(self, path: Path, snapshot: Snapshot, say: Callable[[str], None]) -> None:
        refuse_differences(self.output, find_differences(snapshot.about["identity"], self.identity))
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
