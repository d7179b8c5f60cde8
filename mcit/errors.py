"""Errors that are the user's to fix: the command line prints their message and no traceback."""

from __future__ import annotations

from mcit.printable import printable


class McitError(Exception):
    """Something that the user can fix; the message says what is wrong, what was found and what would do.

    Every other exception is a bug, in mcit or in a file of the user's own, and keeps its traceback.
    """


class DataError(McitError, ValueError):
    """Data that is missing, malformed or contradictory; the message names the file and the remedy.

    Messages quote what files hold and what libraries say of it, so they are made printable here, for everyone.
    """

    def __init__(self, message: object = ""):
        super().__init__(printable(str(message)))


class FolderError(McitError, OSError):
    """A file or folder that cannot be used; the message says what would do."""
