"""Numbers, strings and arrays of bytes out of a pickle, without running it.

A pickle is a program: it calls what it names with whatever it likes. Here its instructions are looked at one by one,
and only those that plain data need, and numpy's way to save an array, have an effect. An array is made of its bytes by
this file, once everything that the pickle says of it is what numpy would have written; no method of numpy is called
with a value that the pickle chose.
"""

from __future__ import annotations

import enum
import math
import pickletools
from typing import Any, BinaryIO

import numpy as np

_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_OLD_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # Python 2 wrote them; they are bytes
_STRINGS = {
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_LARGEST = 1 << 63  # of whole numbers
_MOST_SIDES = 4  # of an array
_SHOWN = 80  # characters of what a pickle says


class RefusedPickle(ValueError):
    """A pickle that is damaged, or that is more than data."""


class _Name(enum.Enum):
    """What an array's pickle names. None of them is the thing itself."""

    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    ARRAY = "numpy ndarray"
    TYPE = "numpy dtype"


class _Bytes:
    """The type of an array of bytes, `u1`; the pickle describes it before it is used."""

    def __init__(self) -> None:
        self.described = False


class _Array:
    """An array whose content follows."""

    def __init__(self) -> None:
        self.content: np.ndarray | None = None


_EMPTY = [(_Name.ARRAY, (0,), code) for code in (b"b", "b")]
_DESCRIPTIONS = [(3, order, None, None, None, -1, -1, 0) for order in (b"|", "|")]
_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    MemoryError,
    RecursionError,
)


def read_pickle(opened: BinaryIO) -> Any:
    """Return the value of a pickle, its arrays of bytes as numpy arrays, or raise a RefusedPickle.

    A dictionary's keys are strings and a list's items are numbers and strings, so that nothing that is read can be
    larger or deeper than the file says.
    """
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(opened):
            if opcode.name == "STOP":
                return _finish(reader.stack.pop())
            reader.follow(opcode.name, argument)
    except RefusedPickle:
        raise
    except _DAMAGE as error:
        raise RefusedPickle(str(error)[:_SHOWN] or type(error).__name__) from None
    raise RefusedPickle("it has no end")


class _Reader:
    """The values read so far: those since the last mark, those before it, and those that have a number."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.numbered: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Do what one instruction says."""
        if name in _NUMBERS:
            self.stack.append(_check_number(argument))
        elif name in _OLD_STRINGS:
            self.stack.append(argument.encode("latin-1"))
        elif name in _STRINGS:
            self.stack.append(argument)
        elif name in _PUTS:
            self.numbered[argument] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(_check_shared(self.numbered[argument]))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        else:
            action = getattr(self, f"_{name.lower()}", None)
            if action is None:
                raise RefusedPickle(f"it holds the instruction {name}, and only arrays are read")
            action(argument)

    def _since_mark(self) -> list[Any]:
        found = self.stack
        self.stack = self.outer.pop()
        return found

    def _proto(self, argument: Any) -> None:
        """The version, which the instructions themselves tell."""

    def _frame(self, argument: Any) -> None:
        """A hint at how much to read in one go."""

    def _mark(self, argument: Any) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def _memoize(self, argument: Any) -> None:
        self.numbered[len(self.numbered)] = self.stack[-1]

    def _empty_tuple(self, argument: Any) -> None:
        self.stack.append(())

    def _tuple1(self, argument: Any) -> None:
        self._take_tuple(1)

    def _tuple2(self, argument: Any) -> None:
        self._take_tuple(2)

    def _tuple3(self, argument: Any) -> None:
        self._take_tuple(3)

    def _take_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise RefusedPickle("it takes values that are not there")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def _tuple(self, argument: Any) -> None:
        items = tuple(self._since_mark())
        self.stack.append(items)

    def _empty_list(self, argument: Any) -> None:
        self.stack.append([])

    def _list(self, argument: Any) -> None:
        items = self._since_mark()
        self.stack.append([])
        self._extend(items)

    def _append(self, argument: Any) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, argument: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list or not all(
            isinstance(item, (int, bytes, str)) for item in items
        ):
            raise RefusedPickle("it holds a list of more than numbers and strings")
        target.extend(items)

    def _empty_dict(self, argument: Any) -> None:
        self.stack.append({})

    def _dict(self, argument: Any) -> None:
        items = self._since_mark()
        self.stack.append({})
        self._update(items)

    def _setitem(self, argument: Any) -> None:
        value = self.stack.pop()
        self._update([self.stack.pop(), value])

    def _setitems(self, argument: Any) -> None:
        self._update(self._since_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        keys = items[::2]
        if type(target) is not dict or not all(isinstance(key, (bytes, str)) for key in keys):
            raise RefusedPickle("it holds a dictionary whose keys are no strings")
        values = [_finish(value) for value in items[1::2]]
        target.update(zip(keys, values, strict=True))

    def _global(self, argument: Any) -> None:
        self._name(argument)

    def _stack_global(self, argument: Any) -> None:
        name = self.stack.pop()
        module = self.stack.pop()
        if type(module) is not str or type(name) is not str:
            raise RefusedPickle("it asks for something by no name")
        self._name(f"{module} {name}")

    def _name(self, asked: str) -> None:
        plain = asked.replace("numpy._core.", "numpy.core.")
        known = [name for name in _Name if name.value == plain]
        if not known:
            shown = asked.replace(" ", ".")[:_SHOWN]
            raise RefusedPickle(f"it asks for {shown}, and only arrays are read")
        self.stack.append(known[0])

    def _reduce(self, argument: Any) -> None:
        given = self.stack.pop()
        called = self.stack.pop()
        if called is _Name.RECONSTRUCT and given in _EMPTY:
            self.stack.append(_Array())
        elif called is _Name.TYPE and _is_bytes_type(given):
            self.stack.append(_Bytes())
        else:
            raise RefusedPickle(
                "it makes something that is no array of bytes, and only these are read"
            )

    def _build(self, argument: Any) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, _Bytes) and state in _DESCRIPTIONS:
            target.described = True
        elif isinstance(target, _Array) and target.content is None:
            target.content = _make_array(state)
        else:
            raise RefusedPickle("it makes an array in a way that arrays are not saved in")


def _check_number(value: int) -> int:
    if not -_LARGEST <= value < _LARGEST:
        raise RefusedPickle("it holds a number of more than 64 bits")
    return value


def _check_shared(value: Any) -> Any:
    """A value that the pickle uses twice; of containers this would let a short file grow without end."""
    if not (value is None or isinstance(value, (int, bytes, str, _Name, _Bytes))):
        raise RefusedPickle(f"it uses a {type(value).__name__.strip('_').lower()} twice")
    return value


def _is_bytes_type(given: Any) -> bool:
    if type(given) is not tuple or len(given) != 3 or given[1:] != (0, 1):
        return False
    if given[0] not in (b"u1", "u1"):
        raise RefusedPickle(
            f"it holds an array of {given[0]!r:.20}, and only arrays of bytes (u1) are read"
        )
    return True


def _make_array(state: Any) -> np.ndarray:
    """The array of a state (1, shape, type, whether columns come first, bytes)."""
    if type(state) is not tuple or len(state) != 5 or state[0] != 1:
        raise RefusedPickle("it makes an array in a way that arrays are not saved in")
    _, shape, kind, by_columns, data = state
    if (
        not isinstance(kind, _Bytes)
        or not kind.described
        or not isinstance(by_columns, (bool, int))
    ):
        raise RefusedPickle("it makes an array in a way that arrays are not saved in")
    if (
        type(shape) is not tuple
        or len(shape) > _MOST_SIDES
        or not all(type(side) is int for side in shape)
    ):
        raise RefusedPickle("it holds an array of no shape")
    if type(data) is not bytes or min(shape, default=0) < 0 or math.prod(shape) != len(data):
        raise RefusedPickle(f"it holds an array of shape {shape} with other bytes than that")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _finish(value: Any) -> Any:
    """A value that is whole: an array instead of what stood for it."""
    if isinstance(value, _Array):
        if value.content is None:
            raise RefusedPickle("it holds an array without its bytes")
        return value.content
    if isinstance(value, (_Bytes, _Name)):
        raise RefusedPickle("it holds what an array is made of, and no array")
    return value
