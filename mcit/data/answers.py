"""VQA answers: the official normalisation with its quirks, the official soft score, and the answer vocabulary."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mcit.data.records import read_json, shorten
from mcit.task import DataError

ANNOTATORS = 10

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"\d,\d")
# The official pattern means to spare periods behind digits too, but its look-behind is mistyped and always holds;
# and the flag it passes lands in the place of the number of replacements, 32.
_PERIOD = re.compile(r"\.(?!\d)")
_MOST_PERIODS = 32
_ARTICLES = frozenset(("a", "an", "the"))
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS)}
_CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""


def _misspellings() -> dict[str, str]:
    """Each contraction with one of its apostrophes left out, and what it should be."""
    table = {}
    for word in _CONTRACTED.split():
        for place in (match.start() for match in re.finditer("'", word)):
            table[word[:place] + word[place + 1 :]] = word
    return table | {
        "somebody'd": "somebodyd"
    }  # the official table has this one the wrong way round


_CONTRACTIONS = _misspellings()


@functools.lru_cache(maxsize=1 << 18)
def normalise(answer: str) -> str:
    """An answer as the official evaluation compares it: punctuation, number words, articles, contractions."""
    answer = clean(answer)
    text = answer
    for mark in _PUNCTUATION:
        # one comma between digits makes all punctuation vanish, not only that comma
        gone = mark + " " in answer or " " + mark in answer or _DIGIT_COMMA.search(answer)
        text = text.replace(mark, "" if gone else " ")
    text = _PERIOD.sub("", text, count=_MOST_PERIODS)
    words = (_DIGITS.get(word, word) for word in text.lower().split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


@functools.lru_cache(maxsize=1 << 18)
def clean(answer: str) -> str:
    """What the official evaluation does to every answer before it looks at it."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """What each distinct answer scores: the mean over the leave-one-out subsets of min(1, matches / 3).

    As in the official evaluation the answers are normalised only where they are not unanimous.
    """
    answers = [clean(answer) for answer in answers]
    if len(set(answers)) > 1:
        answers = [normalise(answer) for answer in answers]
    total = len(answers)
    # `matches` of the subsets lack one of the answer's own votes; whole numbers keep 0.3, 0.6, 0.9 exact
    return {
        answer: (matches * min(3, matches - 1) + (total - matches) * min(3, matches)) / (3 * total)
        for answer, matches in Counter(answers).items()
    }


def raw_scores(answers: Sequence[str]) -> dict[str, float]:
    """The reference's scores: raw strings, 0.3 a vote and 1 from four votes on."""
    return {
        answer: 1.0 if votes > 3 else 3 * votes / 10 for answer, votes in Counter(answers).items()
    }


def build_vocabulary(majorities: Iterable[str], minimum: int) -> list[str]:
    """Answers that are the majority at least `minimum` times, most frequent first, then by alphabet."""
    counts = Counter(majorities)
    return sorted(
        (answer for answer, count in counts.items() if count >= minimum),
        key=lambda a: (-counts[a], a),
    )


def read_vocabulary(path: Path) -> list[str]:
    """The answers in a JSON file: a list, an object with a list under `answers`, or an object of answer to index."""
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("answers"), list):
        data = data["answers"]
    elif isinstance(data, dict):
        data = _order_by_index(data, path)
    if not isinstance(data, list) or not all(isinstance(answer, str) for answer in data):
        raise DataError(
            f"{path} holds no answer vocabulary: a JSON list of answers is needed, found {shorten(data)}"
        )
    twice = [answer for answer, count in Counter(data).items() if count > 1]
    if twice:
        raise DataError(
            f"{path} lists {len(twice)} answers more than once, the first is {twice[0]!r}"
        )
    return data


def _order_by_index(data: dict, path: Path) -> list[str]:
    if not all(type(index) is int for index in data.values()) or sorted(data.values()) != list(
        range(len(data))
    ):
        raise DataError(
            f"{path}: the indices of the answers must be the whole numbers from 0 on, each once"
        )
    return sorted(data, key=data.__getitem__)
