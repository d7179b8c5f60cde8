"""Generative models of transformers, which answer in words: vision-language or text only.

Any checkpoint that `AutoModelForImageTextToText` or `AutoModelForCausalLM` opens will do (LLaVA,
SmolVLM, Qwen-VL, InternVL, Llama, ...); safetensors only, no remote code. The vision tower is
frozen. Without adapters the language model and the projector train; with LoRA the adapters do,
which are put next to the linear layers of the language model.

There is no head: all tasks answer by the model's own vocabulary. Logits are computed at the places
of the answers only, and texts are generated greedily, without the sampling that checkpoints often
ask for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from mcit.answer_scores import IGNORED
from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import ConfigError, DataError
from mcit.models.backbone import Backbone, Layer
from mcit.models.generative_inputs import FILES, GenerativeInputs, realign
from mcit.models.learner import Learner
from mcit.models.pretrained import load_weights, read_config
from mcit.task import Batch, Head, Output

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# what a batch holds besides the inputs of the model
_NOT_INPUTS = frozenset({"labels"})


def load_generative(name: str, config: ModelConfig) -> GenerativeLearner:
    """Return the learner of a checkpoint: a hub name or a local folder."""
    found = read_config(name, FILES)
    loader = find_loader(name, found)
    reads_images = loader is AutoModelForImageTextToText
    inputs = GenerativeInputs.from_pretrained(name, found, reads_images, config.images)
    options: dict[str, Any] = {"dtype": DTYPES[config.dtype]}
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    model = load_weights(loader, name, found, **options)
    backbone = GenerativeBackbone(model, reads_images)
    backbone.choose_trained(config.trained, config.lora.rank > 0)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return GenerativeLearner(backbone, inputs)


def find_loader(name: str, config: Any) -> Any:
    """Return the class of transformers that opens a checkpoint of this configuration."""
    kind = config.model_type
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    raise DataError(
        f"{name}: config.json describes a {kind!r} model, which does not answer in words; use one "
        "that AutoModelForImageTextToText opens, such as HuggingFaceTB/SmolVLM-256M-Instruct"
    )


class GenerativeBackbone(Backbone):
    """A language model with, or without, a vision tower and a projector in front of it."""

    reads = frozenset({"images", "texts"})
    entry_methods = ("generate",)

    def __init__(self, model: Any, reads_images: bool = True):
        super().__init__()
        self.model = model
        self.reads_images = reads_images
        self.width = model.config.get_text_config().hidden_size
        # by which parameters' names begin, within the model
        self.parts = _find_parts(model)
        # parts whose own weights train next to adapters
        self.trained: tuple[str, ...] = ()
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        if model.get_output_embeddings() is None:
            raise ValueError(
                f"a {type(model).__name__} does not say which layer computes its logits"
            )
        model.generation_config = _without_sampling(model.generation_config)

    def network(self) -> nn.Module:
        return self.model

    def entry(self) -> nn.Module:
        return self.model

    def choose_trained(self, parts: Sequence[str], adapted: bool) -> None:
        """Let these parts' own weights train; without a choice, what suits the model."""
        if not parts and not adapted:
            parts = ("language", "projector")
        chosen = tuple(prefix for part in parts for prefix in self.parts[part])
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(bool(chosen) and name.startswith(chosen))
        self.trained = tuple(parts) if adapted else ()

    def add_adapter(self, name: str, lora: LoraConfig) -> None:
        training = [p for p in self.parameters() if p.requires_grad]
        super().add_adapter(name, lora)
        # peft freezes all but the adapters; what was asked for by name trains along with them
        if self.trained:
            for parameter in training:
                parameter.requires_grad_(True)

    def forward(self, batch: Batch) -> Tensor:
        """Return features [batch, 1, width]: the state from which the answer begins."""
        return self.answer(batch).features[:, None]

    def answer(self, batch: Batch) -> Output:
        """Return features [batch, width] and logits [batch, answer, vocabulary] of the labels."""
        labels = batch["labels"]
        kept = labels.shape[1] + 1
        inputs = self.select_inputs(batch)
        if self._keeps_logits:
            inputs["logits_to_keep"] = kept
        with _watch_input(self.model.get_output_embeddings()) as states:
            logits = self.model(**inputs, use_cache=False).logits
        first = (labels != IGNORED).int().argmax(dim=1)
        rows = torch.arange(len(labels), device=labels.device)
        # the last place predicts what follows the end mark
        features = states[-1][:, -kept:-1][rows, first]
        return Output(features, logits[:, -kept:-1])

    def generate(self, batch: Batch, new_tokens: int, pad: int, end: Sequence[int]) -> Tensor:
        """Return the tokens [batch, up to new_tokens] that the model writes after the prompts."""
        cut = (batch["labels"] != IGNORED).sum(dim=1)
        prompts = realign(batch, cut, pad)
        ids = self.model.generate(
            **self.select_inputs(prompts, positions=False),
            max_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=pad,
            eos_token_id=list(end),
        )
        return ids[:, prompts["input_ids"].shape[1] :]

    def select_inputs(self, batch: Batch, positions: bool = True) -> dict[str, Any]:
        """Return what the model takes of a batch; texts are numbered from their first token."""
        inputs = {}
        for key, value in batch.items():
            if isinstance(value, Tensor) and key not in _NOT_INPUTS:
                inputs[key] = value
                if value.is_floating_point():
                    inputs[key] = value.to(self.model.dtype)
        if positions and not self.reads_images:
            mask = batch["attention_mask"]
            inputs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return inputs

    def layers(self) -> Sequence[Layer]:
        found: list[Layer] = []
        for part in ("vision", "projector"):
            if self.parts[part]:
                prefixes = tuple(f"model.{prefix}" for prefix in self.parts[part])
                found.append(Layer(part, prefixes, part, "embeddings"))
        blocks, rest = self._find_blocks()
        for number, prefix in enumerate(blocks):
            found.append(Layer(f"layer {number}", (f"model.{prefix}",), "language"))
        for prefix in rest:
            prefixes = (f"model.{prefix}.",)
            if "embed" in prefix:
                found.append(Layer("word embeddings", prefixes, "language", "embeddings"))
            else:
                found.append(Layer(prefix.rpartition(".")[2], prefixes, "language", "top"))
        return found

    def _find_blocks(self) -> tuple[list[str], list[str]]:
        """Return the prefixes of the language model's blocks, and its other modules."""
        blocks: dict[str, None] = {}
        rest: dict[str, None] = {}
        for name, _ in self.model.named_parameters():
            if not name.startswith(self.parts["language"]):
                continue
            match = re.match(r".*?\.(?:layers|h|blocks)\.\d+\.", name)
            if match is not None:
                blocks[match[0]] = None
            else:
                rest[name.rpartition(".")[0]] = None
        return list(blocks), list(rest)

    def find_targets(self, lora: LoraConfig) -> list[str]:
        """Return the full names of linear layers of the language model, and of the projector.

        A name with dots in it is taken as it is; others are looked for in these parts only, since
        vision towers have layers of the same names.
        """
        parts = ["language", "projector"] if lora.projector else ["language"]
        prefixes = tuple(prefix for part in parts for prefix in self.parts[part])
        head = self.model.get_output_embeddings()
        linear: list[str] = []
        for path, module in self.model.named_modules():
            path = path.removesuffix(".base_layer")
            is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
            if is_linear and module is not head and ".lora_" not in path:
                linear.append(path)
        allowed = [path for path in linear if path.startswith(prefixes)]
        if not lora.targets:
            return allowed
        chosen: list[str] = []
        unknown: list[str] = []
        for target in lora.targets:
            pool = linear if "." in target else allowed
            found = [path for path in pool if path == target or path.endswith(f".{target}")]
            chosen += found
            if not found:
                unknown.append(target)
        self.refuse_targets(unknown, [path.rpartition(".")[2] for path in allowed])
        return list(dict.fromkeys(chosen))


class GenerativeLearner(Learner):
    """A generative model; its vocabulary answers all tasks, and `heads` is empty."""

    encoder: GenerativeBackbone
    processor: GenerativeInputs

    def forward(self, batch: Batch, head: Head, extra: Head | None = None) -> Output:
        """Return features [batch, width] and logits [batch, answer, vocabulary]."""
        _check_kind(head)
        if extra is not None:
            raise ValueError(f"no head can stand beside a vocabulary, found {extra.name!r}")
        return self.encoder.answer(batch)

    def predict(self, batch: Batch, head: Head) -> list[str]:
        """Return the texts that are generated greedily."""
        _check_kind(head)
        tokenizer = self.processor.tokenizer
        ids = self.encoder.generate(
            batch, head.new_tokens, tokenizer.pad_token_id, self._end_marks()
        )
        return self.processor.decode(ids.tolist())

    def read_logits(self, logits: Tensor, batch: Batch) -> list[str]:
        """Return the likeliest tokens at the places of the answers, the true ones before them."""
        best = logits.argmax(dim=-1)
        counted = batch["labels"] != IGNORED
        rows = [ids[mask].tolist() for ids, mask in zip(best, counted, strict=True)]
        return self.processor.decode(rows)

    def grow(self, head: Head) -> None:
        """Note the head; a text of more tokens than before may be asked for."""
        _check_kind(head)
        self._known[head.name] = head

    def activate(self, head: Head) -> None:
        """Let the head train: there is nothing to choose from."""
        _check_kind(head)

    def let_train(self, head: Head) -> None:
        """The vocabulary trains with the model, or not at all."""
        _check_kind(head)

    def lacks(self, head: Head) -> bool:
        return self._known.get(head.name) != head

    def classifier_weight(self, head: Head) -> str:
        output = self.encoder.model.get_output_embeddings()
        for name, parameter in self.named_parameters():
            if parameter is output.weight:
                return name
        raise LookupError("the layer that computes the logits has no weight of its own")

    def _end_marks(self) -> list[int]:
        """Return the tokens that end a text: the tokenizer's, and those of the checkpoint."""
        ends = [self.processor.tokenizer.eos_token_id]
        own = self.encoder.model.generation_config.eos_token_id
        if own is not None:
            ends += own if isinstance(own, list) else [own]
        return list(dict.fromkeys(ends))


def _check_kind(head: Head) -> None:
    if head.kind != "text":
        found = f"head {head.name!r} is of kind {head.kind!r}"
        raise ConfigError([f"{found}, and a generative model answers in words"])


@contextmanager
def _watch_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what is given to a module inside."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = module.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def _without_sampling(config: GenerationConfig) -> GenerationConfig:
    """Return only the special tokens of how a checkpoint likes to write."""
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


# names of modules, in the models of transformers
_VISION = re.compile(r"(^|\.)(vision_tower|vision_model|visual|vision_embed_tokens|audio_tower)$")
_PROJECTOR = re.compile(r"(^|\.)(multi_modal_projector|connector|projector|merger|mm_projector)$")


def _find_parts(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the prefixes of parameters of vision tower, projector and language model."""
    vision: list[str] = []
    projector: list[str] = []
    for path, _ in model.named_modules():
        if path.startswith(tuple(vision)) and vision:
            # a projector inside the vision tower, such as Qwen's merger, is still one
            if _PROJECTOR.search(path):
                projector.append(f"{path}.")
            continue
        if _VISION.search(path):
            vision.append(f"{path}.")
        elif _PROJECTOR.search(path):
            projector.append(f"{path}.")
    if not vision:
        return {"vision": (), "projector": (), "language": ("",)}
    language: dict[str, None] = {}
    for name, _ in model.named_parameters():
        if not name.startswith((*vision, *projector)):
            match = re.match(r"(?:.*?\.)?(?:language_model|text_model)\.", name)
            language[match[0] if match else name] = None
    return {
        "vision": tuple(vision),
        "projector": tuple(projector),
        "language": tuple(language),
    }
