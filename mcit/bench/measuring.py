"""Times in turns, and peaks of memory: what the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

Contender = Callable[[], object]
# "at least" or "at most", and the limit
Goal = tuple[str, float]


def race(*contenders: Contender, rounds: int = 5) -> list[float]:
    """Return the best time of each, taken in turns.

    With one thread it is CPU time, which waiting for a busy machine does not add to.
    """
    clock = time.perf_counter
    if torch.get_num_threads() == 1:
        clock = time.process_time
    best = [float("inf")] * len(contenders)
    for contender in contenders:
        contender()
    for _ in range(rounds):
        for number, contender in enumerate(contenders):
            start = clock()
            contender()
            best[number] = min(best[number], clock() - start)
    return best


def is_met(value: float, goal: Goal) -> bool:
    """Whether a figure reaches its goal."""
    direction, limit = goal
    if direction == "at least":
        return value >= limit
    return value <= limit


def format_ratio(value: float) -> str:
    """Return a ratio for a table; small ones have more digits."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def peak_bytes(contender: Contender) -> int:
    """Return the most bytes of tensors that were live at once, above those live before.

    Every allocation is counted, so that the figure does not depend on the machine's load.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        contender()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    return _find_peak((event.start_ns(), event.nbytes()) for event in events if _is_memory(event))


def _is_memory(event: object) -> bool:
    return event.name() == "[memory]"  # type: ignore[attr-defined]


def _find_peak(changes: Iterable[tuple[int, int]]) -> int:
    """Return the highest sum of changes, given with their times."""
    live = 0
    peak = 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        live += size
        peak = max(peak, live)
    return peak
