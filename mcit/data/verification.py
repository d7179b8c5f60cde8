"""Every picture opened once, in several processes: which cannot be used, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tqdm.auto import tqdm

from mcit.data.images import Picture
from mcit.data.problems import BadRecord
from mcit.data.tables import open_cache, read_sealed, write_sealed
from mcit.data.workers import count_jobs, map_pieces

# pictures that a process takes at a time
_PIECE = 64
# so few pieces are done sooner in this process
_FEW = 4
# name of a picture -> message and reason
_Faults = dict[str, tuple[str, str]]


def find_bad_pictures(pictures: Sequence[Picture], title: str) -> dict[str, BadRecord]:
    """Return why pictures cannot be opened, by name; every one is read to its end."""
    faults = _find_faults(pictures, title)
    return {name: BadRecord(*fault) for name, fault in faults.items()}


def remember_bad_pictures(task: str, pictures: Sequence[Picture]) -> dict[str, BadRecord]:
    """Return the same, remembered in the cache for as long as no file of a picture changes."""
    digest = hashlib.blake2b(digest_size=12)
    for picture in pictures:
        try:
            name = picture.name.encode("utf-8", "surrogatepass")
            digest.update(name + b"\0" + picture.stamp())
        except OSError as error:
            digest.update(repr(error).encode())
    path = open_cache("verified") / f"{task}-{digest.hexdigest()}.json"
    faults = read_sealed(path)
    if faults is None:
        faults = _find_faults(pictures, f"open all images of {task}")
        write_sealed(path, faults)
    return {name: BadRecord(*fault) for name, fault in faults.items()}


def _find_faults(pictures: Sequence[Picture], title: str) -> _Faults:
    pieces = [pictures[start : start + _PIECE] for start in range(0, len(pictures), _PIECE)]
    jobs = count_jobs() if len(pieces) > _FEW else 1
    faults: _Faults = {}
    total = len(pictures)
    with tqdm(
        desc=title, total=total, unit=" images", leave=False, disable=None, delay=1
    ) as progress:
        for piece, found in map_pieces(_verify, pieces, jobs):
            faults.update(found)
            progress.update(len(piece))
    return faults


def _verify(pictures: Sequence[Picture]) -> _Faults:
    faults = {}
    for picture in pictures:
        try:
            picture.verify()
        except BadRecord as error:
            faults[picture.name] = (str(error), error.reason)
    return faults
