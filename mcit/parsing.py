"""Plain dictionaries as typed dataclasses: everything that is wrong, in one message."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mcit.errors import McitError
from mcit.yaml_text import read_value

T = TypeVar("T")
_MISSING = object()
LARGEST = 3.4028234663852886e38  # in single precision, in which networks are trained
_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}


class ConfigError(McitError, ValueError):
    """Everything that is wrong with options, one line each; they may come from a file, a command or a call."""

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = "\n  - ".join([f"{len(self.problems)} problems:", *self.problems])
        super().__init__(text)


@dataclass(frozen=True)
class Selection:
    """A name and its options; the registry knows the class whose fields the options are."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def parse(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """`data` as an instance of the dataclass `cls`, or a ConfigError that lists every problem found."""
    problems: list[str] = []
    value = _parse_dataclass(cls, data, where, problems)
    if problems:
        raise ConfigError(problems)
    return value


def to_dict(config: Any) -> Any:
    """Plain dictionaries and lists; `parse(type(config), to_dict(config))` gives `config` back."""
    if isinstance(config, Selection):
        return {"name": config.name, **to_dict(config.options)}
    if dataclasses.is_dataclass(config):
        return {
            f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init
        }
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [to_dict(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` where a known word is near, else nothing."""
    near = find_nearest(word, known)
    return "" if near is None else f"; did you mean {near!r}?"


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, or None where none is."""
    ordered = sorted(known)
    word = word.lower()
    close = difflib.get_close_matches(word, ordered, n=1, cutoff=0.6)
    if not close and word:
        # a word that merely starts like `word`, or the other way round, counts too: nlvr -> nlvr2
        close = [name for name in ordered if name.startswith(word) or word.startswith(name)]
    return close[0] if close else None


def describe_unknown_key(where: str, name: Any, known: Iterable[str]) -> str:
    """Return what is wrong with a key that a section does not have."""
    known = list(known)
    key = f"{where}.{name}" if where else str(name)
    if not known:
        return f"unknown key '{key}': '{where}' has no options here, so leave it out"
    return f"unknown key '{key}'{suggest(str(name), known)} (keys: {', '.join(known)})"


def _parse_dataclass(
    cls: type, data: Any, where: str, problems: list[str], base: Any = None
) -> Any:
    """`base` is a default whose values stand where `data` says nothing."""
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        problems.append(
            f"{where or 'configuration'}: expected a section of {_names(cls)}, found {_show(data)}"
        )
        return None
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    prefix = f"{where}." if where else ""
    problems += [describe_unknown_key(where, name, fields) for name in data if name not in fields]
    before = len(problems)
    values = {}
    for name, spec in fields.items():
        if name in data:
            default = getattr(base, name) if base is not None else _default(spec)
            values[name] = _convert(hints[name], data[name], f"{prefix}{name}", problems, default)
        elif base is not None:
            values[name] = getattr(base, name)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            problems.append(f"'{prefix}{name}' is missing")
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:  # a dataclass may check itself in __post_init__
        problems.extend(f"{where}: {problem}" if where else problem for problem in error.problems)
        return None


def _convert(hint: Any, value: Any, where: str, problems: list[str], default: Any = None) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint is Selection:
        return _convert_selection(value, where, problems)
    if dataclasses.is_dataclass(hint):
        return _parse_dataclass(
            hint, value, where, problems, default if isinstance(default, hint) else None
        )
    if origin is Literal:
        return _convert_choice(arguments, value, where, problems)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where, problems, default)
    if origin in (tuple, list):
        return _convert_sequence(origin, arguments, value, where, problems)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            problems.append(
                f"'{where}' must be a section of names and values, found {_show(value)}"
            )
            return None
        return {
            str(key): _convert(arguments[1], item, f"{where}.{key}", problems)
            for key, item in value.items()
        }
    converted = _convert_scalar(hint, value)
    if converted is _MISSING:
        problems.append(
            f"'{where}' must be {_NAMES.get(hint, hint.__name__)}, found {_show(value)}"
        )
        return None
    # written so that NaN is caught too
    if hint is float and not abs(converted) <= LARGEST:
        problems.append(
            f"'{where}' must be a finite number of single precision (up to 3.4e38), found {converted}"
        )
        return None
    return converted


def _convert_selection(value: Any, where: str, problems: list[str]) -> Selection | None:
    if isinstance(value, (str, Selection)):
        return Selection(value) if isinstance(value, str) else value
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return Selection(value["name"], {key: item for key, item in value.items() if key != "name"})
    problems.append(
        f"'{where}' must be a name, or a section with a 'name' and options, found {_show(value)}"
    )
    return None


def _convert_choice(choices: tuple, value: Any, where: str, problems: list[str]) -> Any:
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        listed = ", ".join(map(str, choices))
        problems.append(
            f"'{where}' is {_show(value)}{suggest(str(value), map(str, choices))} (choices: {listed})"
        )
        return None
    return value


def _convert_union(
    choices: tuple, value: Any, where: str, problems: list[str], default: Any
) -> Any:
    if value is None and type(None) in choices:
        return None
    kinds = [kind for kind in choices if kind is not type(None)]
    if len(kinds) == 1:
        return _convert(kinds[0], value, where, problems, default)
    # the order of the hint decides, but a value that already has one of the types keeps it
    for kind in sorted(
        kinds, key=lambda kind: not (isinstance(kind, type) and type(value) is kind)
    ):
        attempt: list[str] = []
        converted = _convert(kind, value, where, attempt, default)
        if not attempt:
            return converted
    listed = " or ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    problems.append(f"'{where}' must be {listed}, found {_show(value)}")
    return None


def _convert_sequence(
    origin: type, arguments: tuple, value: Any, where: str, problems: list[str]
) -> Any:
    if isinstance(value, str):
        text = value
        # an empty text is an empty list, but an empty item of a longer one is a slip
        value = [item.strip() for item in text.split(",")] if text.strip() else []
        if "" in value:
            problems.append(
                f"'{where}' has an empty item: {text!r}; leave out the comma that is too many"
            )
            return None
    if not isinstance(value, (list, tuple)):
        problems.append(f"'{where}' must be a list, found {_show(value)}")
        return None
    if origin is tuple and arguments and Ellipsis not in arguments:
        if len(value) != len(arguments):
            problems.append(f"'{where}' must have {len(arguments)} values, found {_show(value)}")
            return None
        hints = arguments
    else:
        hints = (arguments[0] if arguments else Any,) * len(value)
    items = zip(hints, value, strict=True)
    return origin(
        _convert(hint, item, f"{where}[{i}]", problems) for i, (hint, item) in enumerate(items)
    )


def _convert_scalar(hint: type, value: Any) -> Any:
    if hint is bool:
        return value if isinstance(value, bool) else _MISSING
    if hint in (int, float) and isinstance(value, str):
        value = _number(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _to_float(value)
    if hint is int and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a folder called 2014 is a name; 1.10 would lose its last digit
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    return _MISSING


def _to_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number(text: str) -> Any:
    """The number that a word spells, as in `betas=0.9,0.98`; any other word stays what it is."""
    value = read_value(text)
    return value if type(value) in (int, float) else text


def _default(spec: dataclasses.Field) -> Any:
    return spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()


def _names(cls: type) -> str:
    return ", ".join(f.name for f in dataclasses.fields(cls) if f.init)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return {list: "list", str: "text", bool: "true/false value", dict: "section"}.get(
        type(value), type(value).__name__
    )


def _show(value: Any) -> str:
    return "nothing" if value is None else f"{value!r} ({kind_of(value)})"
