"""From a configuration to a plan whose data are there: errors before any long work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mcit.config.files import describe_data_root, read_recipe
from mcit.config.parse import flatten
from mcit.config.schema import RECIPE, RunConfig
from mcit.embedded.benchmark import ensure_benchmark, find_place
from mcit.errors import ConfigError, FolderError
from mcit.files import cache_folder
from mcit.parallel.launch import find_precision_problems
from mcit.runner.plan import Plan, find_embedded, resolve
from mcit.runner.result import read_single
from mcit.runner.sharded import find_sharded_problems
from mcit.runner.tracking import find_tracker_problems
from mcit.task import Track

Say = Callable[[str], None]

# how long the embedded benchmark takes to write, on one core of 2024
WRITING_SECONDS = 20


def prepare_plan(config: RunConfig, say: Say) -> Plan:
    """Return the plan of a configuration with its data checked; all that is wrong is one error.

    The embedded benchmark is written if the run uses it.
    """
    # without a place for caches a run would stop where it first needs one
    cache_folder()
    problems = find_precision_problems(config.training.mixed_precision)
    problems += find_tracker_problems(config.tracker)
    if config.data_root is not None and not Path(config.data_root).is_dir():
        problems.append(describe_data_root(config.data_root))
    plan = None
    try:
        plan = resolve(config)
    except ConfigError as error:
        problems += error.problems
    try:
        read_single(config.single)
    except ConfigError as error:
        problems += error.problems
    if plan is not None:
        problems += find_sharded_problems(plan)
    if plan is None or problems:
        raise ConfigError(problems)
    if plan.embedded:
        say(_describe_embedded(plan))
        root = find_place()
        if not root.is_dir():
            say(f"writing the embedded benchmark to {root}, once: about {WRITING_SECONDS} s")
        plan = resolve(config, _make_benchmark())
    plan.check_data()
    # only now that nothing is wrong: it would stand before the error
    if config.recipe is not None and config.recipe != RECIPE:
        say(f"recipe {config.recipe}: {_describe_recipe(config.recipe)}")
    if config.preset is not None:
        say(f"preset {config.preset}: {config.method.name}, {plan.method.describe()}")
    return plan


def _describe_recipe(name: str) -> str:
    """Return the options that a recipe sets."""
    options = flatten(read_recipe(name))
    return ", ".join(f"{key} {value}" for key, value in options.items())


def _make_benchmark() -> Path:
    """Return the root of the embedded benchmark, which is written the first time."""
    try:
        return ensure_benchmark()
    except OSError as error:
        raise FolderError(
            f"the embedded benchmark cannot be written: {error.strerror}; the cache is in "
            f"{cache_folder()}: make room there, or set MCIT_CACHE to another folder"
        ) from error


def _describe_embedded(plan: Plan) -> str:
    """Return which tasks are learned from the embedded benchmark."""
    names = [task.name for task in find_embedded(plan.tasks)]
    if len(names) == len(plan.tasks):
        who = "this run uses"
    elif len(names) == 1:
        who = f"{names[0]} uses"
    else:
        who = f"{', '.join(names)} use"
    model = "a small LLaVA" if plan.track is Track.TEXT else "a small ViLT"
    return f"no --data-root: {who} the embedded benchmark (generated scenes, {model})"
