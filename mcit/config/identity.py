"""Whether two runs are the same experiment: decided by what their fields say of themselves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcit.config.options import Kind, metadata_of, read_hints
from mcit.config.parse import flatten, to_dict


def keep_kinds(config: Any, *kinds: Kind) -> dict[str, Any]:
    """Return the fields of a dataclass that are of these kinds, as plain nested dictionaries."""
    hints = read_hints(type(config))
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        metadata = metadata_of(type(config), field.name)
        if not field.init or metadata.get("internal"):
            # it follows from other fields
            continue
        value = getattr(config, field.name)
        if metadata.get("newer") and value == field.default:
            continue
        if dataclasses.is_dataclass(hints[field.name]) and dataclasses.is_dataclass(value):
            section = keep_kinds(value, *kinds)
            if section:
                kept[field.name] = section
        elif metadata.get("kind", Kind.RESULT) in kinds:
            kept[field.name] = to_dict(value)
    return kept


@dataclass(frozen=True)
class Difference:
    """A setting that two runs do not share; None where a run does not have it at all."""

    name: str
    before: Any
    now: Any

    def describe(self) -> str:
        return f"{self.name}: {_show(self.before)} -> {_show(self.now)}"


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the settings in which two nested dictionaries differ."""
    old = flatten(before)
    new = flatten(now)
    names = dict.fromkeys([*old, *new])
    return [
        Difference(name, old.get(name), new.get(name))
        for name in names
        if old.get(name) != new.get(name)
    ]


def _show(value: Any) -> str:
    if value is None:
        return "not given"
    return json.dumps(value, ensure_ascii=False)
