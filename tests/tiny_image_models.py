"""Tiny random image models of several families, saved as the hub has them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    ConvNextConfig,
    ConvNextModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedConfig,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

from mcit.files import write_json

SIDE = 16
TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 4,
}
CONVOLUTIONS = {"hidden_sizes": [4, 8, 8], "depths": [1, 1, 1]}
SMALL_STEM = {"embedding_size": 4, "layer_type": "basic", "downsample_in_first_stage": False}
FAMILIES: dict[str, tuple[type[nn.Module], PreTrainedConfig]] = {
    "vit": (ViTModel, ViTConfig(**TRANSFORMER, intermediate_size=24)),
    "dinov2": (Dinov2Model, Dinov2Config(**TRANSFORMER, mlp_ratio=2)),
    "convnext": (ConvNextModel, ConvNextConfig(**CONVOLUTIONS, num_stages=3, image_size=SIDE)),
    "resnet": (ResNetModel, ResNetConfig(**CONVOLUTIONS, **SMALL_STEM)),
}
# as the families' own processors have them, with numbers that differ from all defaults
PREPROCESSORS = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE}},
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": SIDE + 4},
        "do_center_crop": True,
        "crop_size": {"height": SIDE, "width": SIDE},
    },
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": SIDE}},
    "resnet": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 24}},
}
MEAN = (0.3, 0.4, 0.5)
STD = (0.2, 0.25, 0.3)


def write_image_model(folder: Path, family: str, **settings: object) -> Path:
    """Save a random model of a family with its preprocessor_config.json, changed by `settings`."""
    torch.manual_seed(0)
    model_class, config = FAMILIES[family]
    model_class(config).save_pretrained(folder)
    common = {"do_resize": True, "resample": 2, "do_normalize": True}
    common.update(image_mean=list(MEAN), image_std=list(STD))
    written = {**common, **PREPROCESSORS[family], **settings}
    write_json(folder / "preprocessor_config.json", written)
    return folder


def write_bert(folder: Path) -> Path:
    """Save a random text model."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertModel(BertConfig(vocab_size=20, intermediate_size=8, **sizes)).save_pretrained(folder)
    return folder
