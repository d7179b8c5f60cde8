"""Texts and pictures as the tensors ViLT takes, made in loader workers by the checkpoint's own settings."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import torch
from huggingface_hub.constants import ENDPOINT
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, ViltConfig
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.data.image_cache import PreparedPicture
from mcit.data.resizing import Resizing
from mcit.task import DataError

FILES = (
    "give a hub name or a folder with config.json, model.safetensors, preprocessor_config.json and "
    "tokenizer.json or vocab.txt, or take the small ViLT that ships with mcit: --set model.name=embedded"
)
_MOST_UNUSED = (
    128  # words of a model's vocabulary that stand for nothing: some round it up for speed
)


class ViltInputs:
    """Texts and pictures as tensors; picklable, for loader workers."""

    def __init__(self, tokenizer: Any, images: ViltImageProcessorPil, limit: int):
        self.tokenizer = tokenizer
        self.images = images
        self.limit = limit  # tokens per text, [CLS] and [SEP] included

    @classmethod
    def from_pretrained(cls, name: str, config: ViltConfig | None = None) -> ViltInputs:
        """The tokenizer and image settings of a checkpoint; a DataError where they do not fit its `config`."""
        config = read_config(name) if config is None else config
        # Workers are processes already; the tokenizer's own threads would only make every fork print a warning.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=is_local(name))
            images = ViltImageProcessorPil.from_pretrained(name, local_files_only=is_local(name))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{name}: no tokenizer and image settings ({first_line(error)}); {FILES}"
            ) from error
        problems = [*_misfits(tokenizer, config), *_image_misfits(images, config)]
        if problems:
            raise DataError(
                f"{name}: the tokenizer or image settings do not fit the checkpoint: {'; '.join(problems)}. "
                "Put the tokenizer and preprocessor files that came with the weights into that folder"
            )
        return cls(tokenizer, images, config.max_position_embeddings)

    def read_texts(self, texts: Sequence[str] | Sequence[tuple[str, ...]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` [texts, longest].

        A text may come in parts, the last of which is set off by a separator. Where there are too many tokens, the
        first part is truncated, then the next, and the last only where it is too long by itself.
        """
        if texts and isinstance(texts[0], str):
            rows = [self._frame(ids[: self.limit - 2]) for ids in self._tokenize(texts)]
        else:
            parts = [self._tokenize(part) for part in zip(*texts, strict=True)]
            rows = [self._frame_parts(row) for row in zip(*parts, strict=True)]
        longest = max((len(row) for row in rows), default=0)
        input_ids = torch.full(
            (len(rows), longest), self.tokenizer.pad_token_id
        )  # [texts, longest]
        attention_mask = torch.zeros_like(input_ids)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = torch.tensor(row)
            attention_mask[index, : len(row)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    @property
    def resizing(self) -> Resizing | None:
        """How images are resized; None where the checkpoint takes them as they are."""
        if not self.images.do_resize:
            return None
        return Resizing(
            self.images.size["shortest_edge"], self.images.size_divisor, int(self.images.resample)
        )

    def read_images(self, images: Sequence[Image.Image | PreparedPicture]) -> dict[str, Tensor]:
        """`pixel_values` [images, 3, height, width] and `pixel_mask`, as ViltImageProcessorPil makes them.

        Straight from Pillow into the batch, without the chain of copies that the processor itself makes.
        """
        resizing = self.resizing
        pictures = [_read_pixels(image, resizing) for image in images]
        height, width = (max(picture.shape[side] for picture in pictures) for side in (0, 1))
        pixel_values = torch.zeros(len(pictures), 3, height, width)  # [images, 3, height, width]
        pixel_mask = torch.zeros(
            len(pictures), height, width, dtype=torch.long
        )  # [images, height, width]
        scale, shift = self._affine()
        for index, picture in enumerate(pictures):
            high, wide = picture.shape[:2]
            part = pixel_values[index, :, :high, :wide]
            part.copy_(torch.from_numpy(picture).permute(2, 0, 1)).mul_(scale).add_(shift)
            pixel_mask[index, :high, :wide] = 1
        return {"pixel_values": pixel_values, "pixel_mask": pixel_mask}

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]

    def _frame(self, ids: list[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]

    def _frame_parts(self, parts: Sequence[list[int]]) -> list[int]:
        room, kept = self.limit - 3, []
        for ids in reversed(parts):
            kept.append(ids[:room])
            room -= len(kept[-1])
        last, *lead = kept
        return self._frame(
            [*chain.from_iterable(reversed(lead)), self.tokenizer.sep_token_id, *last]
        )

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Rescaling and normalisation as one multiplication and one addition, [3, 1, 1] each."""
        scale, shift = (
            torch.ones(3, 1, 1, dtype=torch.float64),
            torch.zeros(3, 1, 1, dtype=torch.float64),
        )
        if self.images.do_rescale:
            scale = scale * self.images.rescale_factor
        if self.images.do_normalize:
            mean, spread = (
                torch.tensor(values, dtype=torch.float64).expand(3).view(3, 1, 1)
                for values in (self.images.image_mean, self.images.image_std)
            )
            scale, shift = scale / spread, -mean / spread
        return scale.float(), shift.float()


def is_local(name: str) -> bool:
    """Whether a checkpoint can only be on this machine: it is a folder, or there is no way to the hub."""
    return os.path.isdir(name) or _hub_has_no_address()


@functools.cache
def _hub_has_no_address() -> bool:
    """Whether the hub cannot be reached for want of an address; its library would try again for half a minute.

    With a proxy it is the proxy that knows addresses, so that nothing is known here.
    """
    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except socket.gaierror:
        return True
    return False


def read_resizing(name: str) -> Resizing | None:
    """How a checkpoint resizes images, from its preprocessor_config.json."""
    try:
        images = ViltImageProcessorPil.from_pretrained(name, local_files_only=is_local(name))
        return ViltInputs(None, images, 0).resizing
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: no image settings ({first_line(error)}); {FILES}") from error


def _read_pixels(image: Image.Image | PreparedPicture, resizing: Resizing | None) -> np.ndarray:
    """The pixels of a picture as the checkpoint wants them, uint8 [height, width, 3]."""
    if isinstance(image, PreparedPicture):
        if resizing is not None:
            return image.read(resizing)
        image = image.open()
    image = image if image.mode == "RGB" else image.convert("RGB")
    return np.array(image) if resizing is None else resizing.read(image)


def read_config(name: str) -> ViltConfig:
    """The checkpoint's config.json; a DataError where there is none or it is no ViLT's."""
    try:
        found, _ = ViltConfig.get_config_dict(name, local_files_only=is_local(name))
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: no ViLT checkpoint ({first_line(error)}); {FILES}") from error
    if found.get("model_type") != "vilt":
        raise DataError(
            f"{name}: config.json describes a {found.get('model_type')!r} model where 'vilt' is needed"
        )
    return ViltConfig.from_dict(found)


def _misfits(tokenizer: Any, config: ViltConfig) -> Iterator[str]:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        yield f"the tokenizer has ids up to {largest}, the model's vocabulary has {config.vocab_size} words"
    if len(tokenizer.get_vocab()) <= len(set(tokenizer.all_special_ids)):
        # What transformers makes up where the files are missing: every word would be unknown.
        yield "the tokenizer has no words (is tokenizer.json or vocab.txt missing?)"
    elif config.vocab_size - largest > _MOST_UNUSED:
        yield (
            f"the tokenizer has ids up to {largest} only, the model's vocabulary has {config.vocab_size} words: it is "
            "another one's"
        )
    for role in ("pad", "cls", "sep"):
        if getattr(tokenizer, f"{role}_token_id") is None:
            yield f"the tokenizer has no {role} token"
    if config.pad_token_id not in (None, tokenizer.pad_token_id):
        yield f"the tokenizer pads with id {tokenizer.pad_token_id}, the model with {config.pad_token_id}"


def _image_misfits(images: ViltImageProcessorPil, config: ViltConfig) -> Iterator[str]:
    if images.size_divisor % config.patch_size:
        yield f"images are cut to multiples of {images.size_divisor} pixels, patches are {config.patch_size} wide"


def first_line(error: BaseException) -> str:
    """What an error says first; the libraries' own advice that follows is about their API."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
