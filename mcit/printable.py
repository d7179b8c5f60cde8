"""Text from files and libraries, made safe to print: nothing in it moves the cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` with characters that do not print as escapes; line ends stay.

    Errors clean their own messages with it, so that what a file holds reaches no terminal and no
    log as it is.
    """
    if text.isprintable():
        return text
    return "".join(character if _prints(character) else _escape(character) for character in text)


def _prints(character: str) -> bool:
    return character == "\n" or character.isprintable()


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
