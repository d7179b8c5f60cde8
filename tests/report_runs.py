"""Runs for tests of reports: from matrices, in memory or as the folders that `mcit run` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mcit.config.identity import keep_kinds
from mcit.config.options import Kind
from mcit.config.parse import layer, parse
from mcit.config.schema import RunConfig
from mcit.metrics import ScoreMatrix, to_dict
from mcit.reports import runs
from mcit.reports.groups import Group, group_runs
from mcit.reports.runs import Run, check_scores

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
CHANCE = (0.0, 50.0, 100 / 3, 25.0)
# two classes in every task
CLASSES = ("x[0-1]", "x[2-3]")
CLASS_CHANCE = (50.0, 25.0)
COST = {
    "fit_seconds": 60.0,
    "steps": 100,
    "end_task_seconds": 6.0,
    "score_seconds": 4.0,
    "bytes_held": 3 * 2**20,
}
DIAGNOSIS = "mean stiffness 0.4, max 981, capped 0.00%, near zero 3.93% of 1,000 weights"
STIFFNESS = {"mean": 0.4, "max": 981.0, "capped": 0.0, "near_zero": 3.93}
RECIPE = {"epochs": 3, "batch_size": 16, "learning_rate": 0.0005}


def make_scores(
    method: str,
    rows: Sequence[Sequence[float]],
    tasks: Sequence[str] = TASKS,
    chance: Sequence[float] = CHANCE,
    track: str = "mcit",
    seed: int = 1,
    seen: Sequence[float] = (),
    single: Mapping[str, float] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return the contents of a scores.json."""
    matrix = ScoreMatrix(
        tuple(tasks), tuple(chance), rows, seen=tuple(seen), class_incremental=track == "efcil"
    )
    about = {
        "version": 1,
        "track": track,
        "method": method,
        "estimator": f"{method}, as estimated",
        "preset": None,
        "seed": seed,
        "embedded": False,
        "details": [],
        "diagnoses": [DIAGNOSIS],
        "stiffness": [dict(STIFFNESS)],
        "cost": dict(COST),
    }
    return {**about, **to_dict(matrix, single), **changes}


def make_config(
    method: str,
    order: Sequence[str] = TASKS,
    seed: int = 1,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return the contents of a config.yaml: `options` are the method's, `changes` are sections."""
    config: dict[str, Any] = {
        "order": list(order),
        "method": {"name": method, **(options or {})},
        "model": {"name": "tiny", "width": 64},
        "training": {"clip_norm": 1.0, "workers": 0},
        "tasks": {},
        "data_root": "data",
        "seed": seed,
        "single": None,
        "output": f"runs/{method}-seed{seed}",
    }
    return {**config, **changes}


def make_experiment(config: Mapping[str, Any], tasks: Sequence[str] = TASKS) -> dict[str, Any]:
    """Return what decides a run, as its plan says it: by the kinds of the fields, and by task."""
    experiment = keep_kinds(parse(RunConfig, config), Kind.RESULT)
    for name in ("methods", "preset"):
        experiment.pop(name)
    experiment["method"] = config["method"]
    options = {task: config["tasks"].get(task, {}) for task in tasks}
    experiment["tasks"] = {task: layer({"recipe": RECIPE}, options[task]) for task in tasks}
    return experiment


def make_provenance(
    config: Mapping[str, Any], /, tasks: Sequence[str] = TASKS, **changes: Any
) -> dict[str, Any]:
    """Return the contents of a provenance.json."""
    provenance = {
        "mcit": "0.1.0",
        "command": ["mcit", "run"],
        "python": "3.11.7",
        "platform": "Linux",
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "threads": "1",
        "embedded": False,
        "experiment": make_experiment(config, tasks),
        "data": {task: f"{number:024x}" for number, task in enumerate(tasks)},
    }
    return {**provenance, **changes}


def make_run(
    method: str,
    rows: Sequence[Sequence[float]],
    seed: int = 1,
    config: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Return one run in memory; `options` are those of `make_scores`.

    provenance: what differs from the provenance that follows from the configuration.
    """
    scores = check_scores(make_scores(method, rows, seed=seed, **options), Path("scores.json"))
    run = runs.make_run(f"{method}-seed{seed}", scores)
    config = make_config(method, scores.tasks, seed) if config is None else config
    made = make_provenance(config, scores.tasks, **(provenance or {}))
    about = {"config": config, "provenance": made}
    others = tuple(runs.replace(other, **about) for other in run.others)
    return runs.replace(run, others=others, **about)


def make_group(method: str, matrices: Sequence[Any], **options: Any) -> Group:
    """Return a group of one run per matrix, with seeds 1, 2, ..."""
    made = [make_run(method, rows, seed, **options) for seed, rows in enumerate(matrices, start=1)]
    return Group(tuple(made), group_runs(made)[0].setting)


def make_groups(*methods: str, matrices: Sequence[Any], **options: Any) -> list[Group]:
    """Return a group for each method, all with the same matrices."""
    made = [
        make_run(method, rows, seed, **options)
        for method in methods
        for seed, rows in enumerate(matrices, start=1)
    ]
    return group_runs(made)


def write_run(
    folder: Path,
    scores: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the folder of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(scores["method"], seed=scores["seed"]) if config is None else config
    if provenance is None:
        provenance = make_provenance(config, scores["tasks"])
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")
    return folder
