"""Scores: exact on small cases, several at once, fed in batches, and without a hub."""

from __future__ import annotations

import random
import socket

import pytest
import torch

from mcit.data.scores import Accuracy, PairAccuracy, SoftAccuracy


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("a score reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path))


def test_accuracy_is_the_share_of_right_predictions():
    score = Accuracy()
    score.add_batch(predictions=[0, 1, 2], references=[0, 1, 1])
    score.add_batch(predictions=[1], references=[1])
    assert score.compute() == {"score": 75.0}


def test_a_score_takes_tensors_and_starts_again_after_compute():
    score = Accuracy()
    score.add_batch(predictions=torch.tensor([1, 0]), references=torch.tensor([1, 1]))
    assert score.compute() == {"score": 50.0}
    assert score.compute(predictions=[1], references=[1]) == {"score": 100.0}


def test_scores_that_are_alive_at_once_do_not_mix():
    scores = [Accuracy() for _ in range(4)]
    for wrong, score in enumerate(scores):
        score.add_batch(predictions=[0] * wrong + [1] * (4 - wrong), references=[1] * 4)
    assert [score.compute()["score"] for score in reversed(scores)] == [25.0, 50.0, 75.0, 100.0]


def test_soft_accuracy_is_the_mean_of_what_the_answers_score():
    padding = [-1] * 8
    score = SoftAccuracy()
    score.add_batch(
        predictions=[5, 7, 9, 0],
        references=[[5, 2, *padding], [5, 7, *padding], [1, 2, *padding], [-1, -1, *padding]],
        scores=[[1.0, 0.3] + [0.0] * 8, [0.3, 0.6] + [0.0] * 8, [1.0, 0.9] + [0.0] * 8, [0.0] * 10],
    )
    assert score.compute()["score"] == pytest.approx(100 * (1.0 + 0.6 + 0 + 0) / 4)


def test_consistency_counts_sentences_that_are_right_throughout():
    score = PairAccuracy()
    score.add_batch(predictions=[1, 0, 1], references=[1, 0, 0], groups=[3, 3, 8])
    score.add_batch(predictions=[1, 1], references=[1, 1], groups=[8, 9])
    assert score.compute() == {"score": 80.0, "consistency": pytest.approx(200 / 3)}


def test_consistency_agrees_with_a_plain_loop():
    rng = random.Random(0)
    rows = [(rng.randint(0, 1), rng.randint(0, 1), rng.randint(0, 40)) for _ in range(100)]
    right = {}
    for prediction, reference, group in rows:
        right[group] = right.get(group, True) and prediction == reference
    predictions, references, groups = map(list, zip(*rows, strict=True))
    found = PairAccuracy().compute(predictions=predictions, references=references, groups=groups)
    assert found["consistency"] == pytest.approx(100 * sum(right.values()) / len(right))


def test_nothing_to_score_is_an_error_and_not_a_zero():
    with pytest.raises(ValueError, match="nothing to score"):
        Accuracy().compute()
