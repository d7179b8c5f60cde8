"""VQA answers: the official normalization with its quirks, the soft score, the vocabulary.

Antol et al., VQA: Visual Question Answering, ICCV 2015, https://arxiv.org/abs/1505.00468. The rules
are those of the official evaluation code, https://github.com/GT-Vision-Lab/VQA, mistakes included:
scores of other toolkits were made by them.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcit.data.records import read_json, shorten
from mcit.errors import DataError

ANNOTATORS = 10

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"\d,\d")
# The official pattern means to spare periods behind digits too, but its look-behind is mistyped and
# always holds; and the flag it passes lands in the place of the number of replacements, 32.
_PERIOD = re.compile(r"\.(?!\d)")
_MOST_PERIODS = 32
_ARTICLES = frozenset(("a", "an", "the"))
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS)}
_CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't
mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
someone's something'd something'd've something'll that's there'd there'd've there're there's they'd
they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""


def _list_misspellings() -> dict[str, str]:
    """Return each contraction with one of its apostrophes left out, and what it should be."""
    table = {}
    for word in _CONTRACTED.split():
        for match in re.finditer("'", word):
            table[word[: match.start()] + word[match.end() :]] = word
    # the official table has this one the wrong way round
    table["somebody'd"] = "somebodyd"
    return table


_CONTRACTIONS = _list_misspellings()


@functools.lru_cache(maxsize=1 << 18)
def normalize(answer: str) -> str:
    """Return an answer as the official evaluation compares it."""
    answer = clean(answer)
    has_digit_comma = _DIGIT_COMMA.search(answer) is not None
    text = answer
    for mark in _PUNCTUATION:
        # one comma between digits makes all punctuation vanish, not only that comma
        vanishes = has_digit_comma or f"{mark} " in answer or f" {mark}" in answer
        text = text.replace(mark, "" if vanishes else " ")
    text = _PERIOD.sub("", text, count=_MOST_PERIODS)
    words = []
    for word in text.lower().split():
        word = _DIGITS.get(word, word)
        if word not in _ARTICLES:
            words.append(_CONTRACTIONS.get(word, word))
    return " ".join(words)


@functools.lru_cache(maxsize=1 << 18)
def clean(answer: str) -> str:
    """Return an answer as the official evaluation first makes it: on one line."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """Return the score of each distinct answer.

    It is the mean of min(1, matches / 3) over the subsets that leave one answer out.

    As in the official evaluation, answers are normalized only if they are not unanimous.
    """
    answers = [clean(answer) for answer in answers]
    if len(set(answers)) > 1:
        answers = [normalize(answer) for answer in answers]
    return vote_scores(answers)


def vote_scores(answers: Sequence[str]) -> dict[str, float]:
    """Return the mean of min(1, matches / 3) over the subsets that leave one answer out."""
    total = len(answers)
    scores = {}
    for answer, matches in Counter(answers).items():
        # `matches` of the subsets lack one of the answer's own votes
        with_one_less = matches * min(3, matches - 1)
        with_all = (total - matches) * min(3, matches)
        # divided once, so that 0.3, 0.6 and 0.9 are exact
        scores[answer] = (with_one_less + with_all) / (3 * total)
    return scores


def raw_scores(answers: Sequence[str]) -> dict[str, float]:
    """Return CLiMB's scores: raw strings, 0.3 a vote and 1 from four votes on."""
    scores = {}
    for answer, votes in Counter(answers).items():
        scores[answer] = 1.0 if votes > 3 else 3 * votes / 10
    return scores


def build_vocabulary(majorities: Iterable[str], minimum: int) -> list[str]:
    """Return answers that are the majority at least `minimum` times, the most frequent first."""
    counts = Counter(majorities)
    known = [answer for answer, count in counts.items() if count >= minimum]
    return sorted(known, key=lambda answer: (-counts[answer], answer))


def read_vocabulary(path: Path) -> list[str]:
    """Return the answers in a JSON file.

    It holds a list, an object with a list under `answers`, or an object of answer to index.
    """
    data = read_json(path)
    if isinstance(data, dict):
        listed = data.get("answers")
        data = listed if isinstance(listed, list) else _order_by_index(data, path)
    if not isinstance(data, list) or not all(isinstance(answer, str) for answer in data):
        raise DataError(
            f"{path} holds no answer vocabulary: a JSON list of answers is needed, "
            f"found {shorten(data)}"
        )
    repeated = [answer for answer, count in Counter(data).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path} lists {len(repeated)} answers more than once, the first is {repeated[0]!r}"
        )
    return data


def _order_by_index(data: Mapping[str, Any], path: Path) -> list[str]:
    indices = list(data.values())
    are_whole = all(type(index) is int for index in indices)
    if not are_whole or sorted(indices) != list(range(len(data))):
        raise DataError(
            f"{path}: the indices of the answers must be the whole numbers from 0 on, each once"
        )
    return sorted(data, key=data.__getitem__)
