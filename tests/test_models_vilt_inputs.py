"""Texts and pictures, against transformers' own tokenizer and processor; checkpoints, whole and
broken."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_vilt import PATCH, SIZES, VOCABULARY, make_batch, make_model, write_folder
from torch.testing import assert_close
from transformers import ViltForMaskedLM, ViltModel
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import ConfigError, DataError
from mcit.models.pretrained import read_config
from mcit.models.vilt import ViltEncoder, load_vilt
from mcit.models.vilt_inputs import ViltInputs, unpack_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("vilt"))


def load(folder, **options):
    return load_vilt(str(folder), ModelConfig(name=str(folder), **options))


def test_a_folder_in_hub_format_loads_and_gives_what_transformers_gives(folder):
    encoder, inputs = load(folder)
    images = [
        Image.new("RGB", size, colour) for size, colour in (((64, 40), "red"), ((30, 61), "blue"))
    ]
    texts = ["what colour", "is there a big red circle"]
    batch = {**inputs.read_texts(texts), **inputs.read_images(images)}
    processed = {**inputs.read_texts(texts), **inputs.images(images, return_tensors="pt")}
    with torch.no_grad():
        expected = ViltModel.from_pretrained(folder).eval()(**processed).pooler_output
        assert_close(encoder.eval()(batch)[:, 0], expected, atol=1e-5, rtol=0)


def test_a_masked_language_checkpoint_loads_every_weight(tmp_path):
    model = make_model(ViltForMaskedLM)
    encoder, _ = load(write_folder(tmp_path, model))
    state = encoder.vilt.state_dict()
    for name, tensor in model.vilt.state_dict().items():
        found = state[name][:2] if "embeddings.token_type_embeddings" in name else state[name]
        assert torch.equal(found, tensor), name


def test_what_is_saved_loads_again_bit_for_bit(folder, tmp_path):
    encoder, _ = load(folder)
    encoder.vilt.save_pretrained(tmp_path)
    again = ViltModel.from_pretrained(tmp_path)
    assert type(again.config).__name__ == "ViltConfig"
    assert again.config.architectures == ["ViltModel"]
    for name, tensor in encoder.vilt.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_legacy_files_of_the_hub_are_read(folder, tmp_path):
    """A vocab.txt without tokenizer.json, an image size that is a number, and a saved table of
    positions."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer"})
    )
    legacy = {"do_resize": True, "do_normalize": True, "size": 32, "size_divisor": 8, "resample": 3}
    legacy |= {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "feature_extractor_type": "ViltFeatureExtractor",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(legacy))
    weights = load_file(tmp_path / "model.safetensors")
    weights["embeddings.text_embeddings.position_ids"] = torch.arange(12)[None]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, old = load(tmp_path)
    _, new = load(folder)
    texts = ["What colour is the circle?"]
    images = [Image.linear_gradient("L").resize((50, 33))]
    assert_close(old.read_texts(texts), new.read_texts(texts))
    assert_close(old.read_images(images), new.read_images(images))


def drop(folder, target, prefix: str) -> str:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    weights = load_file(target / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return str(target)


@pytest.mark.parametrize("prefix", ["pooler.", "encoder.layer.1.", "embeddings.cls_token"])
def test_a_missing_weight_is_an_error_and_never_random(folder, tmp_path, prefix):
    with pytest.raises(DataError, match="lacks .* weights of the model .*" + prefix):
        load(drop(folder, tmp_path, prefix))


def change_config(folder, target, **changes) -> str:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return str(target)


def test_weights_without_a_place_are_an_error(folder, tmp_path):
    with pytest.raises(
        DataError, match=r"weights do not fit config.json \(encoder.layer.1.* has no place"
    ):
        load(change_config(folder, tmp_path, num_hidden_layers=1))


def test_weights_of_another_shape_are_an_error(folder, tmp_path):
    with pytest.raises(DataError, match=r"intermediate.dense.bias is \[32\], not \[48\]"):
        load(change_config(folder, tmp_path, intermediate_size=48))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 9}, "ids up to 24, the model's vocabulary has 9 words"),
        (
            {"vocab_size": 999},
            "ids up to 24 only, the model's vocabulary has 999 words: it belongs to another model",
        ),
        ({"pad_token_id": 3}, "pads with id 0, the model with 3"),
        ({"patch_size": 16}, "multiples of 8 pixels, but patches are 16 wide"),
    ],
)
def test_a_tokenizer_or_processor_that_does_not_fit_is_named(folder, tmp_path, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        load(change_config(folder, tmp_path, **changes))
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_tokenizer_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match="the tokenizer has no words"):
        load(tmp_path)


def test_a_folder_that_is_not_a_checkpoint_is_named(folder, tmp_path):
    with pytest.raises(DataError, match="no checkpoint"):
        load(tmp_path / "nowhere")
    with pytest.raises(DataError, match="'bert' model where 'vilt' is needed"):
        load(change_config(folder, tmp_path / "bert", model_type="bert"))


def test_a_truncated_or_absent_weight_file_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(DataError, match=str(tmp_path)):
        load(tmp_path)
    weights.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors"):
        load(tmp_path)


def test_gradient_checkpointing_changes_no_gradient(folder):
    batch = make_batch(3, SIZES)
    gradients = []
    for checkpointing in (False, True):
        encoder, _ = load(folder, gradient_checkpointing=checkpointing)
        assert encoder.vilt.is_gradient_checkpointing is checkpointing
        encoder.train()(batch).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in encoder.named_parameters()})
    assert_close(*gradients)


def test_lora_starts_as_the_checkpoint_and_trains_adapters_only(folder):
    plain, _ = load(folder)
    adapted, _ = load(folder)
    adapted.add_adapter("default", LoraConfig(rank=2))
    batch = make_batch(2, SIZES[:2])
    assert_close(adapted.eval()(batch), plain.eval()(batch))
    trainable = {
        name: parameter.numel()
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad
    }
    assert all("lora_" in name for name in trainable)
    # two layers; query and value; two matrices
    assert sum(trainable.values()) == 2 * 2 * (2 * 16 + 16 * 2)
    adapted(batch).sum().backward()
    assert all(
        parameter.grad is None for parameter in adapted.parameters() if not parameter.requires_grad
    )


def test_an_unknown_lora_target_is_named(folder):
    encoder, _ = load(folder)
    with pytest.raises(ConfigError, match="no layer 'querry'; did you mean 'query'"):
        encoder.add_adapter("default", LoraConfig(rank=2, targets=("querry",)))


@pytest.fixture(scope="module")
def inputs(folder):
    return ViltInputs.from_pretrained(folder, read_config(folder))


def words_of(inputs, read) -> list[str]:
    return [
        " ".join(inputs.tokenizer.convert_ids_to_tokens(ids[mask.bool()]))
        for ids, mask in zip(read["input_ids"], read["attention_mask"], strict=True)
    ]


def test_texts_are_read_as_the_tokenizer_reads_them(inputs):
    texts = ["What colour is the big circle?", "two", "red " * 30]
    expected = inputs.tokenizer(
        texts,
        padding=True,
        truncation=True,
        max_length=12,
        return_tensors="pt",
        return_token_type_ids=False,
    )
    assert_close(inputs.read_texts(texts), dict(expected))


def test_a_pair_is_framed_like_one_text_with_a_separator(inputs):
    read = inputs.read_texts([("is there a circle", "yes"), ("what colour", "red because two")])
    assert words_of(inputs, read) == [
        "[CLS] is there a circle [SEP] yes [SEP]",
        "[CLS] what colour [SEP] red because two [SEP]",
    ]


def test_it_is_the_question_that_gets_truncated(inputs):
    read = inputs.read_texts(
        [("left " * 20, "red blue"), ("left " * 20, "red " * 30), ("left right", "red " * 9)]
    )
    assert words_of(inputs, read) == [
        "[CLS] " + "left " * 7 + "[SEP] red blue [SEP]",
        "[CLS] [SEP] " + "red " * 9 + "[SEP]",
        "[CLS] [SEP] " + "red " * 9 + "[SEP]",
    ]
    read = inputs.read_texts(
        [("left " * 20, "blue blue", "red"), ("left", "blue " * 20, "red"), ("left", "", "red")]
    )
    assert words_of(inputs, read) == [
        "[CLS] " + "left " * 6 + "blue blue [SEP] red [SEP]",
        "[CLS] " + "blue " * 8 + "[SEP] red [SEP]",
        "[CLS] left [SEP] red [SEP]",
    ]


def draw_pictures() -> list[Image.Image]:
    generator = np.random.default_rng(0)
    shapes = [(40, 64), (64, 40), (32, 32), (33, 47), (20, 90), (7, 9)]
    return [
        Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes
    ]


def test_pictures_are_read_as_the_processor_reads_them(inputs):
    """Values up to 1 within one unit in the last place of 1, and the very same mask."""
    read = unpack_images(inputs.read_images(draw_pictures()))
    expected = inputs.images(draw_pictures(), return_tensors="pt")
    unit = torch.finfo(torch.float32).eps
    assert_close(read["pixel_values"], expected["pixel_values"], atol=unit, rtol=0)
    assert torch.equal(read["pixel_mask"], expected["pixel_mask"].bool())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_normalize": False},
        {"do_rescale": False},
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    ],
)
def test_bytes_become_the_numbers_of_one_product_and_one_sum(inputs, settings):
    """Picture by picture, in single precision, to the last bit: recorded scores depend on it."""
    images = ViltImageProcessorPil(size={"shortest_edge": 32}, size_divisor=PATCH, **settings)
    processor = ViltInputs(inputs.tokenizer, images, inputs.limit)
    packed = processor.read_images(draw_pictures())
    values = unpack_images(packed)["pixel_values"]
    factor = images.rescale_factor if images.do_rescale else 1.0
    mean = np.array(images.image_mean) if images.do_normalize else np.zeros(3)
    std = np.array(images.image_std) if images.do_normalize else np.ones(3)
    scale = (factor / std).astype(np.float32)
    shift = (-mean / std).astype(np.float32)
    for number, picture in enumerate(draw_pictures()):
        pixels = processor.resizing.read(picture)
        height, width, _ = pixels.shape
        expected = np.zeros(values.shape[1:], dtype=np.float32)
        scaled = pixels.astype(np.float32) * scale + shift
        expected[:, :height, :width] = scaled.transpose(2, 0, 1)
        assert values[number].numpy().tobytes() == expected.tobytes()


def test_images_leave_a_worker_as_bytes(inputs):
    packed = inputs.read_images(draw_pictures())
    pixels = packed.pop("pixels")
    assert pixels.dtype == torch.uint8
    assert packed["pixel_sizes"][0].tolist() == [32, 48]
    # of every image: two sizes, three factors, three summands
    assert sum(tensor.nbytes for tensor in packed.values()) == 6 * (2 * 8 + 6 * 4)
    # four bytes of each value and one of the mask would have left
    assert unpack_images({"pixels": pixels, **packed})["pixel_values"].nbytes == 4 * pixels.nbytes


def test_input_that_transformers_made_is_taken_as_it_is(inputs):
    made = dict(inputs.images(draw_pictures(), return_tensors="pt"))
    assert unpack_images(made) is made


def test_grey_and_palette_pictures_become_colour(inputs):
    picture = Image.effect_noise((40, 40), 60)
    read = inputs.read_images([picture, picture.convert("RGB"), picture.convert("RGBA")])["pixels"]
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[0], read[2])


def test_a_very_long_picture_keeps_one_row_of_patches(inputs):
    read = inputs.read_images([Image.new("RGB", (2000, 10), "red")])
    assert read["pixels"].shape[1] == PATCH
    features = ViltEncoder(make_model()).eval()({**inputs.read_texts(["red"]), **read})
    assert torch.isfinite(features).all()


def test_inputs_survive_the_way_to_a_worker(inputs):
    again = pickle.loads(pickle.dumps(inputs))
    images = [Image.new("RGB", (50, 40), "green")]
    assert_close(again.read_texts(["a red square"]), inputs.read_texts(["a red square"]))
    assert_close(again.read_images(images), inputs.read_images(images))


def test_a_hub_without_an_address_is_not_asked_again_and_again(tmp_path):
    """Names that end in .invalid have no address anywhere. Its library would say that it is
    retrying."""
    code = (
        "from mcit.config.schema import ModelConfig; from mcit.models.vilt import load_vilt; "
        "load_vilt('nobody/vilt', ModelConfig())"
    )
    environment = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    environment |= {
        "HF_ENDPOINT": "https://hub.invalid",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "DataError: nobody/vilt: no checkpoint" in done.stderr
    assert "give a hub name, or a folder with config.json, model.safetensors" in done.stderr
    assert "or take the small ViLT that ships with mcit: --set model.name=embedded" in done.stderr
    assert "Retrying" not in done.stderr
