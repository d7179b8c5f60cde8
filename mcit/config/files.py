"""Configuration files, and their order: defaults < preset < --config < options < --set."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mcit.config.parse import Selection, describe_kind, layer, override, parse, to_dict
from mcit.config.schema import PRESETS, RECIPE, RunConfig
from mcit.config.yaml_text import dump_yaml, load_yaml
from mcit.errors import ConfigError
from mcit.files import find_folder_problem
from mcit.registry import (
    CLASSIFIER,
    METHOD,
    TASK,
    TRANSPORT,
    check_name,
    check_options,
    is_ambiguous,
    peek_attribute,
)
from mcit.spelling import suggest

CONFIGS = "configs"
RECIPES = "recipes"
NO_TASKS = "no tasks are given: use --order vqa,nlvr2,snli-ve,vcr or --order shapes:5x4"
# the files under the settings of runs on the data that ship with mcit, by the track of the tasks
EMBEDDED = {"TASKS": "embedded", "TEXT": "embedded-text"}


def load_config(
    file: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
) -> RunConfig:
    """Return the configuration of a run.

    file: a YAML file or a name in `configs/`. options: values by top-level key, such as `order` and
    `method`; None means not given. assignments: texts such as `method.strength=1e4`.
    """
    written = {} if file is None else read_yaml(find_config(str(file)))
    given = {key: value for key, value in (options or {}).items() if value is not None}
    assignments = list(assignments)
    data, problems = _merge(written, given, assignments)
    preset = written.get("preset")
    if preset in PRESETS and data.get("preset") != preset:
        # a file that a run wrote holds its preset's settings, which must not pass for the user's
        # own
        own = _leave_out(written, read_preset(preset))
        data, problems = _merge(own, given, assignments)
    try:
        config = complete(data)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError([*problems, *_find_unknown_names(data)])
    return config


def complete(data: Mapping[str, Any]) -> RunConfig:
    """Return `data` over the settings of its tasks: a preset's, or the embedded benchmark's."""
    config = parse(RunConfig, data)
    tracks = [_peek_track(item) for item in config.order]
    if "CLASSES" in tracks:
        preset = config.preset or PRESETS[0]
        recipe = config.recipe or RECIPE
        merged = layer(read_preset(preset), data)
        return parse(RunConfig, {**merged, "preset": preset, "recipe": recipe})
    if config.preset is not None and config.order:
        listed = ", ".join(config.order)
        raise ConfigError(
            [
                f"preset {config.preset!r} is for class-incremental orders such as shapes:5x4: its "
                f"strengths belong to their recipes; for {listed} set method options instead"
            ]
        )
    if config.recipe is not None and config.order:
        listed = ", ".join(config.order)
        raise ConfigError(
            [
                f"recipe {config.recipe!r} is for class-incremental orders such as shapes:5x4; for "
                f"{listed} set the options of each task, such as tasks.NAME.recipe.schedule=cosine"
            ]
        )
    if config.data_root is None:
        for item, track in zip(config.order, tracks, strict=True):
            if _is_embedded(item) and track in EMBEDDED:
                return parse(RunConfig, layer(read_yaml(find_config(EMBEDDED[track])), data))
    return config


def find_name_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with the names of tasks, methods and their options, without torch."""
    problems = []
    for item in config.order:
        problems += check_name(TASK, task_name(item))
    named = ((TASK, config.tasks), (METHOD, config.methods), (CLASSIFIER, config.classifiers))
    for category, sections in named:
        for name, options in sections.items():
            # a preset has options for many; two files of one name matter only where it is used
            if not is_ambiguous(category, name):
                problems += check_options(category, name, options, f"{category.word}s.{name}")
    problems += check_options(METHOD, config.method.name, config.method.options, "method")
    problems += _find_recipe_problems(config)
    problems += _find_classifier_problems(config)
    return list(dict.fromkeys(problems))


def _find_recipe_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with the name of the recipe, or with the options in its file."""
    # nobody chose the usual one
    if config.recipe in (None, RECIPE):
        return []
    try:
        options = read_recipe(config.recipe)
    except ConfigError as error:
        return error.problems
    problems = []
    for item in config.order:
        name = task_name(item)
        if not check_name(TASK, name):
            problems += check_options(TASK, name, options, f"recipe {config.recipe}")
    return problems


def _find_classifier_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with the names of classifiers and transport and with their options."""
    problems = []
    if config.classifier is not None:
        names = split_names(config.classifier)
        options = config.classifier.options
        if len(names) > 1 and options:
            listed = ", ".join(f"classifiers.{names[0]}.{key}" for key in options)
            problems.append(
                f"several classifiers are named, so it is not clear whose options "
                f"{', '.join(options)} are: set {listed} instead"
            )
            options = {}
        for name in names:
            if not name:
                problems.append(
                    f"'classifier' has an empty name in {config.classifier.name!r}; remove the "
                    "extra comma"
                )
                continue
            problems += check_options(CLASSIFIER, name, options, "classifier")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            problems.append(f"classifiers named twice: {', '.join(twice)}")
    if config.transport is not None:
        options = config.transport.options
        problems += check_options(TRANSPORT, config.transport.name, options, "transport")
    return problems


def split_names(selection: Selection) -> list[str]:
    """Return the names of a selection: `head,lda` are two."""
    return [name.strip() for name in selection.name.split(",")]


def find_early_problems(config: RunConfig, stage_cache: str | None = None) -> list[str]:
    """Return what is wrong with the names and folders of a run that shows without torch."""
    problems = find_name_problems(config)
    if not config.order:
        problems.append(NO_TASKS)
    if config.data_root is not None and not Path(config.data_root).is_dir():
        problems.append(describe_data_root(config.data_root))
    for option, folder in (("--output", config.output), ("--stage-cache", stage_cache)):
        problem = None if folder is None else find_folder_problem(Path(folder), option)
        if problem is not None:
            problems.append(problem)
    return problems


def describe_data_root(folder: str) -> str:
    """Return what is wrong with a data root that is not a directory."""
    return f"--data-root {folder!r} is not a directory; give the folder of the official data"


def task_name(item: str) -> str:
    """Return the task of an entry in an order: `cifar100` of `cifar100:5x4`."""
    return item.partition(":")[0]


def find_config(name: str) -> Path:
    """Return a file, or that of a name in `configs/` such as `climb` or `efcil/cifar100-mini`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.exists():
        return path
    known = list_configs()
    name = name.removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
    if name in known:
        return known[name]
    if path.is_file():
        return path
    # recipes hold options of tasks, and are no configurations
    names = sorted(name for name in known if not name.startswith(f"{RECIPES}/"))
    listed = ", ".join(names)
    near = suggest(name, names)
    raise ConfigError(
        [f"no configuration file {str(path)!r}{near} (names in {CONFIGS}/: {listed})"]
    )


def list_configs() -> dict[str, Path]:
    """Return the files in `configs/` by name."""
    known = {}
    for folder in importlib.import_module("mcit.configs").__path__:
        for file in sorted(Path(folder).rglob("*.yaml")):
            # those in accelerate/ are for `accelerate launch --config_file`
            if file.parent.name != "accelerate":
                known[str(file.relative_to(folder).with_suffix(""))] = file
    return known


def read_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset."""
    return read_yaml(find_config(f"presets/{name}"))


def list_recipes() -> dict[str, str]:
    """Return the recipes that ship, each with the first sentence of its file's comment."""
    found = {}
    for name, path in list_configs().items():
        folder, _, recipe = name.rpartition("/")
        if folder == RECIPES:
            found[recipe] = _read_comment(path)
    return found


def read_recipe(name: str) -> dict[str, Any]:
    """Return the task options of a recipe: one that ships, or a YAML file of the user's own."""
    known = list_configs()
    shipped = known.get(f"{RECIPES}/{name}")
    if shipped is not None:
        return read_yaml(shipped)
    if Path(name).is_file():
        return read_yaml(name)
    names = list_recipes()
    near = suggest(name, names)
    listed = ", ".join(names)
    raise ConfigError([f"unknown recipe {name!r}{near} (recipes: {listed}, or a YAML file)"])


def _read_comment(path: Path) -> str:
    """Return the first sentence of the comment at the top of a file."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    sentence, _, _ = " ".join(lines).partition(". ")
    return f"{sentence.removesuffix('.')}."


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raise a ConfigError that names the file otherwise."""
    path = Path(path)
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        near = suggest(path.name, siblings)
        raise ConfigError([f"no configuration file {str(path)!r}{near}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # what PyYAML calls a text without a file
        reason = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        raise ConfigError([f"{path} is not valid YAML: {reason}"]) from None
    except OSError as error:
        raise ConfigError(
            [f"{path} cannot be read as a configuration file: {error.strerror}"]
        ) from None
    if data is None:
        example = "write what differs from the defaults, such as `order: [vqa, nlvr2]`"
        raise ConfigError([f"{path} is empty, or holds nothing but comments; {example}"])
    if not isinstance(data, dict):
        kind = describe_kind(data)
        raise ConfigError(
            [f"{path} holds a {kind} where names with values are expected, such as `seed: 1`"]
        )
    return data


def to_yaml(config: Any) -> str:
    """Return a configuration as YAML, in the order of its fields."""
    return dump_yaml(to_dict(config))


def _merge(
    data: Mapping[str, Any], given: Mapping[str, Any], assignments: Iterable[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return a file's data under options and assignments, and what is wrong with the latter."""
    data = dict(data)
    for key, value in given.items():
        section = data.get(key)
        if isinstance(section, dict) and section.get("name") == value:
            # the file's options of this very method or classifier stay
            continue
        data[key] = value
    problems: list[str] = []
    for assignment in assignments:
        try:
            data = override(data, [assignment])
        except ConfigError as error:
            problems += error.problems
    method = data.get("method")
    if isinstance(method, dict) and "name" not in method:
        # options were set and no method was named: they are for the default
        data["method"] = {"name": RunConfig().method.name, **method}
    return data, problems


def _leave_out(data: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` without the values that are the same in `settings`."""
    kept = {}
    for key, value in data.items():
        other = settings.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            kept[key] = _leave_out(value, other)
        elif key not in settings or value != other:
            kept[key] = value
    return kept


def _find_unknown_names(data: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the names in data that are not a configuration yet."""
    order = data.get("order")
    items = order.split(",") if isinstance(order, str) else order
    problems = []
    for item in items if isinstance(items, list) else []:
        name = task_name(str(item)).strip()
        # an empty item has been reported already
        if name:
            problems += check_name(TASK, name)
    method = data.get("method")
    if isinstance(method, dict):
        method = method.get("name")
    if isinstance(method, str):
        problems += check_name(METHOD, method)
    return problems


def _peek_track(item: str) -> str | None:
    """Return the name of the track that a task is written to belong to, or None if unknown."""
    written = peek_attribute(TASK, task_name(item), "track")
    if isinstance(written, ast.Attribute):
        return written.attr
    return None


def _is_embedded(item: str) -> bool:
    written = peek_attribute(TASK, task_name(item), "embedded")
    return isinstance(written, ast.Constant) and written.value is True
