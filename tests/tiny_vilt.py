"""A tiny random ViLT with its tokenizer and image settings, and ragged batches for it."""

from __future__ import annotations

import torch
from transformers import BertTokenizer, ViltConfig, ViltModel
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

TEXT = "what colour is the big small red blue circle square left of there a no yes two one answer because"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TEXT.split()]
PATCH = 8
SIZES = [(3, 5), (6, 6), (5, 3), (1, 7), (4, 4), (2, 1)]  # patches high, patches wide


def make_config(**changes) -> ViltConfig:
    settings = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 12,
        "image_size": 4 * PATCH,
        "patch_size": PATCH,
        "pad_token_id": 0,
        "initializer_range": 0.4,
    }
    return ViltConfig(**{**settings, **changes})


def make_model(cls: type = ViltModel, seed: int = 0, **changes):
    torch.manual_seed(seed)
    model = cls(make_config(**changes)).eval()
    with torch.no_grad():  # transformers starts these at zero, where a test would not see them
        vilt = model if cls is ViltModel else model.vilt
        vilt.embeddings.cls_token.normal_()
        vilt.embeddings.position_embeddings.normal_()
    return model


def write_folder(folder, model=None):
    """A checkpoint folder in the format of the hub."""
    (make_model() if model is None else model).save_pretrained(folder)
    BertTokenizer(vocab={word: index for index, word in enumerate(VOCABULARY)}).save_pretrained(
        folder
    )
    ViltImageProcessorPil(size={"shortest_edge": 4 * PATCH}, size_divisor=PATCH).save_pretrained(
        folder
    )
    return str(folder)


def make_texts(rows: int, generator: torch.Generator):
    length = 9
    ids = torch.randint(5, len(VOCABULARY), (rows, length), generator=generator)
    mask = torch.arange(length) < torch.randint(3, length + 1, (rows, 1), generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def make_images(sizes, generator: torch.Generator):
    high, wide = (PATCH * max(size[side] for size in sizes) for side in (0, 1))
    values, mask = (
        torch.zeros(len(sizes), 3, high, wide),
        torch.zeros(len(sizes), high, wide, dtype=torch.long),
    )
    for index, (rows, columns) in enumerate(sizes):
        values[index, :, : rows * PATCH, : columns * PATCH] = torch.randn(
            3, rows * PATCH, columns * PATCH, generator=generator
        )
        mask[index, : rows * PATCH, : columns * PATCH] = 1
    return {"pixel_values": values, "pixel_mask": mask}


def make_batch(text_rows: int, sizes, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return {**make_texts(text_rows, generator), **make_images(sizes, generator)}
