"""What decides the results of a run, and the fewest settings that tell two experiments apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from mcit.config.parse import flatten

# what differs most often comes first in a label
FIRST_IN_LABELS = ("recipe", "preset", "method.strength")


def experiment_of(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that decides a run's results except its seed, under dotted keys; None is left out.

    Data are known by their fingerprints, wherever they are; the folder counts if a fingerprint is
    missing. If the provenance is lost, every setting of the configuration may have decided.
    """
    stated = provenance.get("experiment") or config
    apart = ("seed", "tasks", "output")
    decisive = {key: value for key, value in stated.items() if key not in apart}
    tasks = [flatten(options) for options in stated.get("tasks", {}).values()]
    decisive |= _merge_tasks(tasks)
    decisive["embedded"] = provenance.get("embedded")
    data = provenance.get("data", {})
    decisive["data"] = data
    if not data or None in data.values():
        decisive["data_root"] = config.get("data_root")
    flat = flatten(decisive)
    return {key: value for key, value in flat.items() if value is not None}


def freeze(experiment: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable form of an experiment; 1000 and 1000.0 are the same value."""
    return tuple((key, _freeze(experiment[key])) for key in sorted(experiment))


def find_distinctions(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that tell experiments apart: each one added tells more of them apart."""
    keys = {key for experiment in experiments for key in experiment}
    chosen: list[str] = []
    told_apart = 1
    for key in sorted(keys, key=_label_order):
        tried = [*chosen, key]
        distinct = {tuple(_freeze(each.get(name)) for name in tried) for each in experiments}
        if len(distinct) > told_apart:
            chosen = tried
            told_apart = len(distinct)
    return chosen


def format_value(value: Any) -> str:
    """Return a setting in few characters: a path as its last part, a list as its parts."""
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


def _merge_tasks(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of all tasks as one; a value that differs between tasks is a list."""
    merged: dict[str, Any] = {}
    for key in {key for options in tasks for key in options}:
        values = [options.get(key) for options in tasks]
        same = all(value == values[0] for value in values)
        merged[key] = values[0] if same else values
    return merged


def _label_order(key: str) -> tuple[int, bool, str]:
    section = key.partition(".")[0]
    place = len(FIRST_IN_LABELS)
    if key in FIRST_IN_LABELS:
        place = FIRST_IN_LABELS.index(key)
    return place, section != "method", key


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    # True would equal 1, and a mapping cannot be hashed
    return repr(value)
