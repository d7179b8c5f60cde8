"""Records of annotation files, one at a time: JSON lines, a JSON array, or an array under a key.

Arrays are decoded value by value with Python's own decoder, from a window on the file. A streaming
library would not do: ijson refuses a whole file for one NaN, makes a question mark of half a
character, and takes memory with the square of how deeply a value is nested.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from mcit.data.files import open_regular, read_bytes
from mcit.data.problems import BadRecord, refuse
from mcit.errors import DataError

# characters of a record; the longest of the official files has about 20,000
_LONGEST = 1 << 22
# bytes of a JSON file that is read in one go
_MOST_BYTES = 1 << 26
# a table holds whole numbers of 64 bits
_LARGEST = 1 << 63
_REFETCH = "the file may be cut short, fetch it again"
_SPACE = re.compile(r"[ \t\r\n]+")
_KIND_NAMES = {
    str: "text",
    int: "a whole number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


@dataclass(frozen=True)
class Record:
    """An object of an annotation file, and where it stood."""

    path: Path
    # from 1; the line in JSON lines
    number: int
    fields: Mapping[str, Any]

    def get(self, *names: str, kind: type | tuple[type, ...]) -> Any:
        """Return the field under the first of `names` that exists, or raise a BadRecord."""
        value = self.fields.get(names[0])
        # the usual case needs no more questions than this
        if type(value) is not kind:
            value = self._get_other(names, kind if isinstance(kind, tuple) else (kind,))
        if type(value) is str and not value.isascii() and not is_text(value):
            text = f"a text holds half a character (a lone surrogate), found {value!a:.40}"
            raise self.error(text, "half a character")
        if type(value) is int and not -_LARGEST <= value < _LARGEST:
            text = "a number of more than 64 bits"
            raise self.error(f"{names[0]!r} is {text}", text)
        return value

    def items(self, name: str) -> list[Record]:
        """Return the objects in the list under `name`, as records in the same place."""
        items = self.get(name, kind=list)
        for item in items:
            if not isinstance(item, dict):
                raise self.error(f"{name!r} must hold objects, found {shorten(item)}")
        return [Record(self.path, self.number, item) for item in items]

    def error(self, text: str, reason: str = "") -> BadRecord:
        """Return a BadRecord that names this record; the reason leaves out what was found."""
        return BadRecord(
            f"{self.path}, record {self.number}: {text}", reason or text.partition(", found ")[0]
        )

    def _get_other(self, names: tuple[str, ...], kinds: tuple[type, ...]) -> Any:
        present = [name for name in names if name in self.fields]
        if not present:
            wanted = " or ".join(map(repr, names))
            fields = shorten_text(", ".join(list(self.fields)[:8]) or "none")
            raise self.error(f"has no field {wanted} (fields: {fields})", f"has no field {wanted}")
        value = self.fields[present[0]]
        is_of_kind = isinstance(value, kinds)
        if isinstance(value, bool) and bool not in kinds:
            is_of_kind = False
        if not is_of_kind:
            wanted = " or ".join(_KIND_NAMES[kind] for kind in kinds)
            raise self.error(f"{present[0]!r} must be {wanted}, found {shorten(value)}")
        return value


def is_text(value: str) -> bool:
    """Whether a text can be written: JSON may hold half a character, which no table takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_records(
    path: Path, key: str | None = None, on_bad: Callable[[BadRecord], None] = refuse
) -> Iterator[Record]:
    """Yield the objects of a file in order; `key` names their array if the file is one object.

    Without a key the file may be JSON lines or one JSON array. A small part of it is in memory at a
    time. A broken line, or an item that is not an object, goes to `on_bad`, and reading continues
    after it. A file that ends within a record is always an error.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            for number, item in _read_items(path, file, key):
                if isinstance(item, dict):
                    yield Record(path, number, item)
                elif isinstance(item, BadRecord):
                    on_bad(item)
                else:
                    text = f"{path}, record {number}: expected an object, found {shorten(item)}"
                    on_bad(BadRecord(text, "not an object"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); fetch it again"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """Return the value in a small JSON file; raise a DataError if it is not valid."""
    try:
        content = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({_explain(error)}); {_REFETCH}") from None


def shorten(value: Any) -> str:
    """Return a value as it reads in an error message."""
    return shorten_text(reprlib.repr(value))


def shorten_text(text: str) -> str:
    """Return a text as it reads in an error message."""
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


def _explain(error: Exception) -> str:
    """Return why JSON could not be decoded: bad syntax, deep nesting, or a long number."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return str(error).partition(";")[0]


def _read_items(path: Path, file: TextIO, key: str | None) -> Iterator[tuple[int, Any]]:
    text = _JsonText(path, file)
    if key is not None:
        text.seek(key)
        return text.read_array()
    if text.peek() == "[":
        return text.read_array()
    file.seek(0)
    return _read_lines(path, file)


class _JsonText:
    """A JSON file, decoded value by value from a window that is longer than any record."""

    def __init__(self, path: Path, file: TextIO):
        self.path = path
        self.file = file
        self.window = ""
        self.position = 0
        # the record that is being read, 0 before the first
        self.number = 0
        self.decoder = json.JSONDecoder()

    def peek(self) -> str:
        """Return the next character that is not white space, or nothing at the end."""
        while True:
            if len(self.window) - self.position < _LONGEST:
                self.window = self.window[self.position :] + self.file.read(_LONGEST)
                self.position = 0
            space = _SPACE.match(self.window, self.position)
            if space is not None:
                self.position = space.end()
            if self.position < len(self.window) or not self.window:
                return self.window[self.position : self.position + 1]

    def take(self, marks: str) -> str:
        """Return the next character, which must be one of `marks`, and move behind it."""
        mark = self.peek()
        if not mark:
            raise self._error("it ends here")
        if mark not in marks:
            raise self._error(f"expected {' or '.join(marks)}, found {mark!r}")
        self.position += 1
        return mark

    def read_value(self) -> Any:
        """Return the next value and move behind it."""
        self.peek()
        try:
            value, self.position = self.decoder.raw_decode(self.window, self.position)
        except (ValueError, RecursionError) as error:
            raise self._error(_explain(error)) from None
        return value

    def seek(self, key: str) -> None:
        """Move before the value of `key` in the object that the file is."""
        self.take("{")
        keys = []
        while self.peek() != "}":
            keys.append(self.read_value())
            self.take(":")
            if keys[-1] == key:
                return
            self.read_value()
            if self.peek() != "}":
                self.take(",")
        listed = shorten_text(", ".join(map(str, keys)) or "none")
        raise DataError(f"{self.path} has no {key!r} (keys: {listed}); is it the right file?")

    def read_array(self) -> Iterator[tuple[int, Any]]:
        """Yield the items of an array with their numbers from 1."""
        self.take("[")
        if self.peek() == "]":
            return
        mark = ","
        while mark == ",":
            self.number += 1
            yield self.number, self.read_value()
            mark = self.take(",]")

    def _error(self, reason: str) -> DataError:
        where = f", record {self.number}" if self.number else ""
        return DataError(f"{self.path}{where}: not valid JSON ({reason}); {_REFETCH}")


def _read_lines(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    """Yield the value of each line with the line's number, or the BadRecord that it is."""
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        where = f"{path}, record {number}"
        if len(line) == _LONGEST and not line.endswith("\n"):
            raise DataError(
                f"{where}: a line of more than {_LONGEST:,} characters; is it the right file?"
            )
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            text = f"{where}: not valid JSON ({_explain(error)})"
            if not line.endswith("\n"):
                # what followed is lost too, and nobody knows how much it was
                raise DataError(
                    f"{text}, and the file ends in it; it is cut short, fetch it again"
                ) from None
            yield number, BadRecord(f"{text}; {_REFETCH}", "not valid JSON")
