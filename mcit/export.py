"""A trained learner as a folder in Hugging Face format, and back.

    config.json, model.safetensors    the backbone, as `save_pretrained` writes it
    adapters/NAME/                    LoRA adapters in peft's format, if there are any
    adapters.json                     which of them act: their changes of the weights are summed
    heads.json, heads.safetensors     the task heads, and what their outputs stand for
    tokenizer and preprocessor files  of backbones that have a processor
    README.md                         a model card with the score table

`load_exported` returns a learner with the same predictions. A ResNet-18, which is not a model of
transformers, has a config.json of its own kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from mcit.config.parse import parse
from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import DataError
from mcit.files import make_folder, read_object, write_json, write_text
from mcit.models.generative import load_generative
from mcit.models.image import load_image_model
from mcit.models.learner import Learner
from mcit.models.lora_experts import count_experts
from mcit.models.lora_pairs import find_acting, use_adapters
from mcit.models.resnet import ResNet, build_resnet
from mcit.models.vilt import load_vilt
from mcit.named_tensors import write_file
from mcit.task import Head

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
HEADS = "heads.json"
HEAD_WEIGHTS = "heads.safetensors"
ADAPTERS = "adapters"
ACTING = "adapters.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# what peft puts before the names of the weights of a wrapped model
PEFT_PREFIX = "base_model.model."
RESNET = "mcit_resnet18"


def export_learner(learner: Learner, folder: Path, card: str, answers: Mapping[str, Any]) -> None:
    """Write a learner to a folder.

    card: the text of README.md. answers: what the outputs of each head stand for, by its name.
    """
    make_folder(folder, "--output")
    if isinstance(learner.encoder, ResNet):
        write_json(folder / CONFIG, {"model_type": RESNET, **learner.encoder.settings})
        _save(learner.encoder.state_dict(), folder / WEIGHTS)
    else:
        _write_network(learner.encoder.network(), folder)
    if learner.processor is not None:
        learner.processor.save_pretrained(folder)
    heads = {}
    for name, head in learner.known_heads.items():
        heads[name] = {**dataclasses.asdict(head), "answers": answers.get(name)}
    write_json(folder / HEADS, heads)
    _save(learner.heads.state_dict(), folder / HEAD_WEIGHTS)
    write_text(folder / "README.md", card)


def load_exported(folder: str | Path) -> Learner:
    """Return the learner that was exported to a folder, in eval mode."""
    folder = Path(folder)
    config = read_object(folder / CONFIG)
    heads = read_object(folder / HEADS)
    if config is None or heads is None:
        raise DataError(f"{folder} holds no exported learner: {CONFIG} or {HEADS} is not valid")
    learner = _read_learner(folder, config, {head["kind"] for head in heads.values()})
    for adapter in sorted((folder / ADAPTERS).glob("*")):
        _read_adapter(learner, adapter)
    acting = read_object(folder / ACTING)
    if acting is not None:
        use_adapters(learner.encoder, acting["acting"])
    for head in heads.values():
        fields = {key: value for key, value in head.items() if key != "answers"}
        learner.grow(parse(Head, fields))
    learner.heads.load_state_dict(load_file(folder / HEAD_WEIGHTS))
    return learner.eval()


def _write_network(network: Any, folder: Path) -> None:
    """Write a transformers model without its adapters, and each adapter by itself."""
    state = {}
    for name, tensor in network.state_dict().items():
        if "lora_" not in name:
            state[name.replace(".base_layer.", ".")] = tensor.contiguous()
    network.save_pretrained(folder, state_dict=state)
    adapters = getattr(network, "peft_config", {})
    if adapters:
        write_json(folder / ACTING, {"acting": find_acting(network)})
    for name, config in adapters.items():
        target = folder / ADAPTERS / name
        target.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(target)
        weights = get_peft_model_state_dict(network, adapter_name=name)
        prefixed = {f"{PEFT_PREFIX}{key}": value for key, value in weights.items()}
        _save(prefixed, target / ADAPTER_WEIGHTS)


def _read_learner(folder: Path, config: Mapping[str, Any], kinds: set[str]) -> Learner:
    kind = config.get("model_type")
    if kind == RESNET:
        settings = {key: value for key, value in config.items() if key != "model_type"}
        encoder = build_resnet(**settings)
        encoder.load_state_dict(load_file(folder / WEIGHTS))
        return Learner(encoder)
    if "text" in kinds:
        return load_generative(str(folder), ModelConfig(name=str(folder)))
    if kind == "vilt":
        return Learner(*load_vilt(str(folder), ModelConfig(name=str(folder))))
    return Learner(*load_image_model(str(folder), ModelConfig(name=str(folder))))


def _read_adapter(learner: Learner, folder: Path) -> None:
    written = read_object(folder / "adapter_config.json") or {}
    prefixed = load_file(folder / ADAPTER_WEIGHTS)
    lora = LoraConfig(
        experts=count_experts(prefixed),
        rank=written["r"],
        alpha=written["lora_alpha"],
        dropout=written["lora_dropout"],
        targets=tuple(sorted(written["target_modules"])),
    )
    learner.add_adapter(folder.name, lora)
    weights = {key.removeprefix(PEFT_PREFIX): value for key, value in prefixed.items()}
    network = learner.encoder.network()
    set_peft_model_state_dict(network, weights, adapter_name=folder.name)


def _save(state: Mapping[str, Tensor], path: Path) -> None:
    write_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, path)
