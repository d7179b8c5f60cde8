"""Why a file or folder is not where it should be: misspelled, elsewhere, packed, or missing."""

from __future__ import annotations

import bz2
import difflib
import gzip
import io
import lzma
import os
import re
import shlex
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from mcit.data.files import Entry, describe_absence, list_folder, open_regular
from mcit.doctor.findings import Problem
from mcit.errors import DataError

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# names that say nothing about a folder
_COMMON = {"images", "data", "train", "dev", "val", "test1", "annotation"}
# entries of a folder that are looked at: more are images
_MOST = 20_000
_UNPACKERS: dict[str, Callable[[BinaryIO], io.BufferedIOBase]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
# bytes of an archive that are looked at
_BEGINNING = 1 << 20
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RecursionError,
    struct.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)


def explain_missing(root: Path, wanted: Path, archives: Mapping[str, str], remedy: str) -> Problem:
    """Return the problem that a file or folder is missing, with a command if one would do.

    remedy: what to do if nothing here helps. archives: see AnnotatedTask.
    """
    name = show(root, wanted)
    if os.path.lexists(wanted) and not wanted.is_file() and not wanted.is_dir():
        return Problem(f"{name} {describe_absence(wanted)}", f"remove it; {remedy}")
    packed = explain_packed(root, wanted, archives, remedy)
    if packed is not None:
        return packed
    for found, target in _find_misplaced(root, wanted):
        command = f"mv {_quote(found)} {_quote(target)}"
        if not target.parent.is_dir():
            command = f"mkdir -p {_quote(target.parent)} && {command}"
        text = f"{show(root, target)} is missing, and {show(root, found)} is there"
        return Problem(text, command, "fixable")
    loose = _find_loose_folders(wanted)
    if loose:
        names = ", ".join(folder.name for folder in loose)
        moved = " ".join(map(_quote, loose))
        return Problem(
            f"{name} is missing, and {show(root, wanted.parent)} has {names}",
            f"mkdir {_quote(wanted)} && mv {moved} {_quote(wanted)}",
            "fixable",
        )
    return Problem.of_absent(name, remedy)


def explain_packed(
    root: Path, wanted: Path, archives: Mapping[str, str], remedy: str
) -> Problem | None:
    """Return the problem that an archive is not unpacked or broken; None if there is none."""
    commands = []
    names = []
    for archive, folder in _find_archives(root, wanted, archives):
        name = show(root, archive)
        try:
            first = _read_first_member(archive)
        except _DAMAGE as error:
            return Problem(f"{name} is not a complete archive ({error})", f"remove it; {remedy}")
        # an archive that holds the folder itself is unpacked next to it
        target = folder.parent if first.split("/")[0] == folder.name else folder
        unpack = f"tar -xf {_quote(archive)} -C"
        if archive.suffix.lower() == ".zip":
            unpack = f"unzip -q {_quote(archive)} -d"
        commands.append(f"mkdir -p {_quote(target)} && {unpack} {_quote(target)}")
        names.append(name)
    if not commands:
        return None
    return Problem(f"not unpacked yet: {', '.join(names)}", " && ".join(commands), "fixable")


def show(root: Path, path: Path) -> str:
    """Return a path as it reads below the data root."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return str(path)


def _find_archives(
    root: Path, wanted: Path, archives: Mapping[str, str]
) -> Iterator[tuple[Path, Path]]:
    """Yield archives and the folder that each fills: known ones, or any next to what is wanted."""
    known = {name.lower(): root / fills for name, fills in archives.items()}
    nearest = wanted.parent if wanted.suffix else wanted
    for folder in [root, *_list_parents(root, wanted), wanted]:
        for entry in _list_entries(folder):
            name = entry.name.lower()
            if entry.is_folder or not name.endswith(_ARCHIVES):
                continue
            fills = known.get(name)
            if fills is None and folder in (wanted, wanted.parent) and folder != root:
                fills = nearest
            if fills is not None and wanted.is_relative_to(fills):
                yield folder / entry.name, fills


def _read_first_member(archive: Path) -> str:
    """Return the name of an archive's first member; raise one of _DAMAGE if it is broken."""
    suffix = archive.suffix.lower()
    with open_regular(archive) as file:
        if suffix == ".zip":
            with zipfile.ZipFile(file) as opened:
                return next(iter(opened.namelist()), "")
        # an archive may unpack to more than any memory; its first member is at its beginning
        unpack = _UNPACKERS.get(suffix)
        unpacked: BinaryIO | io.BufferedIOBase = file if unpack is None else unpack(file)
        beginning = unpacked.read(_BEGINNING)
    with tarfile.open(fileobj=io.BytesIO(beginning), mode="r:") as opened:
        for member in opened:
            return member.name
    return ""


def _find_misplaced(root: Path, wanted: Path) -> Iterator[tuple[Path, Path]]:
    """Yield something that may be what is wanted, and where it belongs."""
    # the first part of the path that is not there, and a neighbor that is spelled much like it
    part = wanted
    while part.parent != root and not part.parent.is_dir():
        part = part.parent
    entries = _list_entries(part.parent)
    names = [entry.name for entry in entries if entry.is_folder == (part.suffix == "")]
    close = _find_closest(part.name, names)
    if close is not None:
        yield part.parent / close, part
    if wanted.name in _COMMON:
        return
    subfolders = [root / entry.name for entry in _list_entries(root) if entry.is_folder]
    for folder in [root, *_list_parents(root, wanted), *subfolders]:
        if folder != wanted.parent and (folder / wanted.name).exists():
            yield folder / wanted.name, wanted


def _find_closest(wanted: str, names: list[str]) -> str | None:
    """Return the name that is a slip of the one wanted. cifar10 is another set than cifar100.

    A file's name may differ in capitals and marks only: train and val are near each other.
    """
    digits = re.findall(r"\d+", wanted)
    plain = {_simplify(name): name for name in names if re.findall(r"\d+", name) == digits}
    cutoff = 1.0 if "." in wanted else 0.85
    for near in difflib.get_close_matches(_simplify(wanted), plain, n=1, cutoff=cutoff):
        return plain[near]
    return None


def _simplify(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _find_loose_folders(wanted: Path) -> list[Path]:
    """Return folders that should be in the missing one: ms-coco/train2014 in ms-coco/images."""
    if wanted.name != "images":
        return []
    names = [entry.name for entry in _list_entries(wanted.parent) if entry.is_folder]
    return [wanted.parent / name for name in names if not name.startswith(".")]


def _list_parents(root: Path, path: Path) -> list[Path]:
    """Return the folders between the root and a path, the nearest first."""
    return [parent for parent in path.parents if root in parent.parents]


def _list_entries(folder: Path) -> list[Entry]:
    """Return the files and folders of a folder, none if it is not there."""
    try:
        entries = list_folder(folder, most=_MOST)
    except DataError:
        return []
    return [entry for entry in entries if entry.is_folder or entry.is_file]


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
