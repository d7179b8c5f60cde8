"""Image models of transformers as backbones of class-incremental runs: ViT, ConvNeXt, DINOv2, ...

The model is loaded by `AutoModel` from a hub name or a folder. Its feature is what it pools without
weights of a pooler's own: the mean of the last feature map, or of the tokens; else the [CLS] token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoImageProcessor, AutoModel, PreTrainedModel

from mcit.config.schema import ModelConfig
from mcit.errors import DataError
from mcit.files import write_json
from mcit.models.backbone import Backbone, Layer
from mcit.models.pretrained import (
    FILES,
    first_line,
    is_local,
    load_weights,
    quiet_transformers,
    read_config,
)
from mcit.task import Batch

# linear layers of attention, as model families call them
_ATTENTION = ({"query", "value"}, {"q_proj", "v_proj"}, {"qkv"})


@dataclass(frozen=True)
class ImageInputs:
    """How a checkpoint wants its images; picklable, for loader workers."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    # the side of the images, None if they are taken as they are
    size: int | None
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def save_pretrained(self, folder: Path) -> None:
        """Write the image settings in Hugging Face format."""
        settings = {
            "image_processor_type": "ViTImageProcessor",
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "do_resize": self.size is not None,
            "resample": int(Image.Resampling[self.resample.upper()]),
        }
        if self.size is not None:
            settings["size"] = {"height": self.size, "width": self.size}
        write_json(folder / "preprocessor_config.json", settings)

    def resize(self, pixels: Tensor) -> Tensor:
        """Return images [batch, 3, height, width] of the size that the network takes."""
        if self.size is None or pixels.shape[-2:] == (self.size, self.size):
            return pixels
        size = (self.size, self.size)
        resized = F.interpolate(pixels.float(), size=size, mode=self.resample, antialias=True)
        # cubic weights overshoot
        return resized.clamp(0, 255)


class ImageBackbone(Backbone):
    """A transformers image model; features [batch, 1, width]."""

    reads = frozenset({"images"})

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model
        # A pooler with weights, such as ViT's, is trained with a head that is not there any more:
        # the [CLS] token itself is the feature.
        pooler = getattr(model, "pooler", None)
        if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
            model.register_module("pooler", None)
        self.lora_targets = _choose_targets(model)
        self._blocks = _find_blocks(model)
        self.width = self._try_out()

    def network(self) -> nn.Module:
        return self.model

    def forward(self, batch: Batch) -> Tensor:
        return self._compute(batch["pixel_values"]).unsqueeze(1)  # [batch, 1, width]

    def layers(self) -> Sequence[Layer]:
        blocks = [f"model.{path}." for path in self._blocks]
        below: list[str] = []
        above: list[str] = []
        # parameters come in the order of the modules, from bottom to top
        outside = below
        for name, _ in self.named_parameters():
            if name.startswith(tuple(blocks)):
                outside = above
            else:
                outside.append(name)
        found = []
        if below:
            found.append(Layer("embeddings", tuple(below), "embeddings", "embeddings"))
        for number, prefix in enumerate(blocks):
            found.append(Layer(f"block {number}", (prefix,), "blocks"))
        if above:
            found.append(Layer("top", tuple(above), "top", "top"))
        return found

    def _compute(self, pixel_values: Tensor) -> Tensor:
        """Return features [batch, width]."""
        output = self.model(pixel_values=pixel_values)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        states = output.last_hidden_state
        if states.ndim == 4:
            # [batch, channels, height, width]
            return states.mean(dim=(2, 3))
        return states[:, 0]

    def _try_out(self) -> int:
        """Return the number of features; weights that they do not depend on are frozen."""
        size = getattr(self.model.config, "image_size", None) or 64
        if isinstance(size, (list, tuple)):
            size = size[0]
        training = self.model.training
        self.model.eval()
        features = self._compute(torch.zeros(1, self.model.config.num_channels, size, size))
        self.model.train(training)
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # such as the mask token of DINOv2, which weight decay alone would move
            if gradient is None:
                parameter.requires_grad_(False)
        return features.shape[1]


def load_image_model(name: str, config: ModelConfig) -> tuple[ImageBackbone, ImageInputs]:
    """Return the backbone and the image settings of a checkpoint."""
    found = read_config(name)
    model_class = MODEL_MAPPING.get(type(found), None)
    if getattr(model_class, "main_input_name", None) != "pixel_values":
        raise DataError(
            f"{name}: config.json describes a {found.model_type!r} model, which does not read "
            "images alone; class-incremental runs need an image model such as ViT or ConvNeXt"
        )
    inputs = _read_inputs(name)
    model = load_weights(AutoModel, name, found, unused=("pooler.",))
    backbone = ImageBackbone(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return backbone, inputs


def _read_inputs(name: str) -> ImageInputs:
    try:
        with quiet_transformers():
            found = AutoImageProcessor.from_pretrained(name, local_files_only=is_local(name))
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"{name}: no image settings ({first_line(error)}); {FILES}") from error
    settings = found.to_dict()
    mean = (0.0, 0.0, 0.0)
    std = (1.0, 1.0, 1.0)
    if settings.get("do_normalize"):
        mean = tuple(settings["image_mean"])
        std = tuple(settings["image_std"])
    is_cubic = settings.get("resample") == Image.Resampling.BICUBIC
    resample: Literal["bilinear", "bicubic"] = "bicubic" if is_cubic else "bilinear"
    return ImageInputs(mean, std, _find_side(settings), resample)


def _find_side(settings: Mapping[str, Any]) -> int | None:
    """Return the side of the square images that a network takes, None if any will do."""
    if settings.get("do_center_crop"):
        return settings["crop_size"]["height"]
    if not settings.get("do_resize"):
        return None
    size = settings["size"]
    return size.get("height") or size["shortest_edge"]


def _find_blocks(model: nn.Module) -> list[str]:
    """Return the paths of the repeated blocks: the items of the list that holds most weights."""
    best: list[str] = []
    most = 0
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            continue
        weights = sum(p.numel() for p in module.parameters())
        # the outermost list comes first, and a list inside one of its items holds fewer
        if weights > most:
            most = weights
            best = [f"{path}.{number}" for number in range(len(module))]
    if not best:
        raise DataError(
            f"a {type(model).__name__} has no list of blocks, so its layers are unknown"
        )
    return best


def _choose_targets(model: nn.Module) -> tuple[str, ...]:
    """Return the layers for LoRA: query and value, else all linear layers or convolutions."""
    linear = {}
    convolutions = {}
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Linear):
            linear[name] = module
        elif isinstance(module, nn.Conv2d):
            convolutions[name] = module
    for names in _ATTENTION:
        if names <= set(linear):
            return tuple(sorted(names))
    return tuple(sorted(linear or convolutions))
