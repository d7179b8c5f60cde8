"""ViLT: one deterministic encoder pass for every shape of task.

Kim et al., ViLT: Vision-and-language transformer without convolution or region supervision, ICML
2021, https://arxiv.org/abs/2102.03334

Differs from transformers' ViltModel: nothing is drawn at random but dropout, where its image
embedding draws even in eval mode; a third modality embedding marks the second image of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViltModel

from mcit.config.schema import ModelConfig
from mcit.errors import DataError
from mcit.models.backbone import Backbone, Layer
from mcit.models.pretrained import FILES, load_weights, read_config
from mcit.models.vilt_inputs import OR_EMBEDDED, ViltInputs, unpack_images
from mcit.task import Batch

if TYPE_CHECKING:
    from transformers.models.vilt.modeling_vilt import ViltEmbeddings


def load_vilt(name: str, config: ModelConfig) -> tuple[ViltEncoder, ViltInputs]:
    """Return the encoder and the inputs of a checkpoint: a hub name or a local folder.

    Every weight of the encoder comes from the checkpoint, or a DataError says which do not.
    """
    found = read_config(name, f"{FILES}, {OR_EMBEDDED}")
    if found.model_type != "vilt":
        raise DataError(
            f"{name}: config.json describes a {found.model_type!r} model where 'vilt' is needed"
        )
    inputs = ViltInputs.from_pretrained(name, found)
    parts = ("embeddings.", "encoder.", "layernorm.", "pooler.")
    vilt = load_weights(ViltModel, name, found, parts=parts, attn_implementation="eager")
    encoder = ViltEncoder(vilt)
    if config.gradient_checkpointing:
        vilt.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return encoder, inputs


class ImageEmbeddings(nn.Module):
    """Transformers' ViltEmbeddings, parameter for parameter, with another forward.

    Its own two parameters, the image [CLS] token and the position grid, are used in the module that
    owns them, image by image, so that per-example gradients can be taken there. Its submodules are
    called by `ViltEncoder`.
    """

    def __init__(self, embeddings: ViltEmbeddings):
        super().__init__()
        self.text_embeddings = embeddings.text_embeddings
        self.cls_token = embeddings.cls_token  # [1, 1, width]
        self.patch_embeddings = embeddings.patch_embeddings
        self.position_embeddings = embeddings.position_embeddings  # [1, 1 + cells, width]
        self.token_type_embeddings = embeddings.token_type_embeddings
        self.dropout = embeddings.dropout

    def forward(self, patches: Tensor, weights: Tensor) -> Tensor:
        """Return tokens [images, 1 + length, width] of patches [images, length, width].

        weights: of the position grid's cells for every patch [images, length, cells].
        """
        images = len(patches)
        cls_tokens = self.cls_token.expand(images, -1, -1)
        tokens = torch.cat([cls_tokens, patches], dim=1)  # [images, 1 + length, width]
        first = self.position_embeddings[:, :1].expand(images, -1, -1)  # [images, 1, width]
        # [images, length, width]
        placed = weights.to(tokens.dtype) @ self.position_embeddings[0, 1:]
        positions = torch.cat([first, placed.to(tokens.dtype)], dim=1)
        return self.dropout(tokens + positions)


class ViltEncoder(Backbone):
    """Features [batch, views, width]: one view per image of a pair, or per choice of text.

    All views go through the encoder together, rows example-major. `vilt` stays a `ViltModel` that
    `save_pretrained` can write; it is this encoder that should be called, not `vilt` itself.
    """

    reads = frozenset({"images", "texts"})
    lora_targets = ("query", "value")

    def __init__(self, vilt: ViltModel):
        super().__init__()
        config = vilt.config
        if vilt.pooler is None:
            raise ValueError("the ViltModel has no pooler; build it with add_pooling_layer=True")
        if config.max_image_length >= 0:
            raise ValueError(
                f"max_image_length is {config.max_image_length}: patches would be dropped at "
                "random; set it to -1"
            )
        self.vilt = vilt
        self.width: int = config.hidden_size
        # the configuration of transformers allows for pairs, its ViLT does not
        self.grid = cast(int, config.image_size) // cast(int, config.patch_size)
        if not isinstance(vilt.embeddings, ImageEmbeddings):
            vilt.register_module("embeddings", ImageEmbeddings(vilt.embeddings))
        _grow_modalities(vilt)

    def network(self) -> nn.Module:
        return self.vilt

    def layers(self) -> Sequence[Layer]:
        below = "vilt.embeddings."
        images = tuple(
            below + name for name in ("cls_token", "patch_embeddings", "position_embeddings")
        )
        found = [
            Layer("text embeddings", (f"{below}text_embeddings",), "text", "embeddings"),
            Layer("image embeddings", images, "image", "embeddings"),
            Layer("modality embeddings", (f"{below}token_type",), "fusion", "embeddings"),
        ]
        for number in range(len(self.vilt.encoder.layer)):
            found.append(Layer(f"layer {number}", (f"vilt.encoder.layer.{number}.",), "fusion"))
        found.append(Layer("final norm", ("vilt.layernorm.",), "fusion", "top"))
        found.append(Layer("pooler", ("vilt.pooler.",), "fusion", "top"))
        return found

    def forward(self, batch: Batch) -> Tensor:
        """Return pooled features [batch, views, width]."""
        batch = unpack_images(batch)
        pooled = self.vilt.get_submodule("pooler")(self.encode(batch))  # [rows, width]
        examples = min(len(batch["input_ids"]), len(batch["pixel_values"]))
        return pooled.view(examples, -1, self.width)

    def encode(self, batch: Batch) -> Tensor:
        """Return final states [rows, length, width]: words, the image's [CLS], its patches."""
        batch = unpack_images(batch)
        words = len(batch["input_ids"])
        images = len(batch["pixel_values"])
        texts = self.embed_texts(batch["input_ids"])
        text_mask = batch["attention_mask"]
        patches, patch_mask = self.embed_images(batch["pixel_values"], batch["pixel_mask"])
        # [images, 1]: 1 for an image, 2 for the second of a pair
        kinds = patch_mask.new_ones(images, 1)
        if images > words:
            _check_divides("images", images, "texts", words)
            kinds = self._number_images(images // words, words, kinds)
            texts = texts.repeat_interleave(images // words, dim=0)
            text_mask = text_mask.repeat_interleave(images // words, dim=0)
        elif words > images:
            _check_divides("texts", words, "images", images)
            patches = patches.repeat_interleave(words // images, dim=0)
            patch_mask = patch_mask.repeat_interleave(words // images, dim=0)
            kinds = kinds.repeat_interleave(words // images, dim=0)
        # [rows, length]
        kinds = torch.cat([torch.zeros_like(text_mask), kinds.expand_as(patch_mask)], dim=1)
        states = torch.cat([texts, patches], dim=1)  # [rows, length, width]
        states = states + self.vilt.embeddings.token_type_embeddings(kinds)
        mask = _to_additive(torch.cat([text_mask, patch_mask], dim=1), states.dtype)
        states = self.vilt.encoder(states, attention_mask=mask).last_hidden_state
        return self.vilt.layernorm(states)

    def embed_texts(self, input_ids: Tensor) -> Tensor:
        """Return word embeddings [rows, length, width], without the modality's."""
        rows, length = input_ids.shape
        limit = self.vilt.config.max_position_embeddings
        if length > limit:
            raise ValueError(
                f"texts of {length} tokens, but the model has {limit} text positions; truncate them"
            )
        # expanded to every row: a [1, length] lookup would hide which example a gradient came from
        positions = torch.arange(length, device=input_ids.device).expand(rows, length)
        return self.vilt.embeddings.text_embeddings(input_ids=input_ids, position_ids=positions)

    def embed_images(self, pixel_values: Tensor, pixel_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return image tokens [images, 1 + longest, width] and which are real [images, 1 +
        longest].

        Each image's patches come first, row by row of its own size, whatever canvas the batch was
        padded to.
        """
        # [images, width, rows, columns]
        patches = self.vilt.embeddings.patch_embeddings(pixel_values)
        columns = patches.shape[-1]
        # [images, rows, columns]
        mask = F.interpolate(pixel_mask[:, None].float(), size=patches.shape[-2:])[:, 0]
        height = mask[:, :, :1].sum(dim=1).long()  # [images, 1]
        width = mask[:, :1, :].sum(dim=2).long()  # [images, 1]
        longest = int((height * width).max())
        slot = torch.arange(longest, device=patches.device)
        slot = slot.expand(len(patches), longest)  # [images, longest]
        valid = slot < height * width
        row = slot // width.clamp(min=1)
        column = slot % width.clamp(min=1)
        source = torch.where(valid, row * columns + column, 0)
        source = source[..., None].expand(-1, -1, self.width)
        patches = patches.flatten(2).transpose(1, 2).gather(1, source)  # [images, longest, width]
        vertical = _bilinear_weights(row, height, self.grid)[..., :, None]
        horizontal = _bilinear_weights(column, width, self.grid)[..., None, :]
        tokens = self.vilt.embeddings(patches, (vertical * horizontal).flatten(2))
        always = valid.new_ones(len(valid), 1)
        return tokens, torch.cat([always, valid], dim=1).long()

    def _number_images(self, views: int, texts: int, kinds: Tensor) -> Tensor:
        """Return the modality of each image: 1, 2, 1, 2, ... for pairs."""
        known = self.vilt.config.modality_type_vocab_size - 1
        if views > known:
            raise ValueError(f"{views} images per text, but the model can tell only {known} apart")
        numbers = torch.arange(1, views + 1, device=kinds.device, dtype=kinds.dtype)
        return numbers.repeat(texts)[:, None]


def _grow_modalities(vilt: ViltModel) -> None:
    """Give the model three modality types: text, image, second image.

    The third is a copy of the second if the checkpoint has two. It is added for every order of
    tasks, so that the shapes in a checkpoint never depend on the task list.
    """
    old = vilt.embeddings.token_type_embeddings
    if old.num_embeddings >= 3:
        return
    weight = torch.cat([old.weight.data, old.weight.data[1:2]])  # [3, width]
    grown = nn.Embedding.from_pretrained(weight, freeze=not old.weight.requires_grad)
    vilt.embeddings.token_type_embeddings = grown
    vilt.config.modality_type_vocab_size = grown.num_embeddings


def _bilinear_weights(index: Tensor, size: Tensor, grid: int) -> Tensor:
    """Return weights [images, length, grid] that stretch a grid over `size` patches."""
    # [images, length], in units of the grid
    place = index * ((grid - 1) / (size - 1).clamp(min=1))
    cells = torch.arange(grid, device=index.device)
    return (1 - (place[..., None] - cells).abs()).clamp(min=0)


def _to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of ones and zeros as what is added to attention scores [rows, 1, 1, length]."""
    return (1 - mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def _check_divides(many: str, count: int, few: str, rows: int) -> None:
    if rows == 0 or count % rows:
        raise ValueError(f"{count} {many} cannot be divided evenly over {rows} {few}")
