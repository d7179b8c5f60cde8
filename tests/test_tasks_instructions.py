"""The tasks of CoIN, UCIT and MLLM-DCL on small files in their formats, under all known names."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from official_instructions import (
    ANSWERS,
    BOX,
    CAPTIONS,
    COUNT,
    TEN,
    WORDING,
    write_coin,
    write_dcl,
    write_ucit,
)

from mcit.cli import main
from mcit.config.files import find_config, read_yaml
from mcit.config.parse import parse
from mcit.errors import ConfigError
from mcit.registry import find_task

COPIES: dict[str, tuple[str, Callable]] = {
    "CoIN": ("coin", write_coin),
    "CoIN as its README spells it": (
        "coin",
        lambda root: write_coin(root, above="Instruction_Original"),
    ),
    "CoIN-ASD": (
        "coin",
        lambda root: write_coin(
            root, above="playground/data/CoIN/annotations", train="train_x20.json", test="test.json"
        ),
    ),
    "UCIT of MCITlib": ("ucit", write_ucit),
    "UCIT of HiDe": ("ucit", lambda root: write_ucit(root, hide=True)),
    "MLLM-DCL": ("mllm-dcl", write_dcl),
    "MLLM-DCL of MCITlib": ("mllm-dcl", lambda root: write_dcl(root, above="MLLM-CL")),
}


def make_task(name, root, **options):
    return parse(find_task(name), {"root": str(root), **options})


@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_of_a_benchmark_is_read(copy, tmp_path):
    config, write = COPIES[copy]
    write(tmp_path)
    settings = read_yaml(find_config(config))
    for name in settings["order"]:
        task = make_task(name, tmp_path, **settings["tasks"][name])
        task.check()
        learned = task.examples("train")
        tested = task.examples("eval")
        assert len(learned) == COUNT + (name == "scienceqa")
        assert len(tested) == COUNT
        expected = ANSWERS.get(name, BOX)
        assert learned[0]["answers"] == [expected]
        example = tested[0]
        assert example["images"][0].size == (12, 9)
        assert example["prompt"].startswith(f"What is in image 0?\n{WORDING}")
        perfect = task.metric().compute(
            predictions=[example["answers"][0]], references=[example["answers"]]
        )
        # one caption alone has no words that are rarer than others
        if task.scored_by != "caption":
            assert perfect["score"] > (80 if name == "textvqa" else 99)
        assert perfect["obedience"] in (0.0, 100.0)


def test_answers_come_from_the_official_files_where_there_are_any(tmp_path):
    write_coin(tmp_path)
    write_ucit(tmp_path)
    write_dcl(tmp_path)
    assert make_task("textvqa", tmp_path).examples("eval")[0]["answers"] == TEN
    assert make_task("scienceqa", tmp_path).examples("eval")[0]["answers"] == ["B", "y"]
    assert make_task("gqa", tmp_path).examples("eval")[2]["answers"] == ["left"]
    captions = make_task("vizwiz-caption", tmp_path)
    assert [each["answers"] for each in captions.examples("eval")] == CAPTIONS
    # a question about no image
    assert make_task("scienceqa", tmp_path).examples("train")[COUNT]["images"] == []
    # the public code adds it to questions of the test alone
    med = make_task("med", tmp_path)
    assert med.examples("eval")[0]["prompt"].endswith("with a single word (or phrase).")
    assert med.examples("train")[0]["prompt"].endswith(WORDING)


def test_without_ten_answers_textvqa_says_what_it_is_compared_with(tmp_path):
    write_coin(tmp_path)
    (tmp_path / "cl_dataset/TextVQA/TextVQA_0.5.1_val.json").unlink()
    task = make_task("textvqa", tmp_path)
    assert task.examples("eval")[0]["answers"] == ["stop"]
    assert "not with those of ten annotators" in task.doctor_notes()[0]


def test_other_places_can_be_named(tmp_path):
    write_coin(tmp_path, above="Instruction_Type2", train="mine.json")
    options = {"annotations": "Instruction_Type2/OCRVQA", "train_file": "mine.json"}
    task = make_task("ocrvqa", tmp_path, images="cl_dataset", **options)
    assert len(task.examples("train")) == COUNT


def test_a_script_that_has_no_rule_for_a_task_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="compat 'ucit' has no rule 'box'"):
        make_task("grounding", tmp_path, compat="ucit")
    with pytest.raises(ConfigError, match="unknown text metric 'blue'"):
        make_task("rs", tmp_path, scored_by="blue")


def examine(capsys, *words):
    code = main(["doctor", *map(str, words), "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, {task["task"]: task for task in found["tasks"]}


def test_the_doctor_knows_the_benchmarks(tmp_path, capsys):
    write_ucit(tmp_path)
    code, tasks = examine(capsys, "--config", "ucit", "--data-root", tmp_path)
    assert code == 0
    assert {task["status"] for task in tasks.values()} == {"ready"}
    assert len(tasks) == 6
    main(["doctor", "--config", "ucit", "--data-root", str(tmp_path)])
    printed = capsys.readouterr().out
    assert f"mcit run --config ucit --data-root {tmp_path} --dry-run" in printed


def test_the_doctor_says_what_is_missing_and_where_it_goes(tmp_path, capsys):
    write_ucit(tmp_path)
    (tmp_path / "UCIT/IconQA/train.json").unlink()
    (tmp_path / "UCIT/datasets/ArxivQA/images/1.jpg").unlink()
    code, tasks = examine(capsys, "--config", "ucit", "--data-root", tmp_path)
    assert code == 3
    iconqa = tasks["iconqa"]["problems"][0]
    assert iconqa["text"] == "UCIT/IconQA/train.json is missing"
    assert "https://huggingface.co/datasets/MLLM-CL/UCIT" in iconqa["remedy"]
    assert "train.json or train_4w.json or train_brief_4w.json" in iconqa["remedy"]
    assert "lacks 1 of 3 files" in tasks["arxivqa"]["problems"][0]["text"]
    assert tasks["flickr30k"]["status"] == "ready"
    code, tasks = examine(capsys, "--config", "mllm-dcl", "--data-root", tmp_path)
    assert code == 3
    assert {task["status"] for task in tasks.values()} == {"missing"}
