"""ViLT as mcit runs it: one deterministic encoder pass for every shape of task, every weight accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import ViltConfig, ViltModel
from transformers.utils import logging

from mcit.config import ConfigError, LoraConfig, suggest
from mcit.models.vilt_inputs import FILES, ViltInputs, first_line, is_local, read_config
from mcit.task import Batch, DataError

__all__ = ["ViltEncoder", "ViltInputs", "load_vilt"]

_PARTS = ("embeddings.", "encoder.", "layernorm.", "pooler.")


def load_vilt(
    name: str, gradient_checkpointing: bool = False, lora: LoraConfig | None = None
) -> tuple[ViltEncoder, ViltInputs]:
    """The encoder and the inputs of a checkpoint: a hub name or a local folder, safetensors only, no remote code.

    Every weight of the encoder comes from the checkpoint, or a DataError says which do not.
    """
    config = read_config(name)
    inputs = ViltInputs.from_pretrained(name, config)
    encoder = ViltEncoder(_read_weights(name, config))
    if gradient_checkpointing:
        encoder.vilt.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    if lora is not None and lora.rank > 0:
        _add_lora(encoder.vilt, lora)
    return encoder, inputs


class ImageEmbeddings(nn.Module):
    """Transformers' ViltEmbeddings, parameter for parameter, whose forward is what its own two parameters do.

    Those two, the image [CLS] token and the position grid, are thereby used in the module that owns them, image row
    by image row, so that per-example gradients can be taken there. Its submodules are called by `ViltEncoder`.
    """

    def __init__(self, embeddings: nn.Module):
        super().__init__()
        self.text_embeddings = embeddings.text_embeddings
        self.cls_token = embeddings.cls_token  # [1, 1, width]
        self.patch_embeddings = embeddings.patch_embeddings
        self.position_embeddings = embeddings.position_embeddings  # [1, 1 + cells, width]
        self.token_type_embeddings = embeddings.token_type_embeddings
        self.dropout = embeddings.dropout

    def forward(self, patches: Tensor, weights: Tensor) -> Tensor:
        """Tokens [images, 1 + length, width] of patches [images, length, width], each placed by weights over cells."""
        images = len(patches)
        tokens = torch.cat(
            [self.cls_token.expand(images, -1, -1), patches], dim=1
        )  # [images, 1 + length, width]
        first = self.position_embeddings[:, :1].expand(images, -1, -1)  # [images, 1, width]
        placed = (
            weights.to(tokens.dtype) @ self.position_embeddings[0, 1:]
        )  # [images, length, width]
        return self.dropout(tokens + torch.cat([first, placed.to(tokens.dtype)], dim=1))


class ViltEncoder(nn.Module):
    """Features [batch, views, width] of a batch: one view per image of a pair, or per choice of text.

    All views go through the encoder together, rows example-major. Nothing here draws random numbers but dropout,
    where transformers' own image embedding draws them even in eval. `vilt` stays a `ViltModel` that can be saved with
    `save_pretrained`; it is this encoder that should be called, not `vilt` itself.
    """

    def __init__(self, vilt: ViltModel):
        super().__init__()
        config = vilt.config
        if vilt.pooler is None:
            raise ValueError("the ViltModel has no pooler; build it with add_pooling_layer=True")
        if config.max_image_length >= 0:
            raise ValueError(
                f"max_image_length is {config.max_image_length}: patches would be dropped at random; set it to -1"
            )
        self.vilt = vilt
        self.width: int = config.hidden_size
        self.grid: int = config.image_size // config.patch_size
        if not isinstance(vilt.embeddings, ImageEmbeddings):
            vilt.embeddings = ImageEmbeddings(vilt.embeddings)
        _grow_modalities(vilt)

    def forward(self, batch: Batch) -> Tensor:
        """Pooled features [batch, views, width]."""
        pooled = self.vilt.pooler(self.encode(batch))  # [rows, width]
        examples = min(len(batch["input_ids"]), len(batch["pixel_values"]))
        return pooled.view(examples, -1, self.width)

    def encode(self, batch: Batch) -> Tensor:
        """Final states [rows, length, width]: the words first, then the image's [CLS] and its patches."""
        words, images = len(batch["input_ids"]), len(batch["pixel_values"])
        texts, text_mask = self.embed_texts(batch["input_ids"]), batch["attention_mask"]
        pictures, picture_mask = self.embed_images(batch["pixel_values"], batch["pixel_mask"])
        kinds = picture_mask.new_ones(
            images, 1
        )  # [images, 1]: 1 for an image, 2 for the second of a pair
        if images > words:
            kinds = self._number_images(words, images, kinds)
            texts, text_mask = (_repeat(part, images // words) for part in (texts, text_mask))
        elif words > images:
            _whole("texts", words, "images", images)
            pictures, picture_mask, kinds = (
                _repeat(part, words // images) for part in (pictures, picture_mask, kinds)
            )
        kinds = torch.cat(
            [torch.zeros_like(text_mask), kinds.expand_as(picture_mask)], dim=1
        )  # [rows, length]
        states = torch.cat([texts, pictures], dim=1)  # [rows, length, width]
        states = states + self.vilt.embeddings.token_type_embeddings(kinds)
        mask = _additive(torch.cat([text_mask, picture_mask], dim=1), states.dtype)
        states = self.vilt.encoder(states, attention_mask=mask).last_hidden_state
        return self.vilt.layernorm(states)

    def embed_texts(self, input_ids: Tensor) -> Tensor:
        """Word embeddings [rows, length, width], without the modality's."""
        rows, length = input_ids.shape
        limit = self.vilt.config.max_position_embeddings
        if length > limit:
            raise ValueError(
                f"texts of {length} tokens where the model has {limit} text positions; truncate them"
            )
        # Expanded to every row: a [1, length] lookup would hide from hooks which example its gradient came from.
        positions = torch.arange(length, device=input_ids.device).expand(rows, length)
        return self.vilt.embeddings.text_embeddings(input_ids=input_ids, position_ids=positions)

    def embed_images(self, pixel_values: Tensor, pixel_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Image tokens [images, 1 + longest, width] without the modality's, and which are real [images, 1 + longest].

        Each image's patches stand first, row by row of its own size, whatever canvas the batch was padded to.
        """
        patches = self.vilt.embeddings.patch_embeddings(
            pixel_values
        )  # [images, width, rows, columns]
        columns = patches.shape[-1]
        mask = interpolate(pixel_mask[:, None].float(), size=patches.shape[-2:])[
            :, 0
        ]  # [images, rows, columns]
        high, wide = (
            mask[:, :, :1].sum(dim=1).long(),
            mask[:, :1, :].sum(dim=2).long(),
        )  # [images, 1] each
        longest = int((high * wide).max())
        slot = torch.arange(longest, device=patches.device).expand(
            len(patches), longest
        )  # [images, longest]
        valid = slot < high * wide
        row, column = slot // wide.clamp(min=1), slot % wide.clamp(min=1)
        source = torch.where(valid, row * columns + column, 0)[..., None].expand(-1, -1, self.width)
        patches = patches.flatten(2).transpose(1, 2).gather(1, source)  # [images, longest, width]
        weights = (
            _bilinear(row, high, self.grid)[..., :, None]
            * _bilinear(column, wide, self.grid)[..., None, :]
        )
        tokens = self.vilt.embeddings(patches, weights.flatten(2))
        return tokens, torch.cat([valid.new_ones(len(valid), 1), valid], dim=1).long()

    def _number_images(self, words: int, images: int, kinds: Tensor) -> Tensor:
        """The modality of each image row: 1, 2, 1, 2, ... for pairs."""
        _whole("images", images, "texts", words)
        views, known = images // words, self.vilt.config.modality_type_vocab_size - 1
        if views > known:
            raise ValueError(
                f"{views} images per text, but the model tells only {known} images apart"
            )
        return torch.arange(1, views + 1, device=kinds.device, dtype=kinds.dtype).repeat(words)[
            :, None
        ]


def _grow_modalities(vilt: ViltModel) -> None:
    """Three modality types: text, image, second image, the last a copy of the second where the checkpoint has two.

    Done for every order of tasks, so that the shapes in a checkpoint never depend on the task list.
    """
    old = vilt.embeddings.token_type_embeddings
    if old.num_embeddings >= 3:
        return
    weight = torch.cat([old.weight.data, old.weight.data[1:2]])  # [3, width]
    grown = nn.Embedding.from_pretrained(weight, freeze=not old.weight.requires_grad)
    vilt.embeddings.token_type_embeddings = grown
    vilt.config.modality_type_vocab_size = grown.num_embeddings


def _bilinear(index: Tensor, size: Tensor, grid: int) -> Tensor:
    """Weights [images, length, grid] that stretch a grid of positions over `size` patches, corner on corner."""
    place = index * ((grid - 1) / (size - 1).clamp(min=1))  # [images, length], in units of the grid
    cells = torch.arange(grid, device=index.device)
    return (1 - (place[..., None] - cells).abs()).clamp(min=0)


def _repeat(rows: Tensor, times: int) -> Tensor:
    return rows.repeat_interleave(times, dim=0)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of ones and zeros as what is added to attention scores [rows, 1, 1, length]."""
    return (1 - mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def _whole(many: str, count: int, few: str, rows: int) -> None:
    if rows == 0 or count % rows:
        raise ValueError(f"{count} {many} cannot be shared out evenly over {rows} {few}")


def _read_weights(name: str, config: ViltConfig) -> ViltModel:
    try:
        with _quiet():
            vilt, report = ViltModel.from_pretrained(
                name,
                config=config,
                use_safetensors=True,
                local_files_only=is_local(name),
                dtype=torch.float32,
                attn_implementation="eager",
                ignore_mismatched_sizes=True,  # they are reported below, with their shapes
                output_loading_info=True,
            )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{name}: the weights cannot be loaded ({first_line(error)}); {FILES}"
        ) from error
    for problem in _losses(report):
        raise DataError(f"{name}: {problem}")
    return vilt


def _losses(report: Mapping[str, Any]) -> Iterator[str]:
    """What of the encoder would start at random or be thrown away; a left-over head of some task is neither."""
    missing = sorted(report["missing_keys"])
    if missing:
        yield (
            f"the checkpoint lacks {len(missing)} weights of the encoder ({_few(missing)}), which would start at "
            "random; use a checkpoint saved from ViltModel with its pooler, or from ViltForMaskedLM"
        )
    other = [
        f"{key} is {list(found)}, not {list(due)}"
        for key, found, due in sorted(report["mismatched_keys"])
    ]
    lost = sorted(
        key for key in report["unexpected_keys"] if key.removeprefix("vilt.").startswith(_PARTS)
    )
    # Older versions saved a table of indices along with the weights.
    other += [f"{key} has no place" for key in lost if not key.endswith("position_ids")]
    if other:
        yield (
            f"{len(other)} weights do not fit config.json ({_few(other)}); use the config.json that was saved with them"
        )


def _add_lora(vilt: ViltModel, lora: LoraConfig) -> None:
    """Low-rank adapters beside the named layers; they alone remain trainable."""
    import peft

    known = {
        path.rpartition(".")[2]
        for path, module in vilt.named_modules()
        if isinstance(module, nn.Linear)
    }
    problems = [
        f"model.lora.targets: ViLT has no linear layer {target!r}{suggest(target, known)} (layers: {sorted(known)})"
        for target in lora.targets
        if target not in known
    ]
    if problems:
        raise ConfigError(problems)
    adapter = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
    )
    peft.inject_adapter_in_model(adapter, vilt)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own report of unused heads: what matters in it becomes an error here."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _few(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
