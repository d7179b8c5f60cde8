"""Plain dictionaries as typed dataclasses: everything that is wrong, in one message."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from mcit.config.options import read_hints
from mcit.config.yaml_text import read_value
from mcit.errors import ConfigError
from mcit.spelling import describe_unknown_key, suggest

T = TypeVar("T")
# the largest number of single precision, in which networks are trained
LARGEST = 3.4028234663852886e38
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}
_KIND_NAMES = {list: "list", str: "text", bool: "true/false value", dict: "section"}


@dataclass(frozen=True)
class Selection:
    """A name and its options; the registry knows the class whose fields the options are."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def parse(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Return `data` as a dataclass `cls`; raise a ConfigError with every problem."""
    reader = _Reader()
    value = reader.read_section(cls, data, where)
    if reader.problems:
        raise ConfigError(reader.problems)
    return value


def to_dict(config: Any) -> Any:
    """Return plain dictionaries and lists, from which `parse` makes the same configuration."""
    if isinstance(config, Selection):
        return {"name": config.name, **to_dict(config.options)}
    if dataclasses.is_dataclass(config):
        fields = [f for f in dataclasses.fields(config) if f.init]
        return {f.name: to_dict(getattr(config, f.name)) for f in fields}
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [to_dict(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    return config


def layer(defaults: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` over `defaults`, merged section by section."""
    result = _copy(defaults)
    for key, value in _copy(data).items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = layer(result[key], value)
        else:
            result[key] = value
    return result


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `data` with assignments such as `method.strength=1e4` applied."""
    result = _copy(data)
    problems = []
    for assignment in assignments:
        problem = _assign(result, assignment)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    return result


def _assign(data: dict[str, Any], assignment: str) -> str | None:
    """Apply one assignment in place; return what is wrong with it, if anything."""
    key, equals, text = assignment.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        return f"override {assignment!r} is not of the form name=value, such as method.strength=1e4"
    target = data
    for depth, name in enumerate(names[:-1]):
        if target.get(name) is None:
            target[name] = {}
        elif isinstance(target[name], str) and depth == 0:
            # `method: ewc` and `method.strength=1` go together
            target[name] = {"name": target[name]}
        target = target[name]
        if not isinstance(target, dict):
            section = ".".join(names[: depth + 1])
            return f"override {assignment!r}: {section} is not a section"
    target[names[-1]] = read_value(text)
    return None


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings under dotted keys; a list is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def describe_kind(value: Any) -> str:
    """Return what a value is, in words."""
    return _KIND_NAMES.get(type(value), type(value).__name__)


class _Reader:
    """Converts values by type hints and collects everything that is wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read_section(self, cls: type, data: Any, where: str, base: Any = None) -> Any:
        """Return an instance of a dataclass; values of `base` stand where `data` has none."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            names = ", ".join(f.name for f in dataclasses.fields(cls) if f.init)
            section = where or "configuration"
            self._report(f"{section}: expected a section of {names}, found {_show(data)}")
            return None
        hints = read_hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
        prefix = f"{where}." if where else ""
        for name in data:
            if name not in fields:
                self._report(describe_unknown_key(where, name, fields))
        before = len(self.problems)
        values = {}
        for name, spec in fields.items():
            if name in data:
                default = _default_of(spec) if base is None else getattr(base, name)
                values[name] = self.read(hints[name], data[name], f"{prefix}{name}", default)
            elif base is not None:
                values[name] = getattr(base, name)
            elif _is_required(spec):
                self._report(f"'{prefix}{name}' is missing")
        if len(self.problems) > before:
            return None
        return self._construct(cls, values, where)

    def read(self, hint: Any, value: Any, where: str, default: Any = None) -> Any:
        """Return a value as its type hint says."""
        origin = get_origin(hint)
        if hint is Any:
            return value
        if hint is Selection:
            return self._read_selection(value, where)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            base = default if isinstance(default, hint) else None
            return self.read_section(hint, value, where, base)
        if origin is Literal:
            return self._read_choice(get_args(hint), value, where)
        if origin in (Union, types.UnionType):
            return self._read_union(get_args(hint), value, where, default)
        if origin in (tuple, list):
            return self._read_sequence(origin, get_args(hint), value, where)
        if origin is not None and issubclass(origin, Mapping):
            return self._read_mapping(get_args(hint)[1], value, where)
        return self._read_scalar(hint, value, where)

    def _report(self, problem: str) -> None:
        self.problems.append(problem)

    def _construct(self, cls: type, values: Mapping[str, Any], where: str) -> Any:
        try:
            return cls(**values)
        except ConfigError as error:
            # a dataclass may check itself in __post_init__
            for problem in error.problems:
                named = not where or problem.startswith(f"{where}.")
                self._report(problem if named else f"{where}: {problem}")
            return None

    def _read_selection(self, value: Any, where: str) -> Selection | None:
        if isinstance(value, Selection):
            return value
        if isinstance(value, str):
            return Selection(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            options = {key: item for key, item in value.items() if key != "name"}
            return Selection(value["name"], options)
        self._report(
            f"'{where}' must be a name, or a section with a 'name' and options, "
            f"found {_show(value)}"
        )
        return None

    def _read_choice(self, choices: tuple, value: Any, where: str) -> Any:
        if isinstance(value, bool):
            # YAML takes the words true and false for something else
            value = str(value).lower()
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return value
        words = [str(choice) for choice in choices]
        near = suggest(str(value), words)
        self._report(f"'{where}' is {_show(value)}{near} (choices: {', '.join(words)})")
        return None

    def _read_union(self, choices: tuple, value: Any, where: str, default: Any) -> Any:
        if value is None and type(None) in choices:
            return None
        hints = [hint for hint in choices if hint is not type(None)]
        if len(hints) == 1:
            return self.read(hints[0], value, where, default)
        # the order of the hint decides, but a value that already has one of the types keeps it
        hints.sort(key=lambda hint: type(value) is not hint)
        for hint in hints:
            attempt = _Reader()
            converted = attempt.read(hint, value, where, default)
            if not attempt.problems:
                return converted
            if hint is float and type(value) in (int, float):
                # the value is a number, and what is wrong with it is not its type
                self.problems += attempt.problems
                return None
        listed = " or ".join(_name_type(hint) for hint in hints)
        self._report(f"'{where}' must be {listed}, found {_show(value)}")
        return None

    def _read_sequence(self, origin: type, hints: tuple, value: Any, where: str) -> Any:
        if isinstance(value, str):
            items = _split(value)
            if "" in items:
                self._report(f"'{where}' has an empty item: {value!r}; remove the extra comma")
                return None
            value = items
        if not isinstance(value, (list, tuple)):
            self._report(f"'{where}' must be a list, found {_show(value)}")
            return None
        if origin is list or Ellipsis in hints:
            hints = (hints[0],) * len(value)
        if len(value) != len(hints):
            self._report(f"'{where}' must have {len(hints)} values, found {_show(value)}")
            return None
        pairs = enumerate(zip(hints, value, strict=True))
        return origin(self.read(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)

    def _read_mapping(self, hint: Any, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            self._report(f"'{where}' must be a section of names and values, found {_show(value)}")
            return None
        return {str(key): self.read(hint, item, f"{where}.{key}") for key, item in value.items()}

    def _read_scalar(self, hint: type, value: Any, where: str) -> Any:
        try:
            converted = _convert_scalar(hint, value)
        except TypeError:
            expected = _TYPE_NAMES.get(hint, hint.__name__)
            self._report(f"'{where}' must be {expected}, found {_show(value)}")
            return None
        # written so that NaN is caught too
        if hint is float and not abs(converted) <= LARGEST:
            self._report(
                f"'{where}' must be a finite number of single precision (up to 3.4e38), "
                f"found {converted}"
            )
            return None
        return converted


def _convert_scalar(hint: type, value: Any) -> Any:
    """Return a value as a plain type; raise a TypeError if it is something else."""
    if hint in (int, float) and isinstance(value, str):
        value = _read_number(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is float and (is_whole or isinstance(value, float)):
        return _to_float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is int and is_whole:
        return value
    if hint is str and is_whole:
        # a folder called 2014 is a name; a float would lose its last digit
        return str(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint in (int, float) or not isinstance(value, hint):
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value


def _to_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        # a whole number beyond all floats is refused like infinity
        return math.inf if value > 0 else -math.inf


def _read_number(text: str) -> Any:
    """Return the number that a word spells, as in `betas=0.9,0.98`; any other word as it is."""
    value = read_value(text)
    if type(value) in (int, float):
        return value
    return text


def _split(text: str) -> list[str]:
    """Return the items of a comma-separated text; an empty text is an empty list."""
    if not text.strip():
        return []
    return [item.strip() for item in text.split(",")]


def _default_of(spec: dataclasses.Field) -> Any:
    if spec.default_factory is not dataclasses.MISSING:
        return spec.default_factory()
    return spec.default


def _is_required(spec: dataclasses.Field) -> bool:
    return spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING


def _name_type(hint: Any) -> str:
    """Return a type of an alternative as an error names it, a choice by its words."""
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    return _TYPE_NAMES.get(hint, str(hint))


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value!r} ({describe_kind(value)})"


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    copied = {}
    for key, value in data.items():
        copied[key] = _copy(value) if isinstance(value, Mapping) else value
    return copied
