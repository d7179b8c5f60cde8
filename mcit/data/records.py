"""Records of annotation files, one at a time: JSON lines, a JSON array, or an array under a key of one object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mcit.task import DataError

_CHUNK = 1 << 20  # characters read at a time
_LONGEST = 1 << 24  # a record longer than this is a malformed one, not one that is still arriving
_SHOWN = 20
_NAMES = {str: "text", int: "a whole number", list: "a list", dict: "an object", bool: "true or false"}


class DataProblems(DataError):
    """Several things that are wrong with the data, one line each."""

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        shown = self.problems[:_SHOWN]
        if len(self.problems) > _SHOWN:
            shown.append(f"... and {len(self.problems) - _SHOWN} more")
        lead = [] if len(self.problems) == 1 else [f"the data have {len(self.problems)} problems:"]
        super().__init__("\n  - ".join([*lead, *shown]))


def problems_of(error: DataError) -> list[str]:
    """The single problems that an error stands for."""
    return error.problems if isinstance(error, DataProblems) else [str(error)]


@dataclass(frozen=True)
class Record:
    """An object out of an annotation file, which knows where it stood."""

    path: Path
    number: int  # from 1; the line in JSON lines
    fields: Mapping[str, Any]

    def get(self, *names: str, kind: type | tuple[type, ...]) -> Any:
        """The field under the first of `names` that is there, if it is of the kind wanted; else a DataError."""
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            have = ", ".join(list(self.fields)[:8]) or "none"
            raise self.error(f"has no field {' or '.join(map(repr, names))} (fields: {have})")
        value, kinds = self.fields[name], kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(f"{name!r} must be {' or '.join(_NAMES[k] for k in kinds)}, found {shorten(value)}")
        return value

    def error(self, text: str) -> DataError:
        """A DataError that names this record."""
        return DataError(f"{self.path}, record {self.number}: {text}")


def read_records(path: Path, key: str | None = None) -> Iterator[Record]:
    """The objects of a file in order; `key` names the array that holds them where the file is one object.

    Without a key the file may be JSON lines or one JSON array. Only a chunk of the file is in memory at a time.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = _Window(path, file)
            if key is not None:
                _seek(text, key)
                items = _array(text)
            elif text.peek() == "[":
                items = _array(text)
            else:
                file.seek(0)
                items = _lines(path, file)
            for number, item in items:
                if not isinstance(item, dict):
                    raise DataError(f"{path}, record {number}: expected an object, found {shorten(item)}")
                yield Record(path, number, item)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """The value in a small JSON file, or a DataError."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); the file may be cut short, fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def shorten(value: Any) -> str:
    """A value as it reads in an error message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Window:
    """The part of a file's text that is being decoded; it grows until a value is whole."""

    def __init__(self, path: Path, file: TextIO):
        self.path, self.file = path, file
        self.buffer, self.at, self.ended = "", 0, False
        self.number = 0  # of the record being read; 0 before the first
        self.decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is no white space; '' at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at].isspace():
                self.at += 1
            if self.at < len(self.buffer) or self.ended:
                return self.buffer[self.at : self.at + 1]
            self._fill()

    def take(self, *marks: str) -> str:
        found = self.peek()
        if found not in marks:
            raise self._error(f"expected {' or '.join(map(repr, marks))}, found {found!r}" if found else "it ends here")
        self.at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if self.ended or len(self.buffer) - self.at > _LONGEST:
                    raise self._error(error.msg) from None
            else:
                if end < len(self.buffer) or self.ended:  # at the very edge a number may still go on
                    self.at = end
                    return value
            self._fill()

    def _fill(self) -> None:
        chunk = self.file.read(_CHUNK)
        self.ended = not chunk
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0

    def _error(self, reason: str) -> DataError:
        where = f", record {self.number}" if self.number else ""
        return DataError(f"{self.path}{where}: not valid JSON ({reason}); the file may be cut short, fetch it again")


def _seek(text: _Window, key: str) -> None:
    """Stand before the value of `key` in the object that the file is."""
    text.take("{")
    known = []
    while text.peek() != "}":
        known.append(text.value())
        text.take(":")
        if known[-1] == key:
            return
        text.value()
        if text.peek() != "}":
            text.take(",")
    raise DataError(f"{text.path} has no {key!r} (keys: {', '.join(map(str, known)) or 'none'}); is it the right file?")


def _array(text: _Window) -> Iterator[tuple[int, Any]]:
    text.take("[")
    if text.peek() == "]":
        return
    mark = ","
    while mark == ",":
        text.number += 1
        yield text.number, text.value()
        mark = text.take(",", "]")


def _lines(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            remedy = "the file may be cut short, fetch it again"
            raise DataError(f"{path}, record {number}: not valid JSON ({error.msg}); {remedy}") from None
