"""Tiny language and vision-language models, with batches of prompts, answers and images."""

from __future__ import annotations

from collections.abc import Callable

import peft
import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 40
IMAGE = 39
PAD = 0
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
LLAMA |= {
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
}
CLIP = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
CLIP |= {"image_size": 16, "patch_size": 8}

Batch = dict[str, Tensor]


def make_rows(lengths: list[tuple[int, int]], side: str, images: int = 0, tokens: int = 4) -> Batch:
    """Rows of image places, a prompt and an answer; only the answer has labels."""
    generator = torch.Generator().manual_seed(len(lengths))
    longest = images * tokens + max(prompt + answer for prompt, answer in lengths)
    ids = torch.full((len(lengths), longest), PAD)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(lengths):
        text = torch.randint(1, VOCABULARY - 2, (prompt + answer,), generator=generator)
        whole = torch.cat([torch.full((images * tokens,), IMAGE), text])
        start = longest - len(whole) if side == "left" else 0
        ids[row, start : start + len(whole)] = whole
        mask[row, start : start + len(whole)] = 1
        first = start + len(whole) - answer
        labels[row, first : first + answer] = ids[row, first : first + answer]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


LENGTHS = [(3, 2), (5, 1), (2, 4), (4, 3)]


def with_images(images: int = 1, tokens: int = 4, side: str = "left") -> Batch:
    batch = make_rows(LENGTHS, side, images, tokens)
    batch["pixel_values"] = torch.randn(images * len(LENGTHS), 3, 16, 16)
    return batch


def llama() -> tuple[nn.Module, Batch]:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), make_rows(
        LENGTHS, "left"
    )


def gpt2() -> tuple[nn.Module, Batch]:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64
    )
    return transformers.GPT2LMHeadModel(config), make_rows(LENGTHS, "right")


def t5() -> tuple[nn.Module, Batch]:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=PAD,
    )
    batch = make_rows(LENGTHS, "right")
    labels = torch.full((len(LENGTHS), 4), -100)
    for row, (_, answer) in enumerate(LENGTHS):
        labels[row, :answer] = torch.randint(1, VOCABULARY, (answer,))
    batch["labels"] = labels
    return transformers.T5ForConditionalGeneration(config), batch


def llava(images: int = 1, side: str = "left") -> tuple[nn.Module, Batch]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP),
        text_config=transformers.LlamaConfig(**LLAMA),
        image_token_index=IMAGE,
    )
    return transformers.LlavaForConditionalGeneration(config), with_images(images, side=side)


def smolvlm() -> tuple[nn.Module, Batch]:
    config = transformers.SmolVLMConfig(
        vision_config={**CLIP, "model_type": "smolvlm_vision"},
        text_config={**LLAMA, "model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=1,
        tie_word_embeddings=False,
    )
    batch = with_images()
    batch["pixel_values"] = batch["pixel_values"][:, None]
    return transformers.SmolVLMForConditionalGeneration(config), batch


def qwen() -> tuple[nn.Module, Batch]:
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 24,
        "out_hidden_size": 16,
    }
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 8}
    text = {
        **LLAMA,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    }
    config = transformers.Qwen2_5_VLConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE
    )
    batch = make_rows(LENGTHS, "left", images=1)
    batch["pixel_values"] = torch.randn(len(LENGTHS) * 16, 3 * 2 * 4 * 4)
    batch["image_grid_thw"] = torch.tensor([[1, 4, 4]] * len(LENGTHS))
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    return transformers.Qwen2_5_VLForConditionalGeneration(config), batch


def paligemma() -> tuple[nn.Module, Batch]:
    text = {**LLAMA, "model_type": "gemma", "head_dim": 8}
    config = transformers.PaliGemmaConfig(
        vision_config={**CLIP, "model_type": "siglip_vision_model"},
        text_config=text,
        image_token_index=IMAGE,
        projection_dim=16,
    )
    batch = with_images()
    batch["token_type_ids"] = (batch["labels"] != -100).long()
    return transformers.PaliGemmaForConditionalGeneration(config), batch


def internvl() -> tuple[nn.Module, Batch]:
    config = transformers.InternVLConfig(
        vision_config={
            **CLIP,
            "model_type": "internvl_vision",
            "image_size": [16, 16],
            "patch_size": [8, 8],
        },
        text_config={**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
        image_token_id=IMAGE,
        downsample_ratio=0.5,
    )
    return transformers.InternVLForConditionalGeneration(config), with_images(tokens=1)


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "llama": llama,
    "gpt2": gpt2,
    "t5": t5,
    "llava": llava,
    "smolvlm": smolvlm,
    "qwen": qwen,
    "paligemma": paligemma,
    "internvl": internvl,
}


def build(name: str, **options) -> tuple[nn.Module, Batch]:
    """Return a model in eval mode, with weights far from their start, and its batch."""
    torch.manual_seed(5)
    model, batch = MODELS[name](**options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval(), batch


def add_lora(model: nn.Module) -> nn.Module:
    """Return the model with LoRA on linear layers of its language model, B far from zero."""
    layers = r"(?!.*vision).*(language_model|text_model|model)\.layers\.\d+\.(self_attn|mlp)"
    targets = rf"{layers}\.(q_proj|v_proj|up_proj|down_proj)"
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return adapted.eval()
