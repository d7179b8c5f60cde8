"""Errors that are the user's to fix: the command line prints their message without a traceback."""

from __future__ import annotations

from collections.abc import Iterable

from mcit.printable import printable


class McitError(Exception):
    """Something that the user can fix; the message says what was found and what would do.

    Every other exception is a bug, in mcit or in a file of the user's own, and keeps its traceback.
    """


class ConfigError(McitError, ValueError):
    """Everything that is wrong with options, one line each, from a file, a command or a call."""

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = "\n  - ".join([f"{len(self.problems)} problems:", *self.problems])
        super().__init__(text)


class DataError(McitError, ValueError):
    """Data that is missing, malformed or contradictory; the message names the file and the remedy.

    Messages quote what files hold and what libraries say of it, so they are made printable here.
    """

    def __init__(self, message: object = ""):
        super().__init__(printable(str(message)))


class FolderError(McitError, OSError):
    """A file or folder that cannot be used; the message says what would do."""


class OutOfMemory(McitError, MemoryError):
    """A step or a score that did not fit into memory; the message says how to go on with less."""


class DivergedError(McitError, FloatingPointError):
    """A loss, gradient or weight that is not finite; the message says where and what to try."""
