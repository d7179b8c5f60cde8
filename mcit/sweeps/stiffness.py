"""Methods at equal stiffness: how stiff each is at strength 1 after the first task, and the strengths that make up."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from mcit.config import ConfigError
from mcit.files import write_json
from mcit.method import Stage
from mcit.reports.formats import Table
from mcit.reports.runs import Group
from mcit.runner.plan import Plan, build_learner
from mcit.runner.snapshot import RunState, read_method
from mcit.runner.stage_cache import StageCache
from mcit.sequence import begin_task
from mcit.training import DivergedError, Trainer

EXPLANATION = (
    "Stiffness is strength times importance, the factor of the pull that holds a weight. Strength is a plain factor, "
    "so the mean stiffness after the first task, where all methods have the same weights, is measured once at strength "
    "1 and scaled. Later it differs again: the weights do, importance is measured at them, and each method puts tasks "
    "together by its own rule (a sum grows with every task, a decay or a blend does not). Equal means do not make "
    "equal shapes: where importance is uneven, few weights carry the stiffness."
)


def measure_stiffness(plan: Plan, cache: Path, progress: bool = False) -> float:
    """The plan's mean stiffness after the first task, whose steps are taken from a stage cache where they are there."""
    config, method = plan.config, plan.method
    if len(plan.tasks) < 2:
        raise ConfigError(
            ["--match needs an order of at least two tasks: after the last one nothing is held"]
        )
    accelerator = Accelerator(mixed_precision=config.training.mixed_precision)
    trainer = Trainer(config.training, accelerator, config.seed)
    trainer.begin_stage(0)
    learner = build_learner(plan).to(accelerator.device)
    stage = Stage(
        learner,
        plan.tasks,
        0,
        config.seed,
        lambda t, split: trainer.loader(learner, t, split),
        progress,
    )
    stages = StageCache(cache, plan, trainer, learner)
    trainer.begin_stage(0)
    begin_task(stage, method)
    _fit(
        stage,
        trainer,
        RunState(learner, method, accelerator.scaler, accelerator.process_index),
        stages,
    )
    try:
        method.end_task(stage)
    except FloatingPointError as error:
        raise DivergedError(f"{config.method.name} after the first task: {error}") from error
    manager = getattr(method, "manager", None)
    mean = manager.diagnose().mean_stiffness if manager is not None else 0.0
    if not mean > 0:
        raise ConfigError(
            [
                f"method {config.method.name!r} holds no weight after the first task: it cannot be matched"
            ]
        )
    return mean


def _fit(stage: Stage, trainer: Trainer, state: RunState, stages: StageCache) -> None:
    """Take the first task's steps, or put back what another method's, which were the same, led to."""
    found = stages.find_fit(stage, print)
    if found is not None:
        state.put_back(found)
        state.method.load_fit_state(read_method(found))
        state.put_back_random(found)
        return
    begun = time.perf_counter()
    steps = trainer.fit(stage, state.method, lambda entry: None)
    about = {"steps": steps, "seconds": time.perf_counter() - begun}
    stages.store_fit(stage, state.take(state.method.fit_state(), **about))


def match_strengths(
    stiffness: Mapping[str, float], reference: str, strengths: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Each method's strengths that give it the reference method's mean stiffness, to four digits."""
    return {
        method: tuple(
            float(f"{strength * stiffness[reference] / own:.4g}") for strength in strengths
        )
        for method, own in stiffness.items()
        if method != reference
    } | {reference: tuple(strengths)}


def describe_match(
    stiffness: Mapping[str, float], reference: str, matched: Mapping[str, Sequence[float]]
) -> list[str]:
    """One line for each method."""
    return [
        f"{method}: mean stiffness {own:.3g} at strength 1, so strength {', '.join(f'{s:g}' for s in matched[method])}"
        + (" (the reference)" if method == reference else "")
        for method, own in stiffness.items()
    ]


def tabulate_stiffness(groups: Sequence[Group]) -> Table:
    """The mean stiffness after every task, averaged over seeds: equal after the first where it was matched."""
    tasks = groups[0].runs[0].tasks
    rows = []
    for group in groups:
        found = [[after["mean"] for after in run.scores["stiffness"]] for run in group.runs]
        means = [statistics.fmean(values) for values in zip(*found, strict=True)]
        if means:
            rows.append(
                [
                    group.label,
                    *(f"{value:.3g}" for value in means),
                    *[""] * (len(tasks) - len(means)),
                ]
            )
    return Table(
        "stiffness", "Mean stiffness after each task", ["method", *tasks], rows, [EXPLANATION]
    )


class Measured:
    """Mean stiffnesses at strength 1 in a file, each with the experiment it was measured in."""

    def __init__(self, path: Path):
        self.path = path
        self.entries: dict[str, Any] = (
            json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        )

    def find(self, method: str, identity: Any) -> float | None:
        """What was measured for the method in this very experiment."""
        entry = self.entries.get(method)
        return (
            entry["mean_stiffness"]
            if entry is not None and entry["experiment"] == identity
            else None
        )

    def add(self, method: str, identity: Any, mean: float) -> None:
        """Keep a measurement, so that a sweep that goes on need not repeat it."""
        self.entries[method] = {"mean_stiffness": mean, "experiment": identity}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.entries)
