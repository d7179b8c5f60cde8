"""Runs that answer in words: what scores.json says of content, form and the untouched model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_llava import write_instructions, write_llava

import mcit


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_llava(folder / "llava")
    write_instructions(folder / "data", "color", count=12)
    write_instructions(folder / "data", "truth", answer="truth", count=12)
    return folder


def run(place: Path, order: list[str], name: str) -> dict:
    options = {
        "model": {"name": str(place / "llava")},
        "training": {"workers": 0},
        "tasks": {"instruction": {"recipe": {"batch_size": 6, "learning_rate": 0.01}}},
    }
    mcit.run(
        order=[f"instruction:{each}.json" for each in order],
        method="finetune",
        data_root=str(place / "data"),
        output=place / name,
        stage_cache=place / "cache",
        **options,
    )
    return json.loads((place / name / "scores.json").read_text())


def test_scores_tell_content_form_and_zero_shot(place):
    scores = run(place, ["color", "truth"], "both")
    assert scores["track"] == "instructions"
    assert set(scores["views"]) == {"normalized", "obedience"}
    for name, rows in scores["views"].items():
        assert [len(row) for row in rows] == [1, 2]
        details = [[entry[name] for entry in row] for row in scores["details"]]
        assert rows == details
    assert {name: len(found) for name, found in scores["zero_shot"].items()} == {
        "score": 2,
        "normalized": 2,
        "obedience": 2,
    }
    metrics = scores["metrics"]
    assert metrics["MFN"] == metrics["A_last"]
    assert metrics["MAA"] == metrics["A_avg"]
    assert metrics["MFT"] == pytest.approx(sum(metrics["A_new"]) / 2)
    lost = metrics["lost_content"] + metrics["lost_form"]
    assert lost == pytest.approx(-metrics["BWT"])


def test_a_stage_from_the_cache_does_not_bring_the_zero_shot_scores_of_other_tasks(place):
    both = run(place, ["color", "truth"], "before")
    alone = run(place, ["color"], "alone")
    assert alone["matrix"] == both["matrix"][:1]
    assert alone["zero_shot"]["score"] == both["zero_shot"]["score"][:1]
