"""The small ViLT: captions that are true or false as they should be, files that fit, words read off
pictures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, ViltForMaskedLM, ViltImageProcessorPil, ViltModel

from mcit.data.boxes import NAMES
from mcit.embedded.benchmark import VILT, Sizes, write_benchmark
from mcit.embedded.captions import MAKERS, describe, describe_at_length
from mcit.embedded.pretraining import (
    IGNORED,
    MASK,
    make_batch,
    make_example,
    make_long_example,
    read_texts,
)
from mcit.embedded.render import SIDE, draw
from mcit.embedded.scenes import COLORS, SHAPES, draw_item, fill_scene


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(VILT)


def test_captions_are_true_and_their_twins_false():
    rng, kinds = Random(19), Counter()
    for _ in range(1500):
        scene, caption = describe(rng)
        kinds[caption.kind] += 1
        assert caption.words.keys() == caption.wrong.keys()
        assert caption.words != caption.wrong
        assert all(" " not in word for word in (*caption.words.values(), *caption.wrong.values()))
        assert all(item in scene.items for item in caption.boxed)
        if caption.kind in ("existence", "attribute"):
            assert scene.count(**caption.words)
            assert not scene.count(**caption.wrong)
        elif (
            caption.kind == "place"
            and "vertical" in caption.words
            and "horizontal" in caption.words
        ):
            known = {
                slot: caption.words[slot] for slot in ("color", "shape") if slot in caption.words
            }
            (item,) = scene.find(**known)
            assert item.corner == f"{caption.words['vertical']} {caption.words['horizontal']}"
    assert set(kinds) == set(MAKERS)


def test_long_captions_speak_of_one_scene():
    scene, captions = describe_at_length(Random(23), (3, 5), 4)
    assert len(captions) == 4
    assert not any(caption.boxed for caption in captions)
    for caption in captions:
        if caption.kind == "existence":
            assert scene.count(**caption.words)


def test_a_batch_hides_as_many_words_as_it_asks_for(tokenizer):
    rng, vocabulary = Random(29), tokenizer.get_vocab()
    examples = [make_long_example(rng, (2, 6)) for _ in range(20)] + [
        make_example(rng, (2, 6), 0.5) for _ in range(40)
    ]
    batch, words, truth = make_batch(examples, vocabulary)
    assert (
        int((batch["input_ids"] == MASK).sum())
        == len(words)
        == sum(len(e.hidden) for e in examples)
    )
    assert (
        [e.truth == IGNORED for e in examples]
        == [bool(e.hidden) for e in examples]
        == (truth == IGNORED).tolist()
    )
    assert batch["input_ids"].shape[1] <= 40
    for row, example in zip(batch["input_ids"], examples, strict=True):
        ids = tokenizer(example.text)["input_ids"]
        assert row[: len(ids)].tolist() == ids, "the quick way to split words is the tokenizer's"


def test_a_batch_is_normalized_as_the_image_processor_does(tokenizer):
    examples = [make_example(Random(31), (2, 6), 0.5)]
    batch, _, _ = make_batch(examples, tokenizer.get_vocab())
    expected = ViltImageProcessorPil.from_pretrained(VILT)(
        [examples[0].picture], return_tensors="pt"
    )
    torch.testing.assert_close(batch["pixel_values"], expected["pixel_values"])
    assert batch["pixel_mask"].shape == expected["pixel_mask"].shape == (1, SIDE, SIDE)


def test_the_vocabulary_knows_every_word_of_the_benchmark(tmp_path: Path, tokenizer):
    write_benchmark(tmp_path, Sizes(300, 3), seed=37)
    texts = {*read_texts(tmp_path), *NAMES}
    pieces = {piece for text in texts for piece in tokenizer.tokenize(text)}
    assert tokenizer.unk_token not in pieces
    assert not [piece for piece in pieces if piece.startswith("##")]
    assert tokenizer.unk_token not in tokenizer.tokenize("an unheard-of zebra")


def test_the_checkpoint_is_whole_and_small():
    for model_class in (ViltForMaskedLM, ViltModel):
        model, report = model_class.from_pretrained(VILT, output_loading_info=True)
        assert not report["missing_keys"]
    assert 5e5 < sum(parameter.numel() for parameter in model.parameters()) < 1.5e6
    assert (VILT / "model.safetensors").stat().st_size < 6_000_000
    kinds = model.embeddings.token_type_embeddings.weight  # text, image, second image
    torch.testing.assert_close(kinds[2], kinds[1])
    assert json.loads((VILT / "preprocessor_config.json").read_text("utf-8"))["size"] == {
        "shortest_edge": SIDE
    }


def test_the_model_card_names_the_command():
    assert "scripts/pretrain_embedded.py --out mcit/embedded/vilt" in (
        VILT / "README.md"
    ).read_text("utf-8")


def test_the_small_vilt_reads_a_hidden_word_off_the_picture(tokenizer):
    model, images = (
        ViltForMaskedLM.from_pretrained(VILT).eval(),
        ViltImageProcessorPil.from_pretrained(VILT),
    )
    rng, texts, pictures = Random("unseen"), [], []
    answers = [*COLORS] * 6
    for color in answers:
        shape = rng.choice(SHAPES)
        item = draw_item(rng, shape=shape, color=color)
        pictures.append(
            draw(fill_scene(rng, [item], (1, 3), lambda other, shape=shape: other.shape != shape))
        )
        texts.append(f"the {shape} is [MASK]")
    words = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**words, **images(pictures, return_tensors="pt")).logits
    hidden = logits[words["input_ids"] == tokenizer.mask_token_id]  # [texts, vocabulary]
    colors = torch.tensor(tokenizer.convert_tokens_to_ids(list(COLORS)))
    guesses = [COLORS[place] for place in hidden[:, colors].argmax(dim=-1).tolist()]
    assert np.mean([guess == answer for guess, answer in zip(guesses, answers, strict=True)]) > 0.8
