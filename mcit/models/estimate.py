"""What a generative model will take, from its configuration alone: nothing is loaded or downloaded.

The network is built on the meta device, where weights have shapes and no values. With n weights, of
which t train, and rows of s tokens,

    weights       their bytes as they are stored
    training      4 t for gradients, 8 t for AdamW, and what the method holds
    activations   17 s width bytes per layer, without the scores of attention, which fused kernels
                  do not store (Korthikanti et al., 2022, https://arxiv.org/abs/2205.05198); one
                  layer's, and the inputs of all, with gradient checkpointing
    step          2 n s for the forward pass, 2 n s for the gradients of activations, 2 t s for
                  those of weights, and one more forward pass with gradient checkpointing

These are estimates: expect them to be off by a third.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig

from mcit.config.schema import ModelConfig
from mcit.errors import DataError
from mcit.models.generative import (
    DTYPES,
    GenerativeBackbone,
    GenerativeLearner,
    find_loader,
)
from mcit.models.generative_inputs import FILES, GenerativeInputs
from mcit.models.pretrained import first_line

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# bytes of activations that a layer keeps for every number of its input, in units of its precision
PER_LAYER = 17
# share of a matrix product's speed that training reaches
UTILIZATION = 0.4


def has_weights(name: str) -> bool:
    """Whether the weights of a checkpoint are on this machine."""
    if Path(name).is_dir():
        return any((Path(name) / file).is_file() for file in WEIGHTS)
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in WEIGHTS)


def build_empty(config: ModelConfig) -> GenerativeLearner:
    """Return the learner of a configuration without values: only its shapes can be asked for."""
    try:
        found = AutoConfig.from_pretrained(
            config.name, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{config.name}: no configuration on this machine ({first_line(error)}); {FILES}"
        ) from error
    loader = find_loader(config.name, found)
    reads_images = "ImageTextToText" in loader.__name__
    inputs = GenerativeInputs.from_pretrained(config.name, found, reads_images, config.images)
    with torch.device("meta"):
        model = loader.from_config(found, dtype=DTYPES[config.dtype])
        backbone = GenerativeBackbone(model, reads_images)
        backbone.choose_trained(config.trained, config.lora.rank > 0)
        if config.lora.rank > 0:
            backbone.add_adapter("default", config.lora)
    return GenerativeLearner(backbone, inputs)


@dataclass(frozen=True)
class Footprint:
    """The size of a model, and what rows of a number of tokens take."""

    weights: int
    trained: int
    weight_bytes: int
    layers: int
    width: int
    vocabulary: int
    # bytes of a number between layers
    precision: int
    checkpointing: bool

    @classmethod
    def of(cls, learner: GenerativeLearner, config: ModelConfig) -> Footprint:
        """Return the footprint of a learner, which may be empty."""
        text: Any = learner.encoder.model.config.get_text_config()
        parameters = list(learner.parameters())
        return cls(
            weights=sum(p.numel() for p in parameters),
            trained=sum(p.numel() for p in parameters if p.requires_grad),
            weight_bytes=sum(p.nbytes for p in parameters),
            layers=text.num_hidden_layers,
            width=text.hidden_size,
            vocabulary=text.vocab_size,
            precision=DTYPES[config.dtype].itemsize,
            checkpointing=config.gradient_checkpointing,
        )

    def training_bytes(self, optimizer: str) -> int:
        """Return the bytes of gradients and of the optimizer's state."""
        state = 4 if optimizer == "sgd" else 8
        return (4 + state) * self.trained

    def held_bytes(
        self, optimizer: str, per_weight: int, parts: int = 1, adapted: bool = False
    ) -> dict[str, int]:
        """Return the bytes that a process holds between steps, by what they are for.

        per_weight: What the method holds for each weight that trains. parts: Among how many
        processes weights are divided (FSDP2); adapters and what trains beside them stay whole.
        """
        trained = torch.float32.itemsize * self.trained
        frozen = self.weight_bytes - trained
        own = 1 if adapted else parts
        return {
            "weights": frozen // parts + trained // own,
            "gradients and optimizer": self.training_bytes(optimizer) // own,
            "the method": per_weight * self.trained // own,
        }

    def activation_bytes(self, rows: int, tokens: int, answer: int) -> int:
        """Return the bytes that a step keeps between its passes; answer: tokens with logits."""
        number = rows * tokens * self.width * self.precision
        kept = PER_LAYER * number * self.layers
        if self.checkpointing:
            kept = number * self.layers + PER_LAYER * number
        # logits, their softmax and its gradient
        return kept + 3 * 4 * rows * answer * self.vocabulary

    def step_operations(self, rows: int, tokens: int) -> float:
        """Return the floating-point operations of an optimizer step."""
        passes = 3 if self.checkpointing else 2
        return 2.0 * rows * tokens * (passes * self.weights + self.trained)

    def answer_operations(self, rows: int, tokens: int, new_tokens: int) -> float:
        """Return the floating-point operations of generating answers."""
        return 2.0 * rows * (tokens + new_tokens) * self.weights


@dataclass(frozen=True)
class Speed:
    """How fast this machine is: operations and bytes per second."""

    operations: float
    bytes: float

    @classmethod
    def measure(cls, device: torch.device, dtype: torch.dtype) -> Speed:
        """Return the speed of a matrix product and of a copy, measured for a moment."""
        size = 4096 if device.type == "cuda" else 512
        left = torch.ones(size, size, device=device, dtype=dtype)
        product = _time(lambda: left @ left, device)
        copied = torch.ones(2**24, device=device)
        copying = _time(copied.clone, device)
        return cls(2.0 * size**3 / product, 2.0 * copied.nbytes / copying)

    def train(self, operations: float) -> float:
        """Return the seconds of so many operations."""
        return operations / (UTILIZATION * self.operations)

    def generate(self, footprint: Footprint, rows: int, tokens: int, new_tokens: int) -> float:
        """Return the seconds of generating a batch: every new token reads all weights once."""
        computed = self.train(footprint.answer_operations(rows, tokens, new_tokens))
        return computed + new_tokens * footprint.weight_bytes / self.bytes


def _time(work: Any, device: torch.device) -> float:
    """Return the seconds of one call, the best of a few."""
    best = float("inf")
    for _ in range(4):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best
