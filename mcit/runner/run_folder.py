"""The folder of a run: who writes to it, what was written there, and whether it is this run's."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcit.checkpoint import find_blocked_names, list_checkpoints, remove_checkpoints
from mcit.config import ConfigError, RunConfig, parse, read_yaml, to_dict
from mcit.errors import FolderError
from mcit.files import CONSOLE_LOG, DRAFT, digest_file, flush
from mcit.folders import find_folder_problem, make_folder

CHECKPOINTS = "checkpoints"
LOCK = ".lock"
LOG = "log.jsonl"
PASSPORT = "passport.json"
SCORES = "scores.json"
IMPORTANCE = "importance"  # holds a file for every task that importance was measured for
INSIDE = {  # what else a run writes, by folder
    IMPORTANCE: ("safetensors",),
    "tables": ("md", "tex", "csv"),
    "figures": ("svg", "png", "pdf"),
}
MADE_AGAIN = (
    SCORES,
    PASSPORT,
    "config.yaml",
)  # out of a checkpoint, where they are missing or damaged
FILES = (SCORES, "report.md", "report.html", "config.yaml", PASSPORT, LOG)
# What a run that was killed may leave of files it was writing; those of tensors get their names from safetensors.
DRAFTS = (*(f"{name}{DRAFT}" for name in FILES), f"{IMPORTANCE}/*{DRAFT}", f"{IMPORTANCE}/{DRAFT}*")
# What may differ between a run and its continuation: where it is, how often it is saved, and who is told. The data are
# compared part by part.
FREE = ("output", "checkpoint", "tracker", "data")


class RunLog:
    """Lines of JSON, each written at once."""

    def __init__(self, path: Path | None):
        self.path = path
        self.listener: Callable[[Mapping[str, Any]], None] | None = None  # is told everything too

    def __call__(self, entry: Mapping[str, Any]) -> None:
        if self.listener is not None:
            self.listener(entry)
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"time": round(time.time(), 3), **entry}, ensure_ascii=False) + "\n"
                )
        except OSError as error:
            raise FolderError(
                f"{self.path} could not be written: {error.strerror}. What was saved before is as it was; make room or "
                "mend the folder, and go on with --resume"
            ) from error

    def settle(self) -> dict[str, Any]:
        """Bring the log onto the disk, and return what tells whether it is still whole: its size and its digest."""
        if self.path is None or not self.path.is_file():
            return {"log_bytes": 0, "log_sha256": hashlib.sha256().hexdigest()}
        flush(self.path)
        return {"log_bytes": self.path.stat().st_size, "log_sha256": digest_file(self.path)}

    def cut(self, size: int) -> None:
        """Forget what was written after the log had this size."""
        if self.path is not None and self.path.is_file() and self.path.stat().st_size > size:
            os.truncate(self.path, size)


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object that a JSON file holds; None if the file is missing, damaged or something else."""
    # a pipe in its place would keep a reader waiting
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read_command(folder: Path, otherwise: str) -> str:
    """The command that a run was begun with."""
    command = (read_object(folder / PASSPORT) or {}).get("command")
    if not isinstance(command, list) or not command:
        return otherwise
    program, *options = map(str, command)
    # scripts/run_sequence.py is `mcit run`, and reports name it so
    return shlex.join(
        ["mcit", "run", *options] if program == "run_sequence.py" else [program, *options]
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder, made if need be; a run that another process is writing to is refused."""
    make_folder(folder, "--output")
    lock = folder / LOCK
    if os.path.lexists(lock) and not lock.is_file():
        raise FolderError(
            f"{lock} is in the way: it must be a file, by which a run holds its folder; remove it"
        )
    with lock.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise FolderError(
                f"{folder} is in use by another run ({holder}); wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield  # the lock ends with the file, also if the process is killed


def is_abandoned(folder: Path) -> bool:
    """Whether no process holds the folder of a run any more, as after the main process was killed."""
    try:
        with (folder / LOCK).open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def choose_output(config: RunConfig, overwrite: bool, resume: bool = False) -> tuple[Path, bool]:
    """The folder of the run, and whether there is a run to go on with.

    Every run has a folder of its own; one that is given must not hold a run yet, unless that may be overwritten.
    """
    if config.output is not None:
        output = Path(config.output)
        if output.exists() and not output.is_dir():
            raise ConfigError([f"{output} is a file; --output names the folder of the run"])
        if resume and holds_run(output):
            check_config(output, config)
            return output, True
        if holds_run(output) and not overwrite:
            raise ConfigError(
                [f"{output} already holds a run; choose another --output, or say --overwrite"]
            )
    else:
        stem = "-".join(item.replace(":", "-") for item in config.order)
        base = Path("runs") / f"{stem}-{config.method.name}-seed{config.seed}"
        earlier = list_numbered(base)
        found = find_resumable(earlier, config) if resume else None
        if found is not None:
            return found, True
        output = base.with_name(f"{base.name}-{len(earlier) + 1}") if earlier else base
    if resume:
        print(f"nothing to resume: {output} starts from the beginning")
    return output, False


def check_room(
    folder: Path,
    config: RunConfig,
    resume: bool,
    overwrite: bool,
    say: Callable[[str], None] = print,
) -> None:
    """Raise a FolderError if a run cannot be made or resumed in this folder; nothing in it is touched."""
    problem = find_folder_problem(folder, "--output")
    if problem is not None:
        raise FolderError(problem)
    if not folder.is_dir():
        return
    refuse_obstacles(folder)
    if not holds_run(folder):
        check_others(folder, say)
    elif resume:
        check_config(folder, config)
    elif not overwrite:
        raise FolderError(
            f"{folder} already holds a run; choose another --output, or say --overwrite"
        )
    if resume and is_finished(folder) and not list_checkpoints(folder / CHECKPOINTS):
        raise FolderError(
            f"{folder} holds a finished run without checkpoints; its scores are in {SCORES}"
        )


def prepare_folder(
    folder: Path,
    config: RunConfig,
    resume: bool,
    overwrite: bool,
    say: Callable[[str], None] = print,
) -> None:
    """Make room for a run, or see that the one which is there is this one; nothing is lost that was not given up."""
    check_room(folder, config, resume, overwrite, say)
    begun = holds_run(folder)
    set_aside_odd_files(folder, say)
    remove_drafts(folder)
    if begun and not (resume and list_checkpoints(folder / CHECKPOINTS)):
        clear_folder(folder)


def refuse_obstacles(folder: Path) -> None:
    """Raise a FolderError if something has the name of a folder or a checkpoint that a run writes, and is none."""
    folders = [folder / name for name in (CHECKPOINTS, *INSIDE)]
    found = [path for path in folders if os.path.lexists(path) and not path.is_dir()]
    found += find_blocked_names(folder / CHECKPOINTS)
    if found:
        raise FolderError(
            f"{found[0]} is in the way: the run writes a folder of that name; remove it or rename it"
        )


def check_others(folder: Path, say: Callable[[str], None]) -> None:
    """Say that a folder without a run holds other files; refuse it if the run's files would be mixed with them."""
    mixed = [name for name in INSIDE if (folder / name).is_dir() and any((folder / name).iterdir())]
    if mixed:
        raise FolderError(
            f"{folder} holds no run, but files in {mixed[0]}/, where a run has its own; choose another --output"
        )
    own = {CONSOLE_LOG, LOCK, CHECKPOINTS, *INSIDE, *FILES, *DRAFTS}
    others = sorted(path.name for path in folder.iterdir() if path.name not in own)
    if others:
        listed = ", ".join([*others[:3], *(["..."] if len(others) > 3 else [])])
        say(
            f"note: {folder} holds other files too ({listed}); they stay, and the run's are put beside them"
        )


def set_aside_odd_files(folder: Path, say: Callable[[str], None]) -> None:
    """Rename what has the name of a run's file and is none, such as a folder or a pipe: the file is written anew."""
    for name in FILES:
        path = folder / name
        if os.path.lexists(path) and not path.is_file():
            say(
                f"{path} is not a file; it is now called {set_aside(path).name}, and the file is written again"
            )


def set_aside(path: Path) -> Path:
    """Rename a file or whatever it is, so that nothing is lost and its name is free; return the new place."""
    number = 1
    place = path.with_name(f"{path.name}.aside")
    while os.path.lexists(place):
        number += 1
        place = path.with_name(f"{path.name}.aside-{number}")
    path.rename(place)
    return place


def remove_drafts(folder: Path) -> None:
    """Remove what a killed run left of files that it was writing."""
    for pattern in DRAFTS:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def find_damage(
    folder: Path, about: Mapping[str, Any], scores: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return what is wrong with the files beside a checkpoint that says `about`, by the name of the file.

    scores: what scores.json must say; None where it may be ahead of the checkpoint, so that any will do.
    """
    found = {}
    written = read_object(folder / SCORES)
    if about["result"]["matrix"]["rows"] and written is None:
        found[SCORES] = "is missing or damaged"
    elif scores is not None and written != json.loads(json.dumps(scores)):
        found[SCORES] = "does not say what the checkpoint says"
    passport = read_object(folder / PASSPORT)
    if passport is None:
        found[PASSPORT] = "is missing or damaged"
    elif "passport" in about and _without_resumptions(passport) != _without_resumptions(
        about["passport"]
    ):
        found[PASSPORT] = "does not say what the checkpoint says"
    if not (folder / "config.yaml").is_file():
        found["config.yaml"] = "is missing"
    if (
        "log_sha256" in about
        and _digest_beginning(folder / LOG, about["log_bytes"]) != about["log_sha256"]
    ):
        found[LOG] = "is missing or damaged"
    for name, digest in about.get("importance_files", {}).items():
        path = folder / IMPORTANCE / name
        if not path.is_file():
            found[f"{IMPORTANCE}/{name}"] = "is missing"
        elif digest_file(path) != digest:
            found[f"{IMPORTANCE}/{name}"] = "is damaged"
    return found


def check_config(folder: Path, config: RunConfig) -> None:
    """Refuse a folder whose run was configured differently; none at all is as good as this one."""
    refuse_differences(folder, _differences_from(folder, config))


def list_numbered(base: Path) -> list[Path]:
    """The folders of runs that were given the same name: NAME, NAME-2, NAME-3 and so on, as far as they exist."""
    found = [base]
    while found[-1].exists():
        found.append(base.with_name(f"{base.name}-{len(found) + 1}"))
    return found[:-1]


def find_resumable(folders: Sequence[Path], config: RunConfig) -> Path | None:
    """The newest run of this configuration that is not finished; else the newest that is; else None.

    An unfinished run of another configuration is refused with the differences, if it is all there is.
    """
    runs = [folder for folder in reversed(folders) if (folder / "config.yaml").is_file()]
    own = [folder for folder in runs if not _differences_from(folder, config)]
    unfinished = [folder for folder in own if not is_finished(folder)]
    if own:
        return (unfinished or own)[0]
    for folder in runs:
        if not is_finished(folder):
            check_config(folder, config)
    return None


def find_newest(folder: Path) -> Path | None:
    """The newest checkpoint of a run."""
    return next(iter(list_checkpoints(folder / CHECKPOINTS)), None)


def refuse_differences(
    folder: Path, differences: Sequence[str], changed_data: Sequence[str] = ()
) -> None:
    """A run goes on as it began, or not at all."""
    if changed_data:
        listed = "\n  - ".join(["", *changed_data, *differences])
        raise FolderError(
            f"{folder} was begun with other data than there are now:{listed}\n"
            "put them back as they were (a copy must keep the times of its files: cp -a, rsync -a), or choose another "
            "--output for a run of its own"
        )
    if differences:
        listed = "\n  - ".join(["", *differences])
        raise FolderError(
            f"{folder} holds another run; what is asked for now differs from it (there -> now):{listed}\n"
            "leave the differences out to go on with it, or choose another --output for a run of its own"
        )


def note_resumption(passport: Mapping[str, Any], position: str) -> dict[str, Any]:
    """Return a passport with a note that its run was resumed."""
    again = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "from": position}
    return {**passport, "resumed": [*passport.get("resumed", []), again]}


def clear_folder(folder: Path) -> None:
    """Remove an earlier run: the scores of one must not lie beside the passport of another."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name, endings in INSIDE.items():
        for file in [file for ending in endings for file in (folder / name).glob(f"*.{ending}")]:
            file.unlink()
    remove_checkpoints(folder / CHECKPOINTS)


def name_importance(folder: Path, index: int, task: str) -> Path:
    """The file of the importance that a task of a run was found to have; files sort as the tasks do."""
    return folder / IMPORTANCE / f"{index + 1:02d}-{task}.safetensors"


def holds_run(folder: Path) -> bool:
    """Whether there is a run, or what is left of one."""
    return any((folder / name).exists() for name in (*FILES, CHECKPOINTS))


def is_finished(folder: Path) -> bool:
    """Whether all tasks of the run were scored, and nothing is left to be done.

    A scores.json that is damaged counts as none: it is written again from the checkpoint.
    """
    scores = read_object(folder / SCORES) or {}
    tasks, rows = (scores.get(name) for name in ("tasks", "matrix"))
    if not isinstance(tasks, list) or not isinstance(rows, list) or len(rows) != len(tasks):
        return False
    saved = list_checkpoints(folder / CHECKPOINTS)
    return not saved or saved[0].name == f"{len(tasks) - 1:02d}-done"


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` of all that differs and must not, dotted."""
    old, new = (dict(_flatten(data)) for data in (before, now))
    names = [name for name in dict.fromkeys([*old, *new]) if name.split(".")[0] not in FREE]
    return [
        f"{name}: {_show(old, name)} -> {_show(new, name)}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def find_changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`task: images under DIR differ in ...` of every part of the data that differs, of tasks that both have."""
    changed = []
    for task in [task for task in before if task in now]:
        old, new = before[task], now[task]
        if not isinstance(old, Mapping):
            changed.append(
                f"{task}: an earlier version of mcit began it, which knew less of its data"
            )
            continue
        for part in dict.fromkeys([*old, *new]):
            if old.get(part) != new.get(part):
                changed.append(f"{task}: {part} {_describe_change(old.get(part), new.get(part))}")
    return changed


def _describe_change(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> str:
    if old is None or new is None or not new["times"]:
        return "differ"
    if old["content"] == new["content"]:
        return "differ in the times of their files (names and sizes are the same)"
    return "differ in names or sizes of their files"


def _differences_from(folder: Path, config: RunConfig) -> list[str]:
    if not (folder / "config.yaml").is_file():
        return []
    before = parse(RunConfig, read_yaml(folder / "config.yaml"))
    return find_differences(to_dict(before), to_dict(config))


def _without_resumptions(passport: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a passport is the same in the file and in every checkpoint."""
    return {key: value for key, value in passport.items() if key != "resumed"}


def _digest_beginning(path: Path, size: int) -> str | None:
    """Return the SHA-256 of a file's first bytes; None if it is missing or shorter."""
    if size == 0:
        return hashlib.sha256().hexdigest()
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.sha256(file.read(size)).hexdigest()


def _flatten(data: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _show(data: Mapping[str, Any], name: str) -> str:
    return json.dumps(data[name], ensure_ascii=False) if name in data else "not given"
