"""Texts and images as ViLT's tensors, made in loader workers by a checkpoint's settings.

Images travel as bytes and become numbers on the device, see `unpack_images`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, ViltConfig
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.data.image_cache import PreparedPicture
from mcit.data.resizing import Resizing
from mcit.errors import DataError
from mcit.models.pretrained import FILES, first_line, is_local
from mcit.task import Batch

OR_EMBEDDED = "or take the small ViLT that ships with mcit: --set model.name=embedded"
# ids of a vocabulary that may stand for nothing: some models round its size up for speed
_MOST_UNUSED = 128


class ViltInputs:
    """Makes tensors of texts and images; picklable, for loader workers."""

    def __init__(self, tokenizer: Any, images: ViltImageProcessorPil, limit: int):
        self.tokenizer = tokenizer
        self.images = images
        # tokens per text, [CLS] and [SEP] included
        self.limit = limit

    @classmethod
    def from_pretrained(cls, name: str, config: ViltConfig) -> ViltInputs:
        """Return tokenizer and image settings of a checkpoint, if they fit `config`."""
        # workers are processes already: the tokenizer's threads would make every fork print a
        # warning
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=is_local(name))
        except (OSError, ValueError) as error:
            reason = first_line(error)
            raise DataError(f"{name}: no tokenizer ({reason}); {FILES}, {OR_EMBEDDED}") from error
        images = read_image_settings(name)
        problems = [*_find_text_misfits(tokenizer, config), *_find_image_misfits(images, config)]
        if problems:
            listed = "; ".join(problems)
            raise DataError(
                f"{name}: the tokenizer or image settings do not fit the checkpoint: {listed}. "
                "Put the tokenizer and preprocessor files that came with the weights in its folder"
            )
        return cls(tokenizer, images, config.max_position_embeddings)

    def save_pretrained(self, folder: Path) -> None:
        """Write the tokenizer and image settings in Hugging Face format."""
        self.tokenizer.save_pretrained(folder)
        self.images.save_pretrained(folder)

    def read_texts(self, texts: Sequence[str] | Sequence[tuple[str, ...]]) -> dict[str, Tensor]:
        """Return `input_ids` and `attention_mask` [texts, longest].

        A text may come in parts, the last of which follows a separator. If there are too many
        tokens, the first part is truncated, then the next, and the last only if it is too long by
        itself.
        """
        whole = [text for text in texts if isinstance(text, str)]
        if whole:
            rows = [self._add_ends(ids[: self.limit - 2]) for ids in self._tokenize(whole)]
        else:
            parts = [self._tokenize(part) for part in zip(*texts, strict=True)]
            rows = [self._join_parts(row) for row in zip(*parts, strict=True)]
        longest = max((len(row) for row in rows), default=0)
        input_ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = torch.tensor(row)
            attention_mask[index, : len(row)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    @property
    def resizing(self) -> Resizing | None:
        """Return how images are resized, None if the checkpoint takes them as they are."""
        return resizing_of(self.images)

    def read_images(self, images: Sequence[Image.Image | PreparedPicture]) -> dict[str, Tensor]:
        """Return images as bytes, with what `unpack_images` needs to make the network's input.

        Bytes are a quarter of the numbers that the network takes, and the sizes stand for the mask:
        this is what leaves a loader's worker and goes to the device.
        """
        resizing = self.resizing
        arrays = [_read_pixels(image, resizing) for image in images]
        sizes = torch.tensor([array.shape[:2] for array in arrays])
        height, width = sizes.amax(dim=0).tolist()
        pixels = torch.zeros(len(arrays), height, width, 3, dtype=torch.uint8)
        for canvas, array in zip(pixels.numpy(), arrays, strict=True):
            rows, columns = array.shape[:2]
            canvas[:rows, :columns] = array
        scale, shift = self._scale_and_shift()
        return {
            "pixels": pixels,
            "pixel_sizes": sizes,
            "pixel_scale": scale.repeat(len(arrays), 1),
            "pixel_shift": shift.repeat(len(arrays), 1),
        }

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"]

    def _add_ends(self, ids: list[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]

    def _join_parts(self, parts: Sequence[list[int]]) -> list[int]:
        room = self.limit - 3
        kept: list[list[int]] = []
        for ids in reversed(parts):
            kept.append(ids[:room])
            room -= len(kept[-1])
        last, *before = kept
        beginning = chain.from_iterable(reversed(before))
        return self._add_ends([*beginning, self.tokenizer.sep_token_id, *last])

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return rescaling and normalization as one factor and one summand, [3] each."""
        scale = torch.ones(3, dtype=torch.float64)
        shift = torch.zeros(3, dtype=torch.float64)
        if self.images.do_rescale:
            scale = scale * self.images.rescale_factor
        if self.images.do_normalize:
            mean = torch.tensor(self.images.image_mean, dtype=torch.float64).expand(3)
            std = torch.tensor(self.images.image_std, dtype=torch.float64).expand(3)
            scale = scale / std
            shift = -mean / std
        return scale.float(), shift.float()


def unpack_images(batch: Batch) -> Batch:
    """Return a batch of `ViltInputs` with the network's input, made on the device that it is on.

    That is `pixel_values` [images, 3, height, width] and `pixel_mask` [images, height, width], as
    ViltImageProcessorPil makes them. A batch that has them already stays as it is.
    """
    if "pixel_values" in batch:
        return batch
    # [images, height, width, 3], uint8
    pixels = batch["pixels"]
    height, width = pixels.shape[1:3]
    rows, columns = batch["pixel_sizes"].unbind(dim=1)
    in_rows = torch.arange(height, device=pixels.device) < rows[:, None]
    in_columns = torch.arange(width, device=pixels.device) < columns[:, None]
    mask = in_rows[:, :, None] & in_columns[:, None, :]
    values = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    values.mul_(batch["pixel_scale"][:, :, None, None])
    values.add_(batch["pixel_shift"][:, :, None, None])
    values.masked_fill_(~mask[:, None], 0)
    return {**batch, "pixel_values": values, "pixel_mask": mask}


def read_image_settings(name: str) -> ViltImageProcessorPil:
    """Return how a checkpoint prepares images, from its preprocessor_config.json."""
    try:
        return ViltImageProcessorPil.from_pretrained(name, local_files_only=is_local(name))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise DataError(f"{name}: no image settings ({reason}); {FILES}, {OR_EMBEDDED}") from error


def resizing_of(images: ViltImageProcessorPil) -> Resizing | None:
    """Return how images are resized, None if they are taken as they are."""
    if not images.do_resize:
        return None
    return Resizing(images.size["shortest_edge"], images.size_divisor, int(images.resample))


def _read_pixels(image: Image.Image | PreparedPicture, resizing: Resizing | None) -> np.ndarray:
    """Return the pixels of an image as the checkpoint wants them, uint8 [height, width, 3]."""
    if isinstance(image, PreparedPicture):
        if resizing is not None:
            return image.read(resizing)
        image = image.open()
    if image.mode != "RGB":
        image = image.convert("RGB")
    if resizing is None:
        return np.array(image)
    return resizing.read(image)


def _find_text_misfits(tokenizer: Any, config: ViltConfig) -> Iterator[str]:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    size = config.vocab_size
    if largest >= size:
        yield f"the tokenizer has ids up to {largest}, the model's vocabulary has {size} words"
    if len(tokenizer.get_vocab()) <= len(set(tokenizer.all_special_ids)):
        # transformers makes up such a tokenizer if files are missing: every word would be unknown
        yield "the tokenizer has no words (is tokenizer.json or vocab.txt missing?)"
    elif size - largest > _MOST_UNUSED:
        yield (
            f"the tokenizer has ids up to {largest} only, the model's vocabulary has {size} words: "
            "it belongs to another model"
        )
    for role in ("pad", "cls", "sep"):
        if getattr(tokenizer, f"{role}_token_id") is None:
            yield f"the tokenizer has no {role} token"
    if config.pad_token_id not in (None, tokenizer.pad_token_id):
        own = tokenizer.pad_token_id
        yield f"the tokenizer pads with id {own}, the model with {config.pad_token_id}"


def _find_image_misfits(images: ViltImageProcessorPil, config: ViltConfig) -> Iterator[str]:
    divisor = images.size_divisor
    if divisor % cast(int, config.patch_size):
        yield (
            f"images are cut to multiples of {divisor} pixels, but patches are "
            f"{config.patch_size} wide"
        )
