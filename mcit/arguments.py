"""Words of a command line: a parser that answers a misspelt word with the nearest, and the kinds of values."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from mcit.parsing import ConfigError, find_nearest, suggest

MOST_SEEDS = 10_000  # of a range: beyond it the range is a slip


class Parser(argparse.ArgumentParser):
    """Options as argparse reads them. Each command answers for its own words, with its own usage."""

    def parse_known_args(
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Read the words; one that no option takes is an error here, and not of the parser above."""
        words = sys.argv[1:] if args is None else list(args)
        # before argparse looks: it would first complain that the option which was misspelt is missing
        misspelt = self._find_misspelt(words)
        if misspelt:
            self.error(self._explain(misspelt))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._explain(unknown))
        return found, unknown

    def _find_misspelt(self, words: Sequence[str]) -> list[str]:
        """Return the words that look like options and begin like none."""
        if self._subparsers is not None:
            # what follows the command is the command's own
            words = list(itertools.takewhile(lambda word: word.startswith("-"), words))
        options = list(itertools.takewhile(lambda word: word != "--", words))
        options = [word for word in options if word.startswith("--")]
        known = list(self._option_string_actions)
        return [
            word
            for word in options
            if not any(name.startswith(word.partition("=")[0]) for name in known)
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is not among the choices of an option."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        problem = (
            f"unknown choice {value!r}{suggest(str(value), known)} (choices: {', '.join(known)})"
        )
        raise argparse.ArgumentError(action, problem)

    def _explain(self, unknown: Sequence[str]) -> str:
        """Return what is wrong with words that no option takes."""
        known = {word.lstrip("-"): word for word in self._option_string_actions}
        found = []
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("-"):
                # bare names are compared, for the dashes would make all options alike
                near = find_nearest(name.lstrip("-"), known)
                hint = "" if near is None else f"; did you mean {known[near]!r}?"
                found.append(f"unknown option {name!r}{hint}")
        if not found:
            found = [
                f"unexpected word {unknown[0]!r}; items of a list are joined by commas, without spaces"
            ]
        return f"{'; '.join(found)} (`{self.prog} --help` explains all options)"


class OptionParser(Parser):
    """Reads options that come from a file or from another command: what is wrong is a ConfigError."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong; there is no usage to show, for nobody typed these words."""
        raise ConfigError([message])


def some_text(text: str) -> str:
    """Return a word that is not empty: an empty one is mostly a shell variable that was never set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "expected a word, found an empty one; leave the option out for its default"
        )
    return text


def whole_number(text: str) -> int:
    """Return the whole number that a word spells."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a whole number such as 1, found {text!r}"
        ) from None


def number(text: str) -> float:
    """Return the number that a word spells."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number such as 10, found {text!r}") from None


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated option."""
    items = [item.strip() for item in text.split(",")]
    if "" in items:
        raise argparse.ArgumentTypeError(
            f"expected items such as a,b, found an empty one in {text!r}"
        )
    return items


def parse_seeds(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds that words stand for: `1`, or `1-3` for 1, 2 and 3."""
    seeds: list[int] = []
    for text in texts:
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        if found is None:
            raise ConfigError(
                [f"seeds are whole numbers from 0, such as 1,2,3 or 1-3; found {text!r}"]
            )
        first = int(found[1])
        last = int(found[2] or found[1])
        if not first <= last < first + MOST_SEEDS:
            raise ConfigError(
                [f"seeds {text!r} is no range from a smaller seed to a larger one, such as 1-3"]
            )
        seeds += range(first, last + 1)
    return tuple(seeds)
