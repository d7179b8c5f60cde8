"""VQA answers: the official normalization and soft score, quirks included, and the vocabulary."""

from __future__ import annotations

import itertools
import random

import pytest
from tiny_official import write_json

from mcit.data.answers import build_vocabulary, normalize, raw_scores, read_vocabulary, soft_scores
from mcit.errors import DataError


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("two", "2"),
        ("a building", "building"),
        ("snow, mountain", "snow mountain"),
        ("isnt", "isn't"),
        ("Yes", "yes"),
        ("none", "0"),
        ("1,000", "1000"),
        ("hot-dog", "hot dog"),
        ("the dog", "dog"),
        (" A\tNew\nYork ", "new york"),
        ("ten to zero", "10 to 0"),
        ("don't know", "don't know"),
        ("couldnt've", "couldn't've"),
        ("y'alld've", "y'all'd've"),
        ("twas", "'twas"),
        ("the", ""),
    ],
)
def test_answers_read_as_in_the_official_evaluation(answer, expected):
    assert normalize(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("5.", "5"),  # the look-behind that should spare it is mistyped
        ("3.5", "3.5"),
        ("1,000-dollar", "1000dollar"),  # one digit comma and no mark becomes a space any more
        ("blue-green -ish", "bluegreen ish"),  # a mark beside a space vanishes wherever it stands
        ("somebody'd", "somebodyd"),
        ("couldntve", "couldntve"),  # both apostrophes missing is not in the table
        ("Im", "im"),  # the table has a capital, the text has none left
        ("." * 40 + "x", "." * 8 + "x"),  # no more than 32 periods go
    ],
)
def test_the_official_quirks_are_kept(answer, expected):
    assert normalize(answer) == expected


def leave_one_out(answers, answer):
    """The official rule, as it is written."""
    subsets = itertools.combinations(range(len(answers)), len(answers) - 1)
    return sum(min(1, sum(answers[i] == answer for i in subset) / 3) for subset in subsets) / len(
        answers
    )


def test_soft_scores_are_the_leave_one_out_mean():
    rng = random.Random(0)
    for _ in range(200):
        answers = [rng.choice(["red", "blue", "big", "x"]) for _ in range(10)]
        scores = soft_scores(answers)
        assert set(scores) == set(answers)
        assert all(
            score == pytest.approx(leave_one_out(answers, answer))
            for answer, score in scores.items()
        )


def test_soft_scores_by_votes_are_exact():
    for votes, score in ((1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (9, 1.0)):
        answers = ["x"] * votes + [f"other {i}" for i in range(10 - votes)]
        assert soft_scores(answers)["x"] == score
        assert raw_scores(answers)["x"] == pytest.approx(score, abs=1e-15)
    assert soft_scores(["x"] * 10) == {"x": 1.0}


def test_the_ten_are_normalized_only_where_they_differ():
    assert soft_scores(["two"] * 10) == {"two": 1.0}
    assert soft_scores(["two"] * 9 + ["2"]) == {"2": 1.0}
    assert soft_scores(["two "] * 9 + ["two"]) == {"two": 1.0}
    assert raw_scores(["two"] * 9 + ["2"]) == {"two": 1.0, "2": 0.3}


def test_the_vocabulary_is_ordered_by_count_and_then_by_alphabet():
    majorities = ["no"] * 3 + ["red"] * 2 + ["blue"] * 2 + ["rare"] + ["yes"] * 3
    assert build_vocabulary(majorities, 2) == ["no", "yes", "blue", "red"]
    random.Random(1).shuffle(majorities)
    assert build_vocabulary(majorities, 2) == ["no", "yes", "blue", "red"]


def test_a_vocabulary_file_may_be_a_list_or_an_index(tmp_path):
    for data in (["b", "a"], {"answers": ["b", "a"], "minimum": 9}, {"a": 1, "b": 0}):
        assert read_vocabulary(write_json(tmp_path / "v.json", data)) == ["b", "a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["a", "a"], "more than once, the first is 'a'"),
        ([1, 2], "a JSON list of answers is needed"),
        ({"a": 0, "b": 2}, "whole numbers from 0 on"),
        ("a", "a JSON list of answers is needed"),
    ],
)
def test_a_wrong_vocabulary_file_is_named(tmp_path, data, message):
    with pytest.raises(DataError, match=r"v\.json.*" + message):
        read_vocabulary(write_json(tmp_path / "v.json", data))
