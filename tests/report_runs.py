"""Runs for tests of reports: from matrices, in memory or as the folders that `mcit run` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mcit.metrics import ScoreMatrix, to_dict
from mcit.reports.runs import Group, Run

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
CHANCE = (0.0, 50.0, 100 / 3, 25.0)
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
    **changes: Any,
) -> dict[str, Any]:
    """The contents of a scores.json."""
    about = {
        "version": 1,
        "track": track,
        "method": method,
        "estimator": f"{method}, as estimated",
        "seed": seed,
    }
    pooled = track == "efcil"
    matrix = ScoreMatrix(
        tuple(tasks), tuple(chance), rows, seen=tuple(seen), class_incremental=pooled
    )
    rest = {
        "embedded": False,
        "details": [],
        "diagnoses": [DIAGNOSIS],
        "stiffness": [dict(STIFFNESS)],
    }
    rest["cost"] = dict(COST)
    return {**about, **rest, **to_dict(matrix), **changes}


def make_config(
    method: str,
    order: Sequence[str] = TASKS,
    seed: int = 1,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The contents of a config.yaml: `options` are the method's, `changes` are sections, such as model={"width": 3}."""
    config: dict[str, Any] = {
        "order": list(order),
        "method": {"name": method, **(options or {})},
        "model": {"name": "tiny", "width": 64},
        "training": {"clip_norm": 1.0, "workers": 0},
        "tasks": {},
        "methods": {},
        "data_root": "data",
        "seed": seed,
        "single": None,
        "output": f"runs/{method}-seed{seed}",
    }
    return {**config, **changes}


def make_passport(tasks: Sequence[str] = TASKS, **changes: Any) -> dict[str, Any]:
    """The contents of a passport.json."""
    passport = {
        "mcit": "0.1.0",
        "command": ["mcit", "run"],
        "python": "3.11.7",
        "platform": "Linux",
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "threads": "1",
        "embedded": False,
        "recipes": {task: dict(RECIPE) for task in tasks},
        "data": {task: f"{number:024x}" for number, task in enumerate(tasks)},
    }
    return {**passport, **changes}


def make_run(
    method: str,
    rows: Sequence[Sequence[float]],
    seed: int = 1,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """One run in memory."""
    passport = options.pop("passport", None)
    scores = make_scores(method, rows, seed=seed, **options)
    matrix = ScoreMatrix.from_dict(scores)
    config = make_config(method, seed=seed) if config is None else config
    passport = make_passport(matrix.tasks) if passport is None else passport
    return Run(
        f"{method}-seed{seed}", method, seed, scores["track"], matrix, scores, config, passport
    )


def make_group(
    method: str,
    matrices: Sequence[Sequence[Sequence[float]]],
    chance: Sequence[float] = CHANCE,
    tasks: Sequence[str] = TASKS,
    track: str = "mcit",
    **options: Any,
) -> Group:
    """A group of one run per matrix, with seeds 1, 2, ..."""
    runs = [
        make_run(method, rows, seed, chance=chance, tasks=tasks, track=track, **options)
        for seed, rows in enumerate(matrices, start=1)
    ]
    return Group(method, tuple(runs))


def write_run(
    folder: Path,
    scores: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    passport: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(scores["method"], seed=scores["seed"]) if config is None else config
    passport = make_passport(scores["tasks"]) if passport is None else passport
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    (folder / "passport.json").write_text(json.dumps(passport), encoding="utf-8")
    return folder
