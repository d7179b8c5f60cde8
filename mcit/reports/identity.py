"""What makes two runs the same experiment, and the fewest words that tell two experiments apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

# Where a run was put, what it is compared with, and what cannot change a score.
IRRELEVANT = (
    "seed",
    "output",
    "single",
    "tracker",
    "checkpoint",
    "training.workers",
    "training.log_every",
    "method.name",
)
FIRST = ("flavour", "method.strength")  # what differs most often comes first in a label


def make_identity(config: Mapping[str, Any], passport: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides a run but its seed, under dotted keys; what is unset or None is left out.

    Options that a configuration holds for other methods and other tasks decide nothing. The data are known by their
    fingerprints, whatever their folder is called; where a task has none, the folder has to do.
    """
    config = {
        key: value for key, value in config.items() if key not in ("method", "methods", "tasks")
    } | {
        "method": find_method_options(config),
        "tasks": _find_task_options(config, passport),
        "recipe": _merge_recipes(passport.get("recipes", {})),
        "embedded": passport.get("embedded"),
        "data": passport.get("data", {}),
    }
    if config["data"] and None not in config["data"].values():
        config.pop("data_root", None)
    flat = {key: value for key, value in flatten(config) if value is not None}
    return {
        key: value
        for key, value in flat.items()
        if not f"{key}.".startswith(tuple(f"{i}." for i in IRRELEVANT))
    }


def find_method_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run's method: its own on top of those that `methods` holds for it."""
    own = config.get("method") or {}
    usual = {_spell(name): options for name, options in (config.get("methods") or {}).items()}
    return {**(usual.get(_spell(own.get("name", ""))) or {}), **own}


def make_key(identity: Mapping[str, Any]) -> tuple[Any, ...]:
    """An identity as something to look up; 1000 and 1000.0 are one value."""
    return tuple((key, _freeze(identity[key])) for key in sorted(identity))


def tell_apart(identities: Sequence[Mapping[str, Any]]) -> list[str]:
    """A suffix for each identity: `@300` for a strength, `[cap=0.0001]` for others; empty where there is but one.

    Keys are added until all are told apart, so that the suffixes name no more than they need to.
    """
    keys = {key for identity in identities for key in identity}
    chosen: list[str] = []
    groups = 1
    for key in sorted(keys, key=_label_order):
        found = len({tuple(_freeze(i.get(k)) for k in [*chosen, key]) for i in identities})
        if found > groups:
            chosen, groups = [*chosen, key], found
    return [_format_suffix(identity, chosen) for identity in identities]


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings under dotted keys; a list is a leaf."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def format_value(value: Any) -> str:
    """A value in few characters: a path by its last part, a list by its parts."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "/".join(format_value(item).replace("/", ",") for item in value)
    text = str(value)
    return PurePath(text).name if "/" in text else text


def _find_task_options(config: Mapping[str, Any], passport: Mapping[str, Any]) -> dict[str, Any]:
    names = {_spell(item.partition(":")[0]) for item in config.get("order") or ()}
    found = {
        name: dict(options)
        for name, options in (config.get("tasks") or {}).items()
        if _spell(name) in names
    }
    if passport.get("recipes"):  # they say what these options came to
        for options in found.values():
            options.pop("recipe", None)
    return found


def _merge_recipes(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The recipes of all tasks as one: a value that differs between tasks is a list."""
    merged = {}
    for key in dict.fromkeys(key for recipe in recipes.values() for key in recipe):
        values = [recipe.get(key) for recipe in recipes.values()]
        merged[key] = values[0] if all(value == values[0] for value in values) else values
    return merged


def _label_order(key: str) -> tuple[int, int, str]:
    place = FIRST.index(key) if key in FIRST else len(FIRST)
    return place, 0 if key.startswith("method.") else 1, key


def _format_suffix(identity: Mapping[str, Any], keys: Sequence[str]) -> str:
    leaves = [key.rpartition(".")[2] for key in keys]
    at, words = "", []
    for key, leaf in zip(keys, leaves, strict=True):
        value = format_value(identity.get(key))
        if key == "method.strength":
            at = f"@{value}"
        elif key == "flavour":
            words.append(value)
        else:
            name = leaf if leaves.count(leaf) == 1 else key.removeprefix("method.")
            words.append(f"{name}={value}")
    return at + (f"[{', '.join(words)}]" if words else "")


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    return str(value) if isinstance(value, bool) else value  # True would equal 1


def _spell(name: str) -> str:
    return name.strip().replace("-", "_")
