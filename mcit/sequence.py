"""The outer loop: grow, fit, consolidate, score all seen, record."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from mcit import models
from mcit.config import ConfigError, RunConfig, parse, to_dict, to_yaml
from mcit.method import Method, Stage
from mcit.metrics import ScoreMatrix
from mcit.metrics import to_dict as metrics_to_dict
from mcit.passport import make_passport, write_json
from mcit.registry import UnknownName, find_method, find_task
from mcit.task import DataError, Task
from mcit.training import Score, Trainer

VERSION = 1  # of scores.json


@dataclass(frozen=True)
class Plan:
    """A configuration with everything it names found: the tasks in order, the method, the track."""

    config: RunConfig
    tasks: Sequence[Task]
    method: Method
    track: str  # mcit, or efcil where tasks share a head
    embedded: bool  # on the benchmark that ships with mcit


@dataclass
class Result:
    """The scores so far, what they cost, and where they were written."""

    plan: Plan
    matrix: ScoreMatrix
    output: Path
    details: list[list[Mapping[str, float]]] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=Counter)
    diagnoses: list[str] = field(default_factory=list)
    single: Mapping[str, float] | None = None  # what each task scores alone

    def to_dict(self) -> dict[str, Any]:
        """The contents of scores.json."""
        config, method = self.plan.config, self.plan.method
        return {
            "version": VERSION,
            "track": self.plan.track,
            "method": config.method.name,
            "estimator": method.describe(),
            "seed": config.seed,
            "embedded": self.plan.embedded,
            **metrics_to_dict(self.matrix, self.single),
            "details": self.details,
            "diagnoses": self.diagnoses,
            "cost": {**self.cost, "bytes_held": method.bytes_held()},
        }


def resolve(config: RunConfig, embedded_root: Path | None = None) -> Plan:
    """Find the tasks and the method; all that is wrong with names and options comes in one error."""
    problems: list[str] = []
    tasks: list[Task] = []
    task_options = _by_class(config.tasks, find_task, problems)
    method_options = _by_class(config.methods, find_method, problems)
    for item in config.order:
        name, _, split = item.partition(":")
        try:
            task = find_task(name)
            options = {"root": config.data_root or embedded_root, **task_options.get(task, {})}
            tasks += task.sequence(split or None, options, config.seed)
        except UnknownName as error:
            problems.append(str(error))
        except ConfigError as error:
            problems += error.problems
    if not config.order:
        problems.append("no tasks are given: use --order vqa,nlvr2,snli-ve,vcr or --order shapes:5x4")
    method = None
    try:
        chosen = find_method(config.method.name)
        method = parse(chosen, {**method_options.get(chosen, {}), **config.method.options}, where="method")
    except UnknownName as error:
        problems.append(str(error))
    except ConfigError as error:
        problems += error.problems
    problems += _check_order(tasks)
    if problems:
        raise ConfigError(problems)
    track = "efcil" if hasattr(tasks[0], "known") else "mcit"
    own = all(task.root in (None, embedded_root) for task in tasks)  # a task may have been given a root of its own
    embedded = track == "mcit" and config.data_root is None and own
    return Plan(_choose_model(config, track), tasks, method, track, embedded)


def check_data(plan: Plan) -> None:
    """Touch the data of every task before any long work; all that is missing comes in one error."""
    problems: dict[str, str] = {}
    for task in plan.tasks:
        try:
            task.check()
        except DataError as error:
            problems.setdefault(str(error), task.name)  # parts of one data set may all say the same
    if problems:
        raise DataError("\n".join(f"{name}: {problem}" for problem, name in problems.items()))


def run(plan: Plan, output: Path, progress: bool = True, say: Any = print) -> Result:
    """Learn the tasks in order; everything that is known so far is on disk after every task."""
    config = plan.config
    accelerator = Accelerator(mixed_precision=config.training.mixed_precision)
    main = accelerator.is_main_process
    trainer = Trainer(config.training, accelerator, config.seed)
    trainer.begin_stage(0)
    learner = build_learner(plan).to(accelerator.device)
    result = Result(plan, _empty_matrix(plan.tasks), output, single=read_single(config.single))
    log = _Log(output / "log.jsonl" if main else None)
    if main:
        output.mkdir(parents=True, exist_ok=True)
        (output / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        write_json(output / "passport.json", make_passport(**_describe_run(plan)))
    for index, task in enumerate(plan.tasks):
        stage = Stage(learner, plan.tasks, index, config.seed, _loaders(trainer, learner), progress and main)
        before, scores = _learn(stage, plan.method, trainer, result, log, say if main else _mute)
        result.matrix = result.matrix.add([s.score for s in scores], _pooled(plan, scores), before=before)
        result.details.append([s.details for s in scores])
        if main:
            write_json(output / "scores.json", result.to_dict())
            listed = "  ".join(f"{t.name} {s.score:.2f}" for t, s in zip(plan.tasks, scores, strict=False))
            say(f"after {task.name}: {listed}")
    return result


def read_single(folder: str | None) -> dict[str, float] | None:
    """What each task scored alone, from the folder of a run of method `single`."""
    if folder is None:
        return None
    path = Path(folder) / "scores.json"
    if not path.is_file():
        raise ConfigError([f"'single' names {folder!r}, which has no scores.json; run the order with --method single"])
    scores = json.loads(path.read_text(encoding="utf-8"))
    if scores.get("method") != "single":
        raise ConfigError([f"{path} is a run of method {scores.get('method')!r}; knowledge transfer needs 'single'"])
    return dict(zip(scores["tasks"], scores["metrics"]["A_new"], strict=False))


def build_learner(plan: Plan) -> nn.Module:
    """The network of a plan, without heads."""
    return models.build(plan.config.model, stem=getattr(plan.tasks[0], "stem", "cifar"))


def begin_task(stage: Stage, method: Method) -> None:
    """Give the learner the task's head, let only that head train, and tell the method."""
    head = stage.task.head
    # a method that learns everything at once has grown all heads at the first task
    if head.name not in stage.learner.heads or stage.learner.outputs(head) < head.outputs:
        stage.learner.grow(head)
    stage.learner.activate(head)
    method.begin_task(stage)


def _learn(stage: Stage, method: Method, trainer: Trainer, result: Result, log: _Log, say: Any):
    trainer.begin_stage(stage.index)
    begin_task(stage, method)
    warning = getattr(method, "warning", None)
    if warning:
        log({"event": "warning", "task": stage.task.name, "message": warning})
        say(f"warning, {stage.task.name}: {warning}")
    before = trainer.evaluate(stage, stage.task).score if trainer.config.score_before else None
    with _timed(result.cost, "fit_seconds"):
        steps = trainer.fit(stage, method, log)
    result.cost["steps"] += steps
    with _timed(result.cost, "end_task_seconds"):
        method.end_task(stage)
    manager = getattr(method, "manager", None)
    if manager is not None and manager.importance:
        result.diagnoses.append(manager.diagnose().describe())
    scores: list[Score] = []
    with _timed(result.cost, "score_seconds"):
        for task in stage.tasks[: stage.index + 1]:
            method.before_scoring(stage, task)
            scores.append(trainer.evaluate(stage, task))
        method.after_scoring(stage)
    log({"event": "task", "task": stage.task.name, "scores": [s.score for s in scores], **result.cost})
    return before, scores


def _mute(line: str) -> None:
    pass


class _Log:
    """Lines of JSON, each written at once."""

    def __init__(self, path: Path | None):
        self.path = path

    def __call__(self, entry: Mapping[str, Any]) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **entry}, ensure_ascii=False) + "\n")


class _timed:
    def __init__(self, cost: Counter, name: str):
        self.cost, self.name = cost, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.cost[self.name] += time.perf_counter() - self.start


def _loaders(trainer: Trainer, learner: nn.Module):
    return lambda task, split: trainer.loader(learner, task, split)


def _pooled(plan: Plan, scores: Sequence[Score]) -> float | None:
    """Accuracy over all classes seen, each image once; None where tasks have scores of their own kind."""
    if plan.track == "mcit":
        return None
    return sum(s.score * s.examples for s in scores) / sum(s.examples for s in scores)


def _describe_run(plan: Plan) -> dict[str, Any]:
    return {
        "config": to_dict(plan.config),
        "track": plan.track,
        "embedded": plan.embedded,
        "estimator": plan.method.describe(),
        "recipes": {task.name: to_dict(task.recipe) for task in plan.tasks},
        "data": {task.name: task.fingerprint() for task in plan.tasks},
    }


def _empty_matrix(tasks: Sequence[Task]) -> ScoreMatrix:
    return ScoreMatrix(tuple(task.name for task in tasks), tuple(task.chance for task in tasks))


def _by_class(
    section: Mapping[str, Mapping[str, Any]], find: Any, problems: list[str]
) -> dict[type, Mapping[str, Any]]:
    """Options by the class they are for, however its name is spelled; one that nothing has is a problem."""
    found: dict[type, Mapping[str, Any]] = {}
    for name, options in section.items():
        try:
            found[find(name)] = options
        except UnknownName as error:
            problems.append(str(error))
    return found


def _check_order(tasks: Sequence[Task]) -> list[str]:
    problems = []
    twice = sorted(name for name, count in Counter(task.name for task in tasks).items() if count > 1)
    if twice:
        problems.append(f"tasks given twice in the order: {', '.join(twice)}")
    if len({hasattr(task, "known") for task in tasks}) > 1:
        problems.append("vision-language tasks and class-incremental data sets cannot be mixed in one order")
    if len({task.dataset for task in tasks if hasattr(task, "known")}) > 1:
        problems.append("an order can hold one class-incremental data set")
    return problems


def _choose_model(config: RunConfig, track: str) -> RunConfig:
    if config.model.name != "auto":
        return config
    if track == "efcil":
        name = "resnet18"
    else:
        name = "embedded" if config.data_root is None else "dandelin/vilt-b32-mlm"
    return replace(config, model=replace(config.model, name=name))
