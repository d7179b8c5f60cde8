"""The folder of a run: who writes to it, what was written there, and whether it is this run's."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcit.checkpoint import list_checkpoints, remove_checkpoints
from mcit.config import ConfigError, RunConfig, parse, read_yaml, to_dict
from mcit.passport import write_json

CHECKPOINTS, LOG, LOCK = "checkpoints", "log.jsonl", ".lock"
IMPORTANCE = "importance"  # holds a file for every task that importance was measured for
INSIDE = {  # what else a run writes, by folder
    IMPORTANCE: ("safetensors", "safetensors.tmp"),
    "tables": ("md", "tex", "csv"),
    "figures": ("svg", "png", "pdf"),
}
FILES = ("scores.json", "report.md", "report.html", "config.yaml", "passport.json", LOG)
# What may differ between a run and its continuation: where it is, how often it is saved, and who is told.
FREE = ("output", "checkpoint", "tracker")


class FolderError(OSError):
    """A folder that this run cannot use; the message says what would do."""


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
                file.write(json.dumps({"time": round(time.time(), 3), **entry}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise FolderError(
                f"{self.path} could not be written: {error.strerror}. What was saved before is as it was; make room or "
                "mend the folder, and go on with --resume"
            ) from error

    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget what was written after the log had this size."""
        if self.size() > size:
            os.truncate(self.path, size)


def make_folder(folder: Path, option: str) -> None:
    """The folder is there and can be written to, or an error names the option that would do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
        reason = os.strerror(errno.EACCES)
    except OSError as error:
        writable, reason = False, error.strerror
    if not writable:
        raise FolderError(f"{folder} cannot be written to ({reason}); choose another {option}")


def read_command(folder: Path, otherwise: str) -> str:
    """The command that a run was begun with."""
    path = folder / "passport.json"
    if not path.is_file():
        return otherwise
    program, *options = json.loads(path.read_text(encoding="utf-8"))["command"]
    # scripts/run_sequence.py is `mcit run`, and reports name it so
    return shlex.join(["mcit", "run", *options] if program == "run_sequence.py" else [program, *options])


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder, made if need be; a run that another process is writing to is refused."""
    make_folder(folder, "--output")
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise FolderError(f"{folder} is in use by another run ({holder}); wait for it, or stop it") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield  # the lock ends with the file, also if the process is killed


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
            raise ConfigError([f"{output} already holds a run; choose another --output, or say --overwrite"])
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


def prepare_folder(folder: Path, config: RunConfig, resume: bool, overwrite: bool) -> None:
    """Make room for a run, or see that the one which is there is this one; nothing is lost that was not given up."""
    if resume:
        check_config(folder, config)
        if list_checkpoints(folder / CHECKPOINTS):
            return
        if is_finished(folder):
            raise FolderError(f"{folder} holds a finished run without checkpoints; its scores are in scores.json")
    elif holds_run(folder) and not overwrite:
        raise FolderError(f"{folder} already holds a run; choose another --output, or say --overwrite")
    clear_folder(folder)


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


def refuse_differences(folder: Path, differences: Sequence[str]) -> None:
    """A run goes on as it began, or not at all."""
    if differences:
        listed = "\n  - ".join(["", *differences])
        raise FolderError(
            f"{folder} holds another run; what is asked for now differs from it (there -> now):{listed}\n"
            "leave the differences out to go on with it, or choose another --output for a run of its own"
        )


def note_resumption(path: Path, position: str) -> None:
    """Add to a passport that its run was gone on with."""
    passport = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    again = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "from": position}
    write_json(path, {**passport, "resumed": [*passport.get("resumed", []), again]})


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
    """Whether all tasks of the run were scored, and nothing is left to be done."""
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    saved = list_checkpoints(folder / CHECKPOINTS)
    last = len(scores["tasks"])
    return len(scores["matrix"]) == last and (not saved or saved[0].name == f"{last - 1:02d}-done")


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` of all that differs and must not, dotted."""
    old, new = (dict(_flatten(data)) for data in (before, now))
    names = [name for name in dict.fromkeys([*old, *new]) if name.split(".")[0] not in FREE]
    return [f"{name}: {_show(old, name)} -> {_show(new, name)}" for name in names if old.get(name) != new.get(name)]


def _differences_from(folder: Path, config: RunConfig) -> list[str]:
    if not (folder / "config.yaml").is_file():
        return []
    before = parse(RunConfig, read_yaml(folder / "config.yaml"))
    return find_differences(to_dict(before), to_dict(config))


def _flatten(data: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _show(data: Mapping[str, Any], name: str) -> str:
    return json.dumps(data[name], ensure_ascii=False) if name in data else "not given"
