"""Why a file or folder is not where it should be: misspelt, elsewhere, still packed, or not there at all."""

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
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

from mcit.data.files import describe_absence, list_folder, open_regular
from mcit.doctor.findings import MISSING, Problem
from mcit.task import DataError

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_COMMON = {
    "images",
    "data",
    "train",
    "dev",
    "val",
    "test1",
    "annotation",
}  # names that tell nothing about a folder
_MOST = 20_000  # entries of a folder that are looked at: more are images
_UNPACKERS = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BEGINNING = 1 << 20  # bytes of an archive that are looked at
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
    """The problem that a file or folder is missing, with the command that mends it where one would do."""
    missing = f"{show(root, wanted)}{MISSING}"
    if os.path.lexists(wanted) and not wanted.is_file() and not wanted.is_dir():
        return Problem(f"{show(root, wanted)} {describe_absence(wanted)}", f"remove it; {remedy}")
    packed = explain_packed(root, wanted, archives, remedy)
    if packed is not None:
        return packed
    for found, target in _look_around(root, wanted):
        place = "" if target.parent.is_dir() else f"mkdir -p {_quote(target.parent)} && "
        text = f"{show(root, target)} is missing, and {show(root, found)} is there"
        return Problem(text, f"{place}mv {_quote(found)} {_quote(target)}", "fixable")
    loose = _loose_folders(wanted)
    if loose:
        text = f"{missing}, and {show(root, wanted.parent)} has {', '.join(folder.name for folder in loose)}"
        command = f"mkdir {_quote(wanted)} && mv {' '.join(map(_quote, loose))} {_quote(wanted)}"
        return Problem(text, command, "fixable")
    return Problem(missing, remedy)


def explain_packed(
    root: Path, wanted: Path, archives: Mapping[str, str], remedy: str
) -> Problem | None:
    """The problem that an archive which holds what is wanted lies about unpacked, or is broken."""
    commands, names = [], []
    for archive, folder in _find_archives(root, wanted, archives):
        name = show(root, archive)
        try:
            first = _first_member(archive)
        except _DAMAGE as error:
            return Problem(f"{name} is no whole archive ({error})", f"remove it; {remedy}")
        # an archive that holds the folder itself is unpacked beside it
        target = folder.parent if first.split("/")[0] == folder.name else folder
        unpack = (
            f"unzip -q {_quote(archive)} -d"
            if archive.suffix.lower() == ".zip"
            else f"tar -xf {_quote(archive)} -C"
        )
        commands.append(f"mkdir -p {_quote(target)} && {unpack} {_quote(target)}")
        names.append(name)
    if not commands:
        return None
    return Problem(f"not unpacked yet: {', '.join(names)}", " && ".join(commands), "fixable")


def show(root: Path, path: Path) -> str:
    """A path as it reads below the data root."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _find_archives(
    root: Path, wanted: Path, archives: Mapping[str, str]
) -> Iterator[tuple[Path, Path]]:
    """Archives that lie about, and the folder they fill: known ones, or any in the folder of what is wanted."""
    known = {name.lower(): root / fills for name, fills in archives.items()}
    nearest = wanted if wanted.suffix == "" else wanted.parent
    for folder in dict.fromkeys([root, *_parents(root, wanted), wanted]):
        for name, is_folder in _entries(folder):
            if is_folder or not name.lower().endswith(_ARCHIVES):
                continue
            fills = known.get(
                name.lower(),
                nearest if folder in (wanted, wanted.parent) and folder != root else None,
            )
            if fills is not None and (wanted == fills or fills in wanted.parents):
                yield folder / name, fills


def _first_member(archive: Path) -> str:
    with open_regular(archive) as file:
        if archive.suffix.lower() == ".zip":
            with zipfile.ZipFile(file) as opened:
                return next(iter(opened.namelist()), "")
        unpack = _UNPACKERS.get(archive.suffix.lower())
        # what an archive unpacks to may be larger than any memory; its first member's name is at its beginning
        with unpack(file) if unpack is not None else nullcontext(file) as unpacked:
            beginning = unpacked.read(_BEGINNING)
    with tarfile.open(fileobj=io.BytesIO(beginning), mode="r:") as opened:
        first = next(iter(opened), None)
        return first.name if first is not None else ""


def _look_around(root: Path, wanted: Path) -> Iterator[tuple[Path, Path]]:
    """Something that may be what is wanted, and where it belongs."""
    # the first part of the path that is not there, and a neighbour that is spelled much like it
    part = wanted
    while part.parent != root and not part.parent.is_dir():
        part = part.parent
    names = [name for name, is_folder in _entries(part.parent) if is_folder == (part.suffix == "")]
    close = _closest(part.name, names)
    if close is not None:
        yield part.parent / close, part
    if wanted.name not in _COMMON:
        subfolders = [root / name for name, is_folder in _entries(root) if is_folder]
        for folder in dict.fromkeys([root, *_parents(root, wanted), *subfolders]):
            if folder != wanted.parent and (folder / wanted.name).exists():
                yield folder / wanted.name, wanted


def _closest(wanted: str, names: list[str]) -> str | None:
    """The name that is a slip of the one wanted. Digits are no slips: cifar10 is another set than cifar100.

    A file's name may differ in capitals and marks only: train and val are near each other, and are not the same.
    """
    plain = {
        _simplify(name): name
        for name in names
        if re.findall(r"\d+", name) == re.findall(r"\d+", wanted)
    }
    cutoff = 1.0 if "." in wanted else 0.85
    near = difflib.get_close_matches(_simplify(wanted), plain, n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def _simplify(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _loose_folders(wanted: Path) -> list[Path]:
    """Folders beside the missing one that should be in it: `ms-coco/train2014` where `ms-coco/images` is wanted."""
    if wanted.name != "images":
        return []
    return [
        wanted.parent / name
        for name, is_folder in _entries(wanted.parent)
        if is_folder and name[0] != "."
    ]


def _parents(root: Path, path: Path) -> list[Path]:
    """The folders between the root and a path, the nearest first."""
    return [parent for parent in path.parents if parent != root and root in parent.parents]


def _entries(folder: Path) -> list[tuple[str, bool]]:
    try:
        found = list_folder(folder, most=_MOST)
    except DataError:
        return []  # not there, which is what is being explained
    return [(entry.name, entry.is_folder) for entry in found if entry.is_folder or entry.is_file]


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
