"""Image models of transformers in class-incremental runs: features, layers, images, whole runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_image_models import FAMILIES, SIDE, STD, write_bert, write_image_model
from tiny_run import configure, learn, moved
from tiny_vilt import make_model, write_folder
from torch.testing import assert_close
from transformers import AutoImageProcessor, AutoModel, ViTConfig, ViTForImageClassification

from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import DataError
from mcit.models.image import load_image_model
from mcit.models.resnet import build_resnet
from mcit.models.vilt import ViltEncoder
from mcit.registry import find_task

SHAPES = find_task("shapes").sequence("5x4", {}, seed=1)[0]
METHODS = {
    "finetune": {},
    "ewc": {"method__strength": 1.0},
    "lwf": {"method__strength": 1.0},
    "freeze_encoder": {},
    "freeze_bottom": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {family: write_image_model(root / family, family) for family in FAMILIES}


def load(folder, **options):
    return load_image_model(str(folder), ModelConfig(name=str(folder), **options))


def draw_images(count=3, side=SIDE, seed=0):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


# Features


@pytest.mark.parametrize("family", ["vit", "dinov2"])
def test_features_of_a_transformer_are_its_cls_token(folders, family):
    encoder, _ = load(folders[family])
    images = draw_images()
    with torch.no_grad():
        expected = AutoModel.from_pretrained(folders[family])(images).last_hidden_state[:, 0]
        found = encoder.eval()({"pixel_values": images})
    assert_close(found, expected[:, None])
    assert encoder.width == 16


def test_features_of_convnext_are_its_normalized_mean_map(folders):
    encoder, _ = load(folders["convnext"])
    oracle = AutoModel.from_pretrained(folders["convnext"])
    images = draw_images()
    with torch.no_grad():
        maps = oracle(images).last_hidden_state
        expected = oracle.layernorm(maps.mean(dim=(2, 3)))
        assert_close(encoder.eval()({"pixel_values": images}), expected[:, None])
    assert encoder.width == 8


def test_features_of_a_resnet_are_its_mean_map(folders):
    encoder, _ = load(folders["resnet"])
    images = draw_images(side=24)
    with torch.no_grad():
        maps = AutoModel.from_pretrained(folders["resnet"]).eval()(images).last_hidden_state
        found = encoder.eval()({"pixel_values": images})
    assert_close(found, maps.mean(dim=(2, 3))[:, None])


def test_a_classifier_s_checkpoint_loads_without_its_head(tmp_path, folders):
    torch.manual_seed(1)
    config = ViTConfig.from_pretrained(folders["vit"])
    model = ViTForImageClassification(config).eval()
    folder = write_image_model(tmp_path, "vit")
    model.save_pretrained(folder)
    encoder, _ = load(folder)
    images = draw_images()
    with torch.no_grad():
        expected = model.vit(images).last_hidden_state[:, :1]
        assert_close(encoder.eval()({"pixel_values": images}), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_that_trains_gets_a_gradient(folders, family):
    encoder, _ = load(folders[family])
    encoder.train()({"pixel_values": draw_images(side=32)[..., :SIDE, :SIDE]}).sum().backward()
    idle = [n for n, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle
    frozen = [name for name, p in encoder.named_parameters() if not p.requires_grad]
    assert frozen == (["model.embeddings.mask_token"] if family == "dinov2" else [])


def test_gradient_checkpointing_changes_no_gradient(folders):
    gradients = []
    for checkpointing in (False, True):
        encoder, _ = load(folders["vit"], gradient_checkpointing=checkpointing)
        encoder.train()({"pixel_values": draw_images()}).square().sum().backward()
        gradients.append({name: p.grad for name, p in encoder.named_parameters()})
    assert_close(*gradients)


# Layers


def build(family, folders):
    if family == "vilt":
        return ViltEncoder(make_model())
    if family == "resnet18":
        return build_resnet(2)
    return load(folders[family])[0]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("family", ["vilt", "resnet18", *FAMILIES])
def test_layers_hold_every_parameter_once(folders, family, rank):
    encoder = build(family, folders)
    if rank:
        encoder.add_adapter("default", LoraConfig(rank=rank))
    for name, _ in encoder.named_parameters():
        holders = [layer.name for layer in encoder.layers() if name.startswith(layer.prefixes)]
        assert len(holders) == 1, (name, holders)


@pytest.mark.parametrize(
    ("family", "blocks"), [("vilt", 2), ("resnet18", 8), ("vit", 3), ("convnext", 3), ("resnet", 3)]
)
def test_embeddings_come_below_the_blocks_and_norms_above(folders, family, blocks):
    encoder = build(family, folders)
    roles = [layer.role for layer in encoder.layers()]
    assert roles == sorted(roles, key=["embeddings", "block", "top"].index)
    assert encoder.count_blocks() == blocks
    assert roles[0] == "embeddings"


@pytest.mark.parametrize("family", ["vilt", "resnet18", *FAMILIES])
def test_the_bottom_is_frozen_block_by_block(folders, family):
    encoder = build(family, folders)
    encoder.freeze_bottom(1)
    blocks = [layer for layer in encoder.layers() if layer.role == "block"]
    bottom = [layer for layer in encoder.layers() if layer.role == "embeddings"] + blocks[:1]
    frozen = tuple(prefix for layer in bottom for prefix in layer.prefixes)
    for name, parameter in encoder.named_parameters():
        assert parameter.requires_grad is not name.startswith(frozen), name


@pytest.mark.parametrize(
    ("family", "kind"),
    [("vit", "attention"), ("dinov2", "attention"), ("convnext", "pwconv"), ("resnet", "conv")],
)
def test_adapters_go_to_attention_else_to_linear_layers_else_to_convolutions(folders, family, kind):
    encoder, _ = load(folders[family])
    encoder.add_adapter("default", LoraConfig(rank=2))
    trained = [name for name, p in encoder.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name and kind in name for name in trained), trained


# Images


@pytest.mark.parametrize(("resample", "name"), [(2, "bilinear"), (3, "bicubic")])
@pytest.mark.parametrize("family", ["vit", "dinov2", "convnext", "resnet"])
def test_images_are_resized_and_normalized_as_the_checkpoint_says(tmp_path, family, resample, name):
    folder = write_image_model(tmp_path, family, resample=resample)
    _, inputs = load(folder)
    side = 24 if family == "resnet" else SIDE
    assert (inputs.size, inputs.resample) == (side, name)
    # no black and no white, where Pillow would clip between its two passes
    pixels = np.random.default_rng(0).integers(64, 192, (32, 32, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    found = SHAPES.read_inputs([picture], [], inputs)["pixel_values"]
    # the whole picture, without the margin that some processors cut off
    normalize = AutoImageProcessor.from_pretrained(folder, do_center_crop=False, do_resize=False)
    small = picture.resize((side, side), Image.Resampling(resample))
    expected = normalize(small, return_tensors="pt")["pixel_values"]
    # Pillow rounds to one of 256 levels in either pass
    level = 1 / 255 / min(STD)
    assert_close(found, expected, atol=1.5 * level, rtol=0)


def test_a_checkpoint_that_asks_for_neither_is_given_the_images_as_they_are(tmp_path):
    folder = write_image_model(tmp_path, "convnext", do_resize=False, do_normalize=False)
    _, inputs = load(folder)
    picture = Image.effect_noise((32, 32), 60)
    found = SHAPES.read_inputs([picture], [], inputs)["pixel_values"]
    assert_close(found[0, 0] * 255, torch.tensor(np.array(picture)).float())


def configure_classes(folder, method, rank=0):
    """A run of two tasks of two classes each."""
    options = {
        "model": {"name": str(folder), "lora": {"rank": rank}},
        "tasks__shapes__classes": 4,
        "tasks__shapes__recipe__learning_rate": 0.01,
    }
    return configure("shapes:2x2", method, **options, **METHODS[method])


# Refusals


@pytest.mark.parametrize(("kind", "write"), [("bert", write_bert), ("vilt", write_folder)])
def test_a_model_of_another_kind_is_refused_with_one_message(tmp_path, kind, write):
    write(tmp_path / kind)
    with pytest.raises(DataError) as caught:
        learn(configure_classes(tmp_path / kind, "finetune"), tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path / kind}: config.json describes a '{kind}' model, which does not read images "
        "alone; class-incremental runs need an image model such as ViT or ConvNeXt"
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_without_image_settings_is_named(tmp_path):
    folder = write_image_model(tmp_path, "vit")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match=f"{folder}: no image settings"):
        load(folder)


# Runs


def is_statistic(name):
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_of_classes_is_learned_by_any_family_and_method(
    folders, tmp_path, family, method, rank
):
    run = learn(configure_classes(folders[family], method, rank), tmp_path)
    assert [len(row) for row in run.rows] == [1, 2]
    changed = {name for name in moved(run.states[0], run.state) if name.startswith("encoder.")}
    learned = {name for name in changed if not is_statistic(name)}
    if method == "freeze_encoder":
        assert not learned
    else:
        assert learned
    if rank:
        assert all("lora_" in name for name in learned)
