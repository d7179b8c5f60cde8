"""The folder of a run: its files, who writes to it, and whether it can hold this run."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcit.checkpoint import (
    Checkpoint,
    CheckpointError,
    Phase,
    find_blocked_names,
    list_checkpoints,
    read_position,
    read_state,
    remove_checkpoints,
)
from mcit.config.identity import Difference, find_differences
from mcit.errors import ConfigError, FolderError
from mcit.files import (
    CONSOLE_LOG,
    DRAFT,
    LOCK,
    LockedError,
    digest_file,
    find_folder_problem,
    flush,
    hold_lock,
    is_locked,
    make_folder,
    read_object,
)
from mcit.runner.plan import Plan
from mcit.runner.result import SCORES

CHECKPOINTS = "checkpoints"
CONFIG = "config.yaml"
LOG = "log.jsonl"
PROVENANCE = "provenance.json"
# one file for every task whose importance was measured
IMPORTANCE = "importance"
FILES = (SCORES, "report.md", "report.html", CONFIG, PROVENANCE, LOG)
# what else a run writes, by folder
FOLDERS = {
    IMPORTANCE: ("safetensors",),
    "tables": ("md", "tex", "csv"),
    "figures": ("svg", "png", "pdf"),
}
# files that are written again from a checkpoint if they are missing or damaged
REWRITTEN = (SCORES, PROVENANCE, CONFIG)
# what a killed run may leave of files it was writing; safetensors names its own drafts
DRAFTS = (*(f"{name}{DRAFT}" for name in FILES), f"{IMPORTANCE}/*{DRAFT}", f"{IMPORTANCE}/{DRAFT}*")

Say = Callable[[str], None]


class RunLog:
    """Lines of JSON, each written at once; a listener receives them too."""

    def __init__(self, path: Path | None):
        self.path = path
        self.listener: Callable[[Mapping[str, Any]], None] | None = None

    def __call__(self, entry: Mapping[str, Any]) -> None:
        if self.listener is not None:
            self.listener(entry)
        if self.path is None:
            return
        line = json.dumps({"time": round(time.time(), 3), **entry}, ensure_ascii=False)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise FolderError(
                f"{self.path} could not be written: {error.strerror}. What was saved before is "
                "intact; make room or fix the folder, and continue with --resume"
            ) from error

    def settle(self) -> dict[str, Any]:
        """Bring the log onto the disk; return its size and digest."""
        if self.path is None or not self.path.is_file():
            return {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
        flush(self.path)
        return {"bytes": self.path.stat().st_size, "sha256": digest_file(self.path)}

    def truncate(self, size: int) -> None:
        """Drop what was written after the log had this size."""
        if self.path is None or not self.path.is_file():
            return
        if self.path.stat().st_size > size:
            os.truncate(self.path, size)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder, made if need be; raise if another process is writing a run to it."""
    make_folder(folder, "--output")
    lock = folder / LOCK
    if os.path.lexists(lock) and not lock.is_file():
        raise FolderError(f"{lock} is in the way: this must be the run's lock file; remove it")
    try:
        with hold_lock(lock):
            yield
    except LockedError as error:
        raise FolderError(
            f"{folder} is in use by another run ({error}); wait for it, or stop it"
        ) from None


def is_abandoned(folder: Path) -> bool:
    """Whether no process holds the folder any more, as after the main process was killed."""
    return not is_locked(folder / LOCK)


def holds_run(folder: Path) -> bool:
    """Whether there is a run, or what is left of one."""
    return any((folder / name).exists() for name in (*FILES, CHECKPOINTS))


def is_finished(folder: Path) -> bool:
    """Whether all tasks of the run were scored.

    A damaged scores.json counts as none: it is written again from the checkpoint.
    """
    scores = read_object(folder / SCORES) or {}
    tasks = scores.get("tasks")
    rows = scores.get("matrix")
    if not isinstance(tasks, list) or not isinstance(rows, list) or len(rows) != len(tasks):
        return False
    saved = list_checkpoints(folder / CHECKPOINTS)
    if not saved:
        return True
    return read_position(saved[0]) == (len(tasks) - 1, Phase.DONE)


def find_newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run."""
    return next(iter(list_checkpoints(folder / CHECKPOINTS)), None)


def name_importance(folder: Path, index: int, task: str) -> Path:
    """Return the file of a task's importance; files sort as the tasks do."""
    return folder / IMPORTANCE / f"{index + 1:02d}-{task}.safetensors"


def read_command(folder: Path, otherwise: str) -> str:
    """Return the command that a run was started with."""
    provenance = read_object(folder / PROVENANCE) or {}
    command = provenance.get("command")
    if not isinstance(command, list) or not command:
        return otherwise
    program, *options = map(str, command)
    # scripts/run_sequence.py is `mcit run`, and reports name it so
    if program == "run_sequence.py":
        return shlex.join(["mcit", "run", *options])
    return shlex.join([program, *options])


def choose_output(plan: Plan, overwrite: bool, resume: bool = False) -> tuple[Path, bool]:
    """Return the folder of the run, and whether there is a run in it to resume.

    Every run has a folder of its own; one that is given must not hold a run yet, unless it may be
    overwritten.
    """
    config = plan.config
    if config.output is not None:
        output = Path(config.output)
        if output.exists() and not output.is_dir():
            raise ConfigError([f"{output} is a file; --output names the folder of the run"])
        if holds_run(output) and not resume and not overwrite:
            raise ConfigError(
                [f"{output} already holds a run; choose another --output, or pass --overwrite"]
            )
        if resume and holds_run(output):
            return output, True
    else:
        stem = "-".join(_to_file_name(item) for item in config.order)
        base = Path("runs") / f"{stem}-{config.method.name}-seed{config.seed}"
        earlier = list_numbered(base)
        if resume:
            found = _find_resumable(earlier, plan)
            if found is not None:
                return found, True
        output = base
        if earlier:
            output = base.with_name(f"{base.name}-{len(earlier) + 1}")
    if resume:
        print(f"nothing to resume: {output} starts from the beginning")
    return output, False


def list_numbered(base: Path) -> list[Path]:
    """Return the folders of runs of the same name: NAME, NAME-2, NAME-3 and so on."""
    found = []
    path = base
    while path.exists():
        found.append(path)
        path = base.with_name(f"{base.name}-{len(found) + 1}")
    return found


def check_room(folder: Path, plan: Plan, resume: bool, overwrite: bool, say: Say = print) -> None:
    """Raise a FolderError if a run cannot be made or resumed in this folder; nothing is touched."""
    problem = find_folder_problem(folder, "--output")
    if problem is not None:
        raise FolderError(problem)
    if not folder.is_dir():
        return
    _refuse_obstacles(folder)
    if not holds_run(folder):
        _check_other_files(folder, say)
    elif resume:
        check_experiment(folder, plan)
    elif not overwrite:
        raise FolderError(
            f"{folder} already holds a run; choose another --output, or pass --overwrite"
        )


def prepare_folder(
    folder: Path, plan: Plan, resume: bool, overwrite: bool, say: Say = print
) -> None:
    """Make room for a run, or for the continuation of the one that is there."""
    check_room(folder, plan, resume, overwrite, say)
    if resume and is_finished(folder) and find_newest(folder) is None:
        raise FolderError(
            f"{folder} holds a finished run without checkpoints; its scores are in {SCORES}"
        )
    begun = holds_run(folder)
    _set_aside_odd_files(folder, say)
    for pattern in DRAFTS:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    if begun and not (resume and find_newest(folder) is not None):
        clear_folder(folder)


def clear_folder(folder: Path) -> None:
    """Remove an earlier run: its scores must not lie next to another run's provenance."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name, endings in FOLDERS.items():
        for ending in endings:
            for file in (folder / name).glob(f"*.{ending}"):
                file.unlink()
    remove_checkpoints(folder / CHECKPOINTS)


def check_experiment(folder: Path, plan: Plan) -> None:
    """Raise if the folder holds a run of another experiment; one that does not say is accepted."""
    written = _read_experiment(folder)
    now = plan.experiment()
    # provenance.json may be damaged; what a checkpoint says is verified
    if written is not None and written != now and _read_saved_experiment(folder) != now:
        refuse_differences(folder, written, now)


def refuse_differences(
    folder: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    changed_data: Sequence[str] = (),
) -> None:
    """Raise unless a run and its continuation agree in what decides results."""
    differences = [difference.describe() for difference in find_differences(before, now)]
    if changed_data:
        listed = "\n  - ".join(["", *changed_data, *differences])
        raise FolderError(
            f"{folder} was started with data that differ from the present ones:{listed}\n"
            "restore them (a copy must keep the times of its files: cp -a, rsync -a), or choose "
            "another --output for a new run"
        )
    if differences:
        listed = "\n  - ".join(["", *differences])
        raise FolderError(
            f"{folder} holds another run; the requested one differs from it (there -> now):"
            f"{listed}\nleave these differences out to resume it, or choose another --output"
        )


def find_changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for every part of the data that changed."""
    changed = []
    for task in before:
        old = before[task]
        new = now.get(task, {})
        for part in dict.fromkeys([*old, *new]):
            if old.get(part) != new.get(part):
                changed.append(f"{task}: {part} {_describe_change(old.get(part), new.get(part))}")
    return changed


def find_damage(
    folder: Path, checkpoint: Checkpoint, scores: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return what is wrong with the files next to a checkpoint, by the name of the file.

    scores: what scores.json must hold; None if it may be ahead of the checkpoint.
    """
    damage = {}
    written = read_object(folder / SCORES)
    if checkpoint.result["matrix"]["rows"] and written is None:
        damage[SCORES] = "is missing or damaged"
    elif scores is not None and written != json.loads(json.dumps(scores)):
        damage[SCORES] = "does not agree with the checkpoint"
    provenance = read_object(folder / PROVENANCE)
    if provenance is None:
        damage[PROVENANCE] = "is missing or damaged"
    elif _without_resumptions(provenance) != _without_resumptions(checkpoint.provenance):
        damage[PROVENANCE] = "does not agree with the checkpoint"
    if not (folder / CONFIG).is_file():
        damage[CONFIG] = "is missing"
    if _digest_beginning(folder / LOG, checkpoint.log["bytes"]) != checkpoint.log["sha256"]:
        damage[LOG] = "is missing or damaged"
    for name, digest in checkpoint.importance_files.items():
        path = folder / IMPORTANCE / name
        if not path.is_file():
            damage[f"{IMPORTANCE}/{name}"] = "is missing"
        elif digest_file(path) != digest:
            damage[f"{IMPORTANCE}/{name}"] = "is damaged"
    return damage


def set_aside(path: Path) -> Path:
    """Rename a file, so that nothing is lost and its name is free; return the new path."""
    number = 1
    place = path.with_name(f"{path.name}.aside")
    while os.path.lexists(place):
        number += 1
        place = path.with_name(f"{path.name}.aside-{number}")
    path.rename(place)
    return place


def note_resumption(
    provenance: Mapping[str, Any], position: str, changed: Sequence[Difference]
) -> dict[str, Any]:
    """Return a provenance with a note that its run was resumed, and with which other settings."""
    again = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "from": position,
        "changed": [difference.describe() for difference in changed],
    }
    return {**provenance, "resumed": [*provenance.get("resumed", []), again]}


def _find_resumable(folders: Sequence[Path], plan: Plan) -> Path | None:
    """Return the newest unfinished run of this experiment, else the newest finished one, else None.

    Raise with the differences if an unfinished run of another experiment is all there is.
    """
    experiment = plan.experiment()
    runs = [folder for folder in reversed(folders) if (folder / PROVENANCE).is_file()]
    same = [folder for folder in runs if _read_experiment(folder) == experiment]
    unfinished = [folder for folder in same if not is_finished(folder)]
    if same:
        return (unfinished or same)[0]
    for folder in runs:
        if not is_finished(folder):
            check_experiment(folder, plan)
    return None


def _read_experiment(folder: Path) -> dict[str, Any] | None:
    provenance = read_object(folder / PROVENANCE) or {}
    experiment = provenance.get("experiment")
    return experiment if isinstance(experiment, dict) else None


def _read_saved_experiment(folder: Path) -> Mapping[str, Any] | None:
    """Return what the newest undamaged checkpoint says."""
    for path in list_checkpoints(folder / CHECKPOINTS):
        try:
            return read_state(path).experiment
        except CheckpointError:
            continue
    return None


def _refuse_obstacles(folder: Path) -> None:
    """Raise if something else has the name of a folder or checkpoint that a run writes."""
    names = [folder / name for name in (CHECKPOINTS, *FOLDERS)]
    obstacles = [path for path in names if os.path.lexists(path) and not path.is_dir()]
    obstacles += find_blocked_names(folder / CHECKPOINTS)
    if obstacles:
        raise FolderError(
            f"{obstacles[0]} is in the way: the run writes a folder of that name; remove or "
            "rename it"
        )


def _check_other_files(folder: Path, say: Say) -> None:
    """Say that a folder without a run holds other files; raise if the run's would mix with them."""
    for name in FOLDERS:
        inner = folder / name
        if inner.is_dir() and any(inner.iterdir()):
            raise FolderError(
                f"{folder} holds no run, but files in {name}/, where a run has its own; choose "
                f"another --output"
            )
    own = {CONSOLE_LOG, LOCK, f"{LOCK}.pid", CHECKPOINTS, *FOLDERS, *FILES, *DRAFTS}
    others = sorted(path.name for path in folder.iterdir() if path.name not in own)
    if others:
        listed = ", ".join(others[:3])
        if len(others) > 3:
            listed += ", ..."
        say(f"note: {folder} holds other files too ({listed}); they stay, next to the run's")


def _set_aside_odd_files(folder: Path, say: Say) -> None:
    """Rename what has the name of a run's file and is not a file, such as a folder or a pipe."""
    for name in FILES:
        path = folder / name
        if os.path.lexists(path) and not path.is_file():
            moved = set_aside(path).name
            say(f"{path} is not a file; it is now called {moved}, and the file is written again")


def _describe_change(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> str:
    if old is None or new is None or not new["times"]:
        return "differ"
    if old["content"] == new["content"]:
        return "differ in the times of their files (names and sizes are the same)"
    return "differ in names or sizes of their files"


def _without_resumptions(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a provenance is the same in the file and in every checkpoint."""
    return {key: value for key, value in provenance.items() if key != "resumed"}


def _digest_beginning(path: Path, size: int) -> str | None:
    """Return the SHA-256 of a file's first bytes; None if it is missing or shorter."""
    if size == 0:
        return hashlib.sha256().hexdigest()
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.sha256(file.read(size)).hexdigest()


def _to_file_name(item: str) -> str:
    """Return an entry of an order as part of a folder's name."""
    return "".join(
        character if character.isalnum() or character in "-_.+" else "-" for character in item
    )
