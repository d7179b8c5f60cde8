"""Mistyped words: the known one that is nearest, for a message that names it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a known word is near, else an empty text."""
    near = find_nearest(word, known)
    if near is None:
        return ""
    return f"; did you mean {near!r}?"


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, or None."""
    ordered = sorted(known)
    word = word.lower()
    close = difflib.get_close_matches(word, ordered, n=1, cutoff=0.6)
    if not close and word:
        # a word that starts like `word`, or the other way round, counts too: nlvr -> nlvr2
        close = [name for name in ordered if name.startswith(word) or word.startswith(name)]
    if not close:
        return None
    return close[0]


def describe_unknown_key(where: str, name: Any, known: Iterable[str]) -> str:
    """Return what is wrong with a key that a section does not have."""
    known = list(known)
    key = f"{where}.{name}" if where else str(name)
    if not known:
        return f"unknown key '{key}': '{where}' has no options here, so leave it out"
    return f"unknown key '{key}'{suggest(str(name), known)} (keys: {', '.join(known)})"
