"""Work on pieces in several processes, which end with the process that started them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from mcit.errors import DataError

Result = TypeVar("Result")
_MOST = 16


def count_jobs(wanted: int | None = None) -> int:
    """Return how many processes to use: as many as wanted, or one for every usable processor."""
    if wanted is not None:
        return wanted
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _MOST)
    return min(os.cpu_count() or 1, _MOST)


def map_pieces(
    work: Callable[[Any], Result], pieces: Sequence[Any], jobs: int
) -> Iterator[tuple[Any, Result]]:
    """Yield each piece with the result of `work`; one job works in this process."""
    jobs = min(jobs, len(pieces))
    if jobs <= 1:
        yield from zip(pieces, map(work, pieces), strict=True)
        return
    with ProcessPoolExecutor(jobs, initializer=_begin_worker, initargs=(os.getpid(),)) as pool:
        try:
            # an interruption cancels what is not running yet
            yield from zip(pieces, pool.map(work, pieces), strict=True)
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, perhaps because memory ran out; try --jobs 1"
            ) from None


def _begin_worker(parent: int) -> None:
    # the parent handles SIGINT
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: one that is killed cannot say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
