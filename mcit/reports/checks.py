"""What the files of a run must hold to be reported on: kinds and lengths; all that is wrong, in one error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mcit.errors import DataError

CHANGED = "was not written by `mcit run`, or was changed since"
LONGEST = 40  # characters of a value in a message
Check = Callable[[Any], str | None]  # what was wanted, if the value is not that


def check_scores(path: Path, scores: Mapping[str, Any]) -> None:
    """Raise a DataError if scores.json holds what no run writes; its matrix is checked where it is read."""
    rows = scores["matrix"] if isinstance(scores.get("matrix"), list) else []
    wanted = {
        "method": _text,
        "track": _text,
        "estimator": _text,
        "seed": _either(_whole, _nothing),
        "tasks": _list_of(_text),
        "matrix": _list_of(_list_of(_number)),
        "chance": _list_of(_number),
        "seen": _list_of(_number, length=len(rows)),
        "before": _list_of(_either(_number, _nothing)),
        "metrics": _section(
            {
                "A_old": _list_of(_either(_number, _nothing)),
                "knowledge_transfer": _list_of(_either(_number, _nothing), length=len(rows)),
            }
        ),
        "diagnoses": _list_of(_text),
        "stiffness": _list_of(_section({"mean": _number, "capped": _number}, needed=True)),
        "cost": _mapping_of(_number),
        "embedded": _either(_truth, _nothing),
    }
    _refuse(path, scores, wanted)


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raise a DataError if config.yaml holds what no run writes."""
    options = _either(_mapping_of(_either(_mapping_of(_anything), _nothing)), _nothing)
    wanted = {
        "order": _list_of(_text),
        "method": _section({"name": _text}),
        "methods": options,
        "tasks": options,
    }
    _refuse(path, config, wanted)


def check_passport(path: Path, passport: Mapping[str, Any]) -> None:
    """Raise a DataError if passport.json holds what no run writes."""
    wanted = {
        "command": _list_of(_text),
        "packages": _mapping_of(_anything),
        "recipes": _mapping_of(_mapping_of(_anything)),
        "data": _mapping_of(_either(_text, _nothing)),
    }
    _refuse(path, passport, wanted)


def check_plain(path: Path, data: Mapping[str, Any]) -> None:
    """Raise a DataError if a matrix of another toolkit has names of another kind."""
    wanted = {"method": _text, "seed": _either(_whole, _nothing), "tasks": _list_of(_text)}
    _refuse(path, data, wanted, "is no matrix of scores")


def _refuse(
    path: Path, data: Mapping[str, Any], wanted: Mapping[str, Check], fault: str = CHANGED
) -> None:
    problem = _section(wanted)(data)
    if problem is not None:
        raise DataError(f"{path} {fault}: {problem}")


def _section(wanted: Mapping[str, Check], needed: bool = False) -> Check:
    """Return a check of a mapping's known keys; those that are not there are not asked for, unless `needed`."""

    def check(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return _miss("a section", value)
        missing = [name for name in wanted if needed and name not in value]
        if missing:
            return f"{missing[0]!r} is missing"
        found = {name: fits(value[name]) for name, fits in wanted.items() if name in value}
        return next(
            (f"{name!r} {problem}" for name, problem in found.items() if problem is not None), None
        )

    return check


def _list_of(fits: Check, length: int | None = None) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list):
            return _miss("a list", value)
        if length is not None and len(value) != length:
            return f"must have {length} items, found {len(value)}"
        found = [fits(item) for item in value]
        return next(
            (f"item {n} {problem}" for n, problem in enumerate(found) if problem is not None), None
        )

    return check


def _mapping_of(fits: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return _miss("a section", value)
        return _section(dict.fromkeys(value, fits))(value)

    return check


def _either(first: Check, second: Check) -> Check:
    def check(value: Any) -> str | None:
        problem = first(value)
        return None if problem is None or second(value) is None else problem

    return check


def _text(value: Any) -> str | None:
    # half of a surrogate pair, which JSON can spell, is no text that could be written or printed
    known = isinstance(value, str) and not any(
        "\ud800" <= character <= "\udfff" for character in value
    )
    return None if known else _miss("text", value)


def _number(value: Any) -> str | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return None if known else _miss("a number", value)


def _whole(value: Any) -> str | None:
    known = isinstance(value, int) and not isinstance(value, bool)
    return None if known else _miss("a whole number", value)


def _truth(value: Any) -> str | None:
    return None if isinstance(value, bool) else _miss("true or false", value)


def _nothing(value: Any) -> str | None:
    return None if value is None else _miss("nothing", value)


def _anything(value: Any) -> str | None:
    return None


def _miss(wanted: str, value: Any) -> str:
    text = repr(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    return f"must be {wanted}, found {text}"
