"""Fields of configurations: each says what it is for, and what changing it changes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_TYPE_NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    type(None): "none",
}


class Kind(str, Enum):
    """What changes with the value of an option."""

    # weights and scores: another experiment
    RESULT = "result"
    # the last digits of weights and scores: the same experiment, and the change is recorded
    ROUNDING = "rounding"
    # time and memory only
    SPEED = "speed"
    # where files are, and who is informed
    PLACE = "place"


def option(
    default: Any = MISSING,
    *,
    help: str,
    kind: Kind = Kind.RESULT,
    factory: Callable[[], Any] | Any = MISSING,
    newer: bool = False,
) -> Any:
    """Return a dataclass field that knows its help text and its kind.

    newer: there are recorded runs from before the option. They had its default, which is therefore
    left out of what tells experiments apart.
    """
    metadata = {"help": help, "kind": kind, "newer": newer}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionInfo:
    """An option as `mcit list` prints it."""

    name: str
    type: str
    default: Any
    required: bool
    help: str
    kind: Kind


def read_hints(cls: type) -> dict[str, Any]:
    """Return the type hints of a dataclass's fields by their names.

    Class variables are left out: Python 3.10 refuses `ClassVar` without a type.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        written = vars(base).get("__annotations__", {})
        own = {name: hint for name, hint in written.items() if name in names}
        module = sys.modules.get(base.__module__)
        place = {} if module is None else vars(module)
        # names of the module win over those of the class, as in get_type_hints(cls)
        hints |= get_type_hints(SimpleNamespace(__annotations__=own), dict(vars(base)), place)
    return hints


def list_options(cls: type, prefix: str = "") -> Iterator[OptionInfo]:
    """Yield the options of a dataclass; those of its sections follow under dotted names."""
    hints = read_hints(cls)
    for field in dataclasses.fields(cls):
        if not field.init or field.metadata.get("internal", False):
            continue
        name = f"{prefix}{field.name}"
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _list_section(hint, field.default, f"{name}.")
            continue
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        metadata = metadata_of(cls, field.name)
        yield OptionInfo(
            name=name,
            type=describe_type(hint),
            default=None if default is MISSING else default,
            required=default is MISSING,
            help=metadata.get("help", ""),
            kind=metadata.get("kind", Kind.RESULT),
        )


def metadata_of(cls: type, name: str) -> Mapping[str, Any]:
    """Return what the declaration of a field says; a subclass that changes a default keeps it."""
    for parent in cls.__mro__:
        field = getattr(parent, "__dataclass_fields__", {}).get(name)
        if field is not None and field.metadata:
            return field.metadata
    return {}


def _list_section(cls: type, instance: Any, prefix: str) -> Iterator[OptionInfo]:
    """Yield the options of a section; `instance` holds the defaults where there is one."""
    for info in list_options(cls, prefix):
        if not isinstance(instance, cls):
            yield info
            continue
        value: Any = instance
        for part in info.name.removeprefix(prefix).split("."):
            value = getattr(value, part)
        yield dataclasses.replace(info, default=value, required=False)


def describe_type(hint: Any) -> str:
    """Return a type as a user reads it: `number or none`, `a | b | c`."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(describe_type(part) for part in arguments)
    if get_origin(hint) in (tuple, list):
        items = [part for part in arguments if part is not Ellipsis]
        return f"list of {describe_type(items[0])}" if items else "list"
    return _TYPE_NAMES.get(hint, getattr(hint, "__name__", str(hint)))
