"""Records of annotation files, one at a time: JSON lines, a JSON array, or an array under a key of one object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from mcit.data.files import open_regular, read_bytes
from mcit.printable import printable
from mcit.task import DataError

_CHUNK = 1 << 20  # characters read at a time
_LONGEST = 1 << 24  # a record longer than this is a malformed one, not one that is still arriving
_SHOWN = 20
_LARGEST = 1 << 63  # of the whole numbers a table can hold
_MOST_BYTES = 1 << 26  # of a JSON file that is read in one go
_ABSENT = object()
_REFETCH = "the file may be cut short, fetch it again"
_NAMES = {
    str: "text",
    int: "a whole number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


class DataProblems(DataError):
    """Several things that are wrong with the data, one line each."""

    def __init__(self, problems: Iterable[str] | str):
        # a loader's worker hands an error over as its text alone
        listed = [problems] if isinstance(problems, str) else problems
        self.problems = [printable(problem) for problem in listed]
        shown = self.problems[:_SHOWN]
        if len(self.problems) > _SHOWN:
            shown.append(f"... and {len(self.problems) - _SHOWN} more")
        lead = [] if len(self.problems) == 1 else [f"the data have {len(self.problems)} problems:"]
        super().__init__("\n  - ".join([*lead, *shown]))


class BadRecord(DataError):
    """A record that cannot be used; `reason` is worded alike for all records with the same fault."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = printable(reason or message)


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
        """The field under the first of `names` that is there, if it is of the kind wanted; else a BadRecord."""
        value = self.fields.get(names[0], _ABSENT)
        if type(value) is not kind:  # the rule has no need of a closer look
            value = self._look_closer(names, kind if isinstance(kind, tuple) else (kind,))
        if type(value) is str and not value.isascii() and not is_text(value):
            raise self.error(
                f"a text holds half a character (a lone surrogate), found {value!a:.40}",
                "half a character",
            )
        if type(value) is int and not -_LARGEST <= value < _LARGEST:
            raise self.error(
                f"{names[0]!r} is a number of more than 64 bits", "a number of more than 64 bits"
            )
        return value

    def items(self, name: str) -> list[Record]:
        """The objects in the list under `name`, as records in the same place."""
        found = self.get(name, kind=list)
        for item in found:
            if not isinstance(item, dict):
                raise self.error(f"{name!r} must hold objects, found {shorten(item)}")
        return [Record(self.path, self.number, item) for item in found]

    def error(self, text: str, reason: str = "") -> BadRecord:
        """A BadRecord that names this record; where no reason is given, it is the text up to what was found."""
        return BadRecord(
            f"{self.path}, record {self.number}: {text}", reason or text.partition(", found ")[0]
        )

    def _look_closer(self, names: tuple[str, ...], kinds: tuple[type, ...]) -> Any:
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            wanted = f"has no field {' or '.join(map(repr, names))}"
            have = ", ".join(list(self.fields)[:8]) or "none"
            raise self.error(f"{wanted} (fields: {shorten_text(have)})", wanted)
        value = self.fields[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(
                f"{name!r} must be {' or '.join(_NAMES[k] for k in kinds)}, found {shorten(value)}"
            )
        return value


def is_text(value: str) -> bool:
    """Whether a text can be written at all: JSON may hold half a character, and no table and no terminal takes it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_records(
    path: Path, key: str | None = None, on_bad: Callable[[BadRecord], None] | None = None
) -> Iterator[Record]:
    """The objects of a file in order; `key` names the array that holds them where the file is one object.

    Without a key the file may be JSON lines or one JSON array. Only a chunk of the file is in memory at a time.
    A broken line, or an item that is no object, goes to `on_bad`, and reading goes on behind it; without it, it raises.
    A file that ends in the middle of a record is always an error.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            for number, item in _read_items(path, file, key):
                if isinstance(item, dict):
                    yield Record(path, number, item)
                    continue
                bad = item if isinstance(item, BadRecord) else _no_object(path, number, item)
                if on_bad is None:
                    raise bad
                on_bad(bad)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); fetch it again"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """The value in a small JSON file, or a DataError."""
    try:
        return json.loads(read_bytes(path, _MOST_BYTES).decode("utf-8-sig"))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({_explain(error)}); {_REFETCH}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def shorten(value: Any) -> str:
    """A value as it reads in an error message."""
    return shorten_text(
        ascii(value) if isinstance(value, str) and not is_text(value) else repr(value)
    )


def shorten_text(text: str) -> str:
    """A text as it reads in an error message."""
    text = text if is_text(text) else ascii(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_items(path: Path, file: TextIO, key: str | None) -> Iterator[tuple[int, Any]]:
    text = _Window(path, file)
    if key is not None:
        _seek(text, key)
        return _array(text)
    if text.peek() == "[":
        return _array(text)
    file.seek(0)
    return _lines(path, file)


def _no_object(path: Path, number: int, item: Any) -> BadRecord:
    return BadRecord(
        f"{path}, record {number}: expected an object, found {shorten(item)}", "no object"
    )


def _explain(error: Exception) -> str:
    """Why JSON could not be decoded; besides bad syntax it may be nested too deeply, or a number of many digits."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return getattr(error, "msg", None) or str(error).partition(";")[0]


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
            raise self._error(
                f"expected {' or '.join(map(repr, marks))}, found {found!r}"
                if found
                else "it ends here"
            )
        self.at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
            except (ValueError, RecursionError) as error:
                arriving = (
                    isinstance(error, json.JSONDecodeError)
                    and len(self.buffer) - self.at <= _LONGEST
                )
                if self.ended or not arriving:
                    raise self._error(_explain(error)) from None
            else:
                if (
                    end < len(self.buffer) or self.ended
                ):  # at the very edge a number may still go on
                    self.at = end
                    return value
            self._fill()

    def _fill(self) -> None:
        chunk = self.file.read(_CHUNK)
        self.ended = not chunk
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0

    def _error(self, reason: str) -> DataError:
        where = f", record {self.number}" if self.number else ""
        return DataError(f"{self.path}{where}: not valid JSON ({reason}); {_REFETCH}")


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
    keys = shorten_text(", ".join(map(str, known)) or "none")
    raise DataError(f"{text.path} has no {key!r} (keys: {keys}); is it the right file?")


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
    """Each line's value, or the BadRecord that it is."""
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST and not line.endswith("\n"):
            raise DataError(
                f"{path}, record {number}: a line of more than {_LONGEST:,} characters; is it the right file?"
            )
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            text = f"{path}, record {number}: not valid JSON ({_explain(error)})"
            if not line.endswith("\n"):  # whatever followed is lost too, and nobody knows how much
                raise DataError(
                    f"{text}, and the file ends in it; it is cut short, fetch it again"
                ) from None
            yield number, BadRecord(f"{text}; {_REFETCH}", "not valid JSON")
