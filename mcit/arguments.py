"""Words of a command line: a parser that suggests the nearest word, and types of values."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

from mcit.errors import ConfigError
from mcit.spelling import find_nearest, suggest

# of a range; a longer one is a mistake
MOST_SEEDS = 10_000


class Parser(argparse.ArgumentParser):
    """Options as argparse reads them; each command reports its own words, with its own usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Read the words; one that no option takes is an error of this parser, not its parent."""
        words = sys.argv[1:] if args is None else list(args)
        # before argparse looks: it would first complain that a misspelled option is missing
        misspelled = self._find_misspelled(words)
        if misspelled:
            self.error(self._explain(misspelled))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._explain(unknown))
        return found, unknown

    def _find_misspelled(self, words: Sequence[str]) -> list[str]:
        """Return the words that look like options and begin like none."""
        if self._subparsers is not None:
            # what follows the command is the command's own
            words = list(itertools.takewhile(_is_dashed, words))
        known = list(self._option_string_actions)
        misspelled = []
        for word in words:
            if word == "--":
                break
            name = word.partition("=")[0]
            if word.startswith("--") and not any(option.startswith(name) for option in known):
                misspelled.append(word)
        return misspelled

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise if a value is not among the choices of an option."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = suggest(str(value), known)
        problem = f"unknown choice {value!r}{near} (choices: {', '.join(known)})"
        raise argparse.ArgumentError(action, problem)

    def _explain(self, unknown: Sequence[str]) -> str:
        """Return what is wrong with words that no option takes."""
        # bare names are compared, for the dashes would make all options similar
        known = {word.lstrip("-"): word for word in self._option_string_actions}
        problems = []
        for word in unknown:
            name = word.partition("=")[0]
            if not name.startswith("-"):
                continue
            near = find_nearest(name.lstrip("-"), known)
            hint = "" if near is None else f"; did you mean {known[near]!r}?"
            problems.append(f"unknown option {name!r}{hint}")
        if not problems:
            problems.append(
                f"unexpected word {unknown[0]!r}; items of a list are joined by commas, "
                "without spaces"
            )
        return f"{'; '.join(problems)} (`{self.prog} --help` explains all options)"


def some_text(text: str) -> str:
    """Return a word that is not empty: an empty one is mostly an unset shell variable."""
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
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        if match is None:
            raise ConfigError(
                [f"seeds are whole numbers from 0, such as 1,2,3 or 1-3; found {text!r}"]
            )
        first = int(match[1])
        last = int(match[2] or match[1])
        if not first <= last < first + MOST_SEEDS:
            raise ConfigError(
                [f"seeds {text!r} is not a range from a smaller seed to a larger one, such as 1-3"]
            )
        seeds += range(first, last + 1)
    return tuple(seeds)


def _is_dashed(word: str) -> bool:
    return word.startswith("-")
