"""The data that `scripts/official_size.py` makes are those that the tasks read, in small; its table
stands once in a page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mcit.registry import find_task

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Scripts are found, without what they do to find mcit in a bare checkout."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setitem(sys.modules, "_checkout", ModuleType("_checkout"))


@pytest.fixture
def official_data(monkeypatch):
    module = importlib.import_module("official_data")
    monkeypatch.setattr(module, "PHOTOGRAPHS", 2)
    return module


@pytest.fixture
def official_size():
    return importlib.import_module("official_size")


def test_counts_at_full_scale_are_the_official_ones(official_data):
    assert official_data.Scale().answers == 3129
    assert official_data.Scale().records("vqa") == {"train2014": 443_757, "val2014": 214_354}
    assert official_data.Scale().records("vcr") == {"train": 212_923, "val": 26_534}


def test_the_tasks_read_what_is_made(official_data, tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    scale = official_data.Scale(1e-4)
    official_data.write_data(tmp_path / "data", scale)
    for name in official_data.TASKS:
        task = find_task(name)(root=tmp_path / "data")
        task.check()
        expected = scale.records(name)
        for split in ("train", "eval"):
            examples = task.examples(split)
            assert len(examples) == expected[task.splits[split]]
            # images are decoded, and boxes drawn
            assert examples[len(examples) - 1]
    # links, and not copies
    linked = tmp_path / "data" / "flickr30k" / "flickr30k_images" / "1000000.jpg"
    assert linked.stat().st_nlink > 2
    vqa = find_task("vqa")(root=tmp_path / "data", answers=scale.answers)
    assert len(vqa.answer_ids) == scale.answers


def test_the_random_model_has_words_for_its_whole_vocabulary(official_data, tmp_path):
    from mcit.config.schema import ModelConfig
    from mcit.models.vilt import load_vilt

    small = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    official_data.write_model(tmp_path, **small, intermediate_size=8)
    encoder, inputs = load_vilt(str(tmp_path), ModelConfig(name=str(tmp_path)))
    assert len(inputs.tokenizer) == encoder.vilt.config.vocab_size == 30_522
    # every word of the generated sentences is known
    ids = inputs.read_texts([" ".join(official_data.WORDS[:30])])["input_ids"]
    assert inputs.tokenizer.unk_token_id not in ids


def make_figures(part: str) -> dict:
    row = {"part": part, "processor_seconds": 61.0, "clock_seconds": 90.0, "peak_gib": 1.5}
    return {
        "command": "python scripts/official_size.py",
        "scale": 0.01,
        "records": {"vqa": {"train2014": 4438, "val2014": 2144}},
        "batch_size": None,
        "workers": 2,
        "small": False,
        "processor": "a processor",
        "cores": 2,
        "load": 9.0,
        "mcit": "1",
        "torch": "2",
        "rows": [{**row, "result": "exit code 75"}],
    }


def test_the_table_replaces_the_one_before(official_size, tmp_path, capsys):
    page = tmp_path / "scaling.md"
    page.write_text("# Scaling\n\nText.\n\n## Last\n\nMore.\n", encoding="utf-8")
    official_size.write_docs(make_figures("doctor"), page)
    official_size.write_docs(make_figures("dry run"), page)
    text = page.read_text(encoding="utf-8")
    assert text.count(official_size.HEADING) == 1
    assert text.startswith("# Scaling\n\nText.\n\n## Last\n\nMore.\n")
    assert "| dry run | 61 | 90 s | 1.50 | exit code 75 |" in text
    assert "doctor" not in text
    assert "1 % of the official counts" in text
    assert "the machine was busy with other work" in text


def test_what_follows_the_section_stays(official_size, tmp_path, capsys):
    page = tmp_path / "scaling.md"
    page.write_text(f"# A\n\n{official_size.HEADING}\n\nold\n\n## Last\n\nMore.\n", "utf-8")
    official_size.write_docs(make_figures("doctor"), page)
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.endswith("| exit code 75 |\n\n## Last\n\nMore.\n")
