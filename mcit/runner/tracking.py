"""Experiment trackers through accelerate: TensorBoard, Weights & Biases, MLflow and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType

from mcit.config.parse import flatten, to_dict
from mcit.importance import Importance
from mcit.runner.magnitudes import Magnitudes, measure_magnitudes
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

    They receive the statistics of steps, the magnitudes of every importance that is measured, and
    the scores and their average after every task.
    """

    def __init__(self, accelerator: Accelerator, result: Result, output: Path, log: RunLog):
        self.accelerator = accelerator
        self.result = result
        self.output = output
        self.log = log

    def __enter__(self) -> Tracking:
        if self.accelerator.log_with:
            config = self.result.plan.config
            named = _name_run(self.output.name, config.tracker_group)
            self.accelerator.init_trackers(PROJECT, _to_settings(to_dict(config)), named)
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

    def send_importance(self, importance: Importance) -> None:
        """Send how large the importance of a task is; all processes call."""
        if not self.accelerator.log_with:
            return
        found = measure_magnitudes(importance.values)
        if not self.accelerator.is_main_process:
            return
        taken = int(self.result.cost["steps"])
        numbers = {"mean": found.mean, "largest": found.largest, "zero": found.zero}
        self._send({f"importance/{name}": value for name, value in numbers.items()}, taken)
        for tracker in self.accelerator.trackers:
            if tracker.name in HISTOGRAMS:
                HISTOGRAMS[tracker.name](tracker, "importance/log10", found, taken)

    def _send(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self.accelerator.trackers:
            sent = dict(values)
            if tracker.name == "mlflow":
                # it refuses brackets, which names of class-incremental tasks have
                sent = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in sent.items()}
            tracker.log(sent, step=step)


def _name_run(name: str, group: str | None) -> dict[str, dict[str, Any]]:
    """Return what trackers are told of a run when it begins: its name, and the group it is of."""
    named: dict[str, dict[str, Any]] = {
        "wandb": {"name": name},
        "trackio": {"name": name},
        "mlflow": {"run_name": name},
    }
    if group is not None:
        named["wandb"]["group"] = group
        named["mlflow"]["tags"] = {"group": group}
    return named


def _send_to_tensorboard(tracker: Any, name: str, found: Magnitudes, step: int) -> None:
    # of numbers that were counted, the sums are those of the bins' middles
    middles = [(low + high) / 2 for low, high in pairwise(found.edges)]
    pairs = list(zip(middles, found.counts, strict=True))
    filled = [middle for middle, count in pairs if count]
    tracker.writer.add_histogram_raw(
        name,
        min=min(filled, default=found.edges[0]),
        max=max(filled, default=found.edges[0]),
        num=sum(found.counts),
        sum=sum(middle * count for middle, count in pairs),
        sum_squares=sum(middle**2 * count for middle, count in pairs),
        bucket_limits=list(found.edges[1:]),
        bucket_counts=list(found.counts),
        global_step=step,
    )


def _send_to_wandb(tracker: Any, name: str, found: Magnitudes, step: int) -> None:
    import wandb

    histogram = wandb.Histogram(np_histogram=(list(found.counts), list(found.edges)))
    tracker.log({name: histogram}, step=step)


def _send_to_mlflow(tracker: Any, name: str, found: Magnitudes, step: int) -> None:
    """MLflow has no histograms: the counts become a file of the run."""
    import mlflow

    counted = {"step": step, "edges": list(found.edges), "counts": list(found.counts)}
    mlflow.log_dict(counted, f"{name}/step-{step}.json")


HISTOGRAMS: Mapping[str, Callable[[Any, str, Magnitudes, int], None]] = {
    "tensorboard": _send_to_tensorboard,
    "wandb": _send_to_wandb,
    "mlflow": _send_to_mlflow,
}


def _to_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted names and plain values, as trackers take them."""
    settings = {}
    for name, value in flatten(config).items():
        if isinstance(value, (bool, int, float, str)):
            settings[name] = value
        elif value is not None:
            settings[name] = ", ".join(map(str, value))
    return settings
