"""Experiment trackers, through accelerate's: TensorBoard, Weights & Biases and all others it knows; none is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType

from mcit.config import suggest

PROJECT = "mcit"
# What a package is called where its name is not the tracker's.
PACKAGES = {"comet_ml": "comet-ml"}

Tracker = str | GeneralTracker


def find_tracker_problems(tracker: Tracker | None) -> list[str]:
    """What is wrong with a tracker, before any work: accelerate does not know it, or it is not installed."""
    if tracker is None or isinstance(tracker, GeneralTracker):
        return []
    known = sorted(str(kind.value) for kind in LoggerType if kind != LoggerType.ALL)
    if tracker not in known:
        return [
            f"unknown tracker {tracker!r}{suggest(tracker, known)} (trackers: {', '.join(known)})"
        ]
    installed = [str(kind.value) for kind in get_available_trackers()]
    if tracker in installed:
        return []
    package, listed = PACKAGES.get(tracker, tracker), ", ".join(sorted(installed)) or "none"
    return [f"tracker {tracker!r} is not installed: pip install {package} (installed: {listed})"]


class Tracking:
    """Sends what a run logs to a tracker: the figures of steps, and the scores and their average after every task."""

    def __init__(self, accelerator: Accelerator, tasks: Sequence[str], taken: Callable[[], int]):
        self.accelerator, self.tasks, self.taken = accelerator, tasks, taken

    def __call__(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] == "step":
            figures = {key: value for key, value in entry.items() if isinstance(value, float)}
            self._send(
                {f"train/{key}": value for key, value in figures.items()},
                self.taken() + entry["step"],
            )
        elif entry["event"] == "task":
            scores = {
                f"score/{task}": score
                for task, score in zip(self.tasks, entry["scores"], strict=False)
            }
            self._send({**scores, "A_t": entry["A_t"], "tasks": len(scores)}, self.taken())

    def _send(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self.accelerator.trackers:
            tracker.log(dict(values), step=step)


@contextmanager
def tracking(
    log: Any,
    accelerator: Accelerator,
    output: Path,
    config: Mapping[str, Any],
    tasks: Sequence[str],
    taken: Callable[[], int],
) -> Iterator[None]:
    """The trackers that the accelerator was made with, if any, hear what is logged; `taken` counts earlier steps."""
    if accelerator.log_with:
        named = {name: {"name": output.name} for name in ("wandb", "trackio")}
        accelerator.init_trackers(PROJECT, dict(_flatten(config)), named)
        log.listener = Tracking(accelerator, tasks, taken)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def _flatten(data: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and plain values, as trackers take them."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{where}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            yield f"{where}{key}", value
        elif value is not None:
            yield f"{where}{key}", ", ".join(map(str, value))
