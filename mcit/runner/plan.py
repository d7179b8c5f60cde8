"""A configuration with everything it names found: tasks, method, track, network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from mcit import models
from mcit.config import NO_TASKS, ConfigError, ModelConfig, RunConfig, layer, parse, to_dict
from mcit.data.annotated import AnnotatedTask
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.method import Method
from mcit.registry import NameClash, UnknownName, find_method, find_task
from mcit.task import DataError, Task, combine_parts, is_class_incremental


@dataclass(frozen=True)
class Plan:
    """A configuration with everything it names found: the tasks in order, the method, the track."""

    config: RunConfig
    tasks: Sequence[Task]
    method: Method
    track: str  # mcit, or efcil where tasks share a head
    embedded: bool  # on the benchmark that ships with mcit, all tasks or some


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
            # a task of the user's own has no data in the embedded benchmark
            root = config.data_root or (embedded_root if task.embedded else None)
            options = {"root": root, **_policy(config), **task_options.get(task, {})}
            tasks += task.sequence(split or None, options, config.seed)
        except UnknownName as error:
            problems.append(str(error))
        except ConfigError as error:
            problems += error.problems
    if not config.order:
        problems.append(NO_TASKS)
    method = None
    missing: list[str] = []
    try:
        chosen = find_method(config.method.name)
        options = layer(method_options.get(chosen, {}), config.method.options)
        if _lacks_strength(chosen, options):
            missing.append(_explain_missing_strength(config, chosen, method_options))
            options["strength"] = (
                0.0  # nothing is made of it: what else is wrong with the options is found too
            )
        method = parse(chosen, options, where="method")
    except UnknownName as error:
        problems.append(str(error))
    except ConfigError as error:
        problems += error.problems
    problems += _check_order(tasks) + _check_model(config.model, tasks)
    # a method that cannot learn these tasks needs no strength either
    refused = [] if problems else method.find_problems(tasks)
    problems += refused or missing
    if problems:
        raise ConfigError(problems)
    track = "efcil" if is_class_incremental(tasks) else "mcit"
    embedded = (
        track == "mcit" and config.data_root is None and bool(find_embedded(tasks, embedded_root))
    )
    return Plan(_choose_model(config, tasks, track), tasks, method, track, embedded)


def find_embedded(tasks: Sequence[Task], embedded_root: Path | None = None) -> list[Task]:
    """The tasks that the embedded benchmark has data for, and that were given no root of their own."""
    return [task for task in tasks if task.embedded and task.root in (None, embedded_root)]


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


def build_learner(plan: Plan) -> nn.Module:
    """The network of a plan, without heads."""
    return models.build(plan.config.model, stem=getattr(plan.tasks[0], "stem", "cifar"))


def describe_plan(plan: Plan) -> dict[str, Any]:
    """What a passport says of a plan."""
    return {
        "config": to_dict(plan.config),
        "track": plan.track,
        "embedded": plan.embedded,
        "estimator": plan.method.describe(),
        "recipes": {task.name: to_dict(task.recipe) for task in plan.tasks},
        # without times: runs on two copies of the same data are the same experiment
        "data": {task.name: combine_parts(task.data_parts(), times=False) for task in plan.tasks},
        "records": {task.name: task.describe_data() for task in plan.tasks},
    }


def describe_data(plan: Plan) -> dict[str, Any]:
    """The data of a plan by task and part, for a run and its continuation to have in common."""
    return {
        task.name: {
            part.name: {"content": part.content, "times": part.times} for part in task.data_parts()
        }
        for task in plan.tasks
    }


def _policy(config: RunConfig) -> dict[str, str]:
    """What tasks are told about wrong records; a task that knows no such option has none it could leave out."""
    return {} if config.on_bad_record == "fail" else {"on_bad_record": config.on_bad_record}


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
        except NameClash:
            # told where the name is used; a preset has options for methods that this run has nothing to do with
            continue
    return found


def _lacks_strength(method: type[Method], options: Mapping[str, Any]) -> bool:
    """Whether the method has a strength, without a default, and the options give none."""
    needed = {field.name for field in fields(method) if field.init and field.default is MISSING}
    return "strength" in needed and "strength" not in options


def _explain_missing_strength(
    config: RunConfig, method: type[Method], method_options: Mapping[type, Mapping[str, Any]]
) -> str:
    """Return where the strength of a run's method was looked for, and what would do."""
    name = config.method.name
    if config.flavour is not None:
        found = f"configs/flavours/{config.flavour}.yaml gives none for {name!r}."
    elif method_options:
        found = f"the configuration gives none for {name!r}."
    else:
        found = f"no configuration gives one for {name!r} (--config climb has strengths for CLiMB's four tasks)."
    sentences = [f"method.strength is not set: {found}"]
    parents = [parent for parent in method.__mro__[1:] if parent in method_options]
    if parents:
        given = json.dumps(to_dict(method_options[parents[0]]))
        sentences.append(
            f"It inherits from {parents[0].name!r}, whose options there are {given}, but options go by a method's own "
            "name and do not reach it."
        )
    sentences.append(
        "Pass --set method.strength=..., or let `mcit sweep --strengths ... --select` choose one."
    )
    return " ".join(sentences)


def _check_order(tasks: Sequence[Task]) -> list[str]:
    problems = []
    twice = sorted(
        name for name, count in Counter(task.name for task in tasks).items() if count > 1
    )
    if twice:
        problems.append(f"tasks given twice in the order: {', '.join(twice)}")
    if len({is_class_incremental([task]) for task in tasks}) > 1:
        problems.append(
            "vision-language tasks and class-incremental data sets cannot be mixed in one order"
        )
    if len({task.dataset for task in tasks if is_class_incremental([task])}) > 1:
        problems.append("an order can hold one class-incremental data set")
    return problems


def _check_model(model: ModelConfig, tasks: Sequence[Task]) -> list[str]:
    """A network that cannot read what mcit's own tasks show, and options that it would ignore; of other tasks it is for
    their authors to know."""
    if any(isinstance(task, ClassIncrementalTask) for task in tasks):
        if model.name not in ("auto", "resnet18"):
            return [
                f"model.name is {model.name!r}, and class-incremental data sets are learned by 'resnet18'"
            ]
        return []
    problems = []
    if any(isinstance(task, AnnotatedTask) for task in tasks):
        if model.name == "resnet18":
            problems.append(
                "model.name is 'resnet18', which reads no text: vision-language tasks need a ViLT"
            )
        if model.width is not None:
            problems.append(
                "model.width is an option of resnet18; a ViLT is as wide as its weights are"
            )
    return problems


def _choose_model(config: RunConfig, tasks: Sequence[Task], track: str) -> RunConfig:
    name, width = config.model.name, config.model.width
    if track == "efcil":
        automatic, width = "resnet18", width or getattr(tasks[0], "width", 64)
    else:
        automatic = "embedded" if config.data_root is None else "dandelin/vilt-b32-mlm"
    return replace(
        config, model=replace(config.model, name=automatic if name == "auto" else name, width=width)
    )
