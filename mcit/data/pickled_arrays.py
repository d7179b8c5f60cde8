"""Numbers, strings and arrays of bytes out of a pickle, without running it.

A pickle is a program: it calls what it names with whatever it likes. Here only the instructions
that plain data need have an effect, and the only names are those of numpy's way to save an array,
which stand for two classes of this file. An array is made of its bytes once everything that the
pickle says of it is what numpy would have written; no method of numpy is called with a value that
the pickle chose.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np

_INSTRUCTIONS = """
PROTO FRAME STOP MARK PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT GLOBAL STACK_GLOBAL REDUCE
"""
# of whole numbers
_LARGEST = 1 << 63
_MOST_DIMENSIONS = 4
# characters of what a pickle says
_SHOWN = 80
_DAMAGE = (
    pickle.UnpicklingError,
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    EOFError,
    MemoryError,
    RecursionError,
)
_ARRAY_CLASS = object()


class RefusedPickle(ValueError):
    """A pickle that is damaged, or that is more than data."""


def read_pickle(opened: BinaryIO) -> Any:
    """Return the value of a pickle, its arrays of bytes as numpy arrays, or raise a RefusedPickle.

    It is a number, a string, an array, a list of numbers and strings, or a dictionary of all these.
    """
    try:
        value = _Unpickler(opened, encoding="bytes").load()
    except RefusedPickle:
        raise
    except KeyError:
        raise RefusedPickle("it holds more instructions than plain data needs") from None
    except _DAMAGE as error:
        raise RefusedPickle(str(error)[:_SHOWN] or type(error).__name__) from None
    if isinstance(value, dict):
        return {key: _check(item) for key, item in value.items()}
    return _check(value)


class _Bytes:
    """Stands for the type of an array of bytes, `u1`; the pickle describes it before it is used."""

    def __init__(self, *given: Any):
        if given not in [(name, 0, 1) for name in (b"u1", "u1")]:
            raise RefusedPickle("it holds an array of something other than bytes (u1)")
        self.is_described = False

    def build(self, state: Any) -> None:
        """Take the description, which has one form only."""
        if state not in [(3, order, None, None, None, -1, -1, 0) for order in (b"|", "|")]:
            raise RefusedPickle("it describes the type of an array in a way that numpy does not")
        self.is_described = True


class _Array:
    """Stands for an array whose content follows."""

    def __init__(self, *given: Any):
        if given not in [(_ARRAY_CLASS, (0,), code) for code in (b"b", "b")]:
            raise RefusedPickle("it makes an array in a way in which arrays are not saved")
        self.content: np.ndarray | None = None

    def build(self, state: Any) -> None:
        """Take the state (1, shape, type, whether columns come first, bytes)."""
        if self.content is not None or type(state) is not tuple or len(state) != 5:
            raise RefusedPickle("it makes an array in a way in which arrays are not saved")
        version, shape, kind, by_columns, data = state
        is_described = isinstance(kind, _Bytes) and kind.is_described
        if version != 1 or not is_described or not isinstance(by_columns, int):
            raise RefusedPickle("it makes an array in a way in which arrays are not saved")
        if type(shape) is not tuple or not all(type(side) is int for side in shape):
            raise RefusedPickle("it holds an array without a shape")
        if not 0 < len(shape) <= _MOST_DIMENSIONS or min(shape) < 0 or type(data) is not bytes:
            raise RefusedPickle("it holds an array of an odd shape")
        if math.prod(shape) != len(data):
            raise RefusedPickle(f"it holds an array of shape {shape} whose bytes do not fit it")
        order: Literal["C", "F"] = "F" if by_columns else "C"
        self.content = np.frombuffer(data, np.uint8).reshape(shape, order=order)


_NAMES = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _ARRAY_CLASS,
    "numpy.dtype": _Bytes,
}


class _Unpickler(pickle._Unpickler):
    """Python's own reader of pickles, the one in Python, with few instructions.

    The one in C takes memory for every number that a pickle could give to an object.
    """

    # the reader in Python has them, its type stub does not
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _INSTRUCTIONS.split()
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for one of the three names of an array's pickle."""
        asked = f"{module}.{name}"
        found = _NAMES.get(asked.replace("numpy._core.", "numpy.core."))
        if found is None:
            raise RefusedPickle(f"it asks for {asked[:_SHOWN]}, and only arrays are read")
        return found

    def set_item(self) -> None:
        """Follow SETITEM."""
        value = self.stack.pop()
        self._update([self.stack.pop(), value])

    def set_items(self) -> None:
        """Follow SETITEMS."""
        self._update(self.pop_mark())

    def make_dict(self) -> None:
        """Follow DICT."""
        items = self.pop_mark()
        self.append({})
        self._update(items)

    def build(self) -> None:
        """Follow BUILD, of arrays and their types only."""
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, (_Array, _Bytes)):
            raise RefusedPickle("it changes something that is not an array")
        target.build(state)

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        keys = items[::2]
        # the hash of nested tuples may take for ever
        if type(target) is not dict or not all(isinstance(key, (bytes, str)) for key in keys):
            raise RefusedPickle("it holds a dictionary whose keys are not strings")
        target.update(zip(keys, items[1::2], strict=True))

    dispatch[pickle.SETITEM[0]] = set_item
    dispatch[pickle.SETITEMS[0]] = set_items
    dispatch[pickle.DICT[0]] = make_dict
    dispatch[pickle.BUILD[0]] = build


def _check(value: Any) -> Any:
    """Return a value that is plain data: an array instead of what stood for it."""
    if isinstance(value, _Array):
        if value.content is None:
            raise RefusedPickle("it holds an array without its bytes")
        return value.content
    items = value if type(value) is list else [value]
    for item in items:
        is_whole = isinstance(item, int) and -_LARGEST <= item < _LARGEST
        if item is not None and not is_whole and not isinstance(item, (bytes, str)):
            raise RefusedPickle("it holds something other than arrays, strings and 64-bit numbers")
    return value
