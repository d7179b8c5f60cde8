"""Experiment trackers through accelerate: TensorBoard, Weights & Biases and others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType

from mcit.config.parse import flatten, to_dict
from mcit.runner.result import Result
from mcit.runner.run_folder import RunLog
from mcit.spelling import suggest

PROJECT = "mcit"
# names of packages that are not called like the tracker
PACKAGES = {"comet_ml": "comet-ml"}

Tracker: TypeAlias = str | GeneralTracker


def find_tracker_problems(tracker: Tracker | None) -> list[str]:
    """Return what is wrong with a tracker: accelerate does not know it, or it is not installed."""
    if tracker is None or isinstance(tracker, GeneralTracker):
        return []
    known = sorted(str(kind.value) for kind in LoggerType if kind != LoggerType.ALL)
    if tracker not in known:
        near = suggest(tracker, known)
        return [f"unknown tracker {tracker!r}{near} (trackers: {', '.join(known)})"]
    installed = sorted(str(kind.value) for kind in get_available_trackers())
    if tracker in installed:
        return []
    package = PACKAGES.get(tracker, tracker)
    listed = ", ".join(installed) or "none"
    return [f"tracker {tracker!r} is not installed: pip install {package} (installed: {listed})"]


class Tracking:
    """Sends the log of a run to the accelerator's trackers, if it has any, inside its `with` block.

    They receive the statistics of steps, and the scores and their average after every task.
    """

    def __init__(self, accelerator: Accelerator, result: Result, output: Path, log: RunLog):
        self.accelerator = accelerator
        self.result = result
        self.output = output
        self.log = log

    def __enter__(self) -> Tracking:
        if self.accelerator.log_with:
            named = {name: {"name": self.output.name} for name in ("wandb", "trackio")}
            settings = _to_settings(to_dict(self.result.plan.config))
            self.accelerator.init_trackers(PROJECT, settings, named)
            self.log.listener = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def __call__(self, entry: Mapping[str, Any]) -> None:
        # steps of earlier tasks
        taken = int(self.result.cost["steps"])
        if entry["event"] == "step":
            values = {f"train/{k}": v for k, v in entry.items() if isinstance(v, float)}
            self._send(values, taken + entry["step"])
        elif entry["event"] == "task":
            tasks = self.result.matrix.tasks
            values = {f"score/{t}": s for t, s in zip(tasks, entry["scores"], strict=False)}
            self._send({**values, "A_t": entry["A_t"], "tasks": len(values)}, taken)

    def _send(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self.accelerator.trackers:
            tracker.log(dict(values), step=step)


def _to_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted names and plain values, as trackers take them."""
    settings = {}
    for name, value in flatten(config).items():
        if isinstance(value, (bool, int, float, str)):
            settings[name] = value
        elif value is not None:
            settings[name] = ", ".join(map(str, value))
    return settings
