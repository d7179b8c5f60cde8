"""Work on pieces in several processes, which end with the process that started them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from mcit.task import DataError

Result = TypeVar("Result")
_MOST = 16


def count_jobs(wanted: int | None = None) -> int:
    """How many processes to use: as many as wanted, else one for every processor that this one may use."""
    if wanted is not None:
        return wanted
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(usable, _MOST)


def map_pieces(
    work: Callable[..., Result], pieces: Sequence[Any], jobs: int
) -> Iterator[tuple[Any, Result]]:
    """Each piece with what `work` makes of it, in whatever order they are done; one job works in this process."""
    if jobs == 1 or len(pieces) <= 1:
        yield from ((piece, work(piece)) for piece in pieces)
        return
    waiting = iter(pieces)
    with ProcessPoolExecutor(
        min(jobs, len(pieces)), initializer=_begin_worker, initargs=(os.getpid(),)
    ) as pool:
        running: dict[Future, Any] = {}
        try:
            while True:
                # no queue ahead: an interruption waits for what is in it
                while len(running) < jobs and (piece := next(waiting, None)) is not None:
                    running[pool.submit(work, piece)] = piece
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, maybe for want of memory; try --jobs 1"
            ) from None
        finally:
            pool.shutdown(
                cancel_futures=True
            )  # what is under way is finished, the rest is not begun


def _begin_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the starting process's to answer
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A process that is killed cannot tell its workers, and they would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
