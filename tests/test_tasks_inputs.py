"""Inputs of one's own: the same tensors as the same images and texts in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_official import small_processor
from torch.testing import assert_close

from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import ConfigError
from mcit.registry import find_task

OPTIONS = {"vqa": {"minimum": 1}}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=8, evaluation=4))
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


def make(name: str, root: Path) -> Any:
    return find_task(name)(root=root, **OPTIONS.get(name, {}))


def take_inputs(example: dict[str, Any]) -> tuple[Any, Any]:
    """Return the images and the texts of an example."""
    images = tuple(example["images"]) if "images" in example else example["image"]
    if "choices" in example:
        return images, (example["question"], *example["choices"])
    return images, example["text"]


@pytest.mark.parametrize("name", ["vqa", "nlvr2", "snli-ve", "vcr"])
def test_the_tensors_are_those_of_the_data(root, name):
    task = make(name, root)
    processor = small_processor()
    examples = [task.examples("train")[place] for place in range(3)]
    images, texts = zip(*map(take_inputs, examples), strict=True)
    found = task.read_inputs(images, texts, processor)
    expected = task.collate(examples, processor)
    assert {"input_ids", "attention_mask", "pixels", "pixel_sizes"} <= set(found)
    for key, tensor in found.items():
        assert_close(tensor, expected[key])


def test_outputs_are_called_by_what_they_stand_for(root):
    assert make("nlvr2", root).output_names() == ["false", "true"]
    assert make("snli-ve", root).output_names() == ["entailment", "contradiction", "neutral"]
    vqa = make("vqa", root)
    assert vqa.output_names() == sorted(vqa.answer_ids, key=vqa.answer_ids.__getitem__)
    assert make("vcr", root).output_names() == ["A", "B", "C", "D"]


def test_inputs_that_are_too_few_are_refused(root):
    image = Image.new("RGB", (40, 40))
    with pytest.raises(ConfigError, match="an example of 'nlvr2' has 2 images, found 1"):
        make("nlvr2", root).read_inputs([image], ["one dog"], small_processor())
    with pytest.raises(ConfigError, match="2 images of 'snli-ve' need 2 texts, found 1"):
        make("snli-ve", root).read_inputs([image, image], ["one dog"], small_processor())
    with pytest.raises(ConfigError, match="a question and 4 choices, found 2"):
        make("vcr", root).read_inputs([image], [("why ?", "no", "it")], small_processor())
