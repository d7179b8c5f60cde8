"""Pretrain the small ViLT of the embedded benchmark: masked words and image-text matching.

    OMP_NUM_THREADS=1 python scripts/pretrain_embedded.py --out mcit/embedded/vilt

Half an hour on one core. The scenes come from seeds of their own, never those of the
benchmark, and the captions state where the tasks ask, compare or infer. A third of the images come
with three captions in a row, about half of whose telling words are hidden. The others come with one
caption: either one word of it is hidden, to be read off at its place and, by a head that is
discarded, off the pooled vector; or it is whole and true or false of the image, which the pooled
vector is to tell. The first scenes have one or two objects, the later ones more.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import _checkout  # noqa: F401 - finds mcit in this checkout
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertTokenizer, ViltConfig, ViltForMaskedLM, ViltImageProcessorPil

from mcit.embedded.pretraining import (
    IGNORED,
    MASK,
    Example,
    build_vocabulary,
    make_batch,
    make_example,
    make_long_example,
)
from mcit.embedded.render import CELL, SIDE
from mcit.models.vilt import ViltEncoder

CARD = """---
license: apache-2.0
library_name: transformers
tags: [vilt, synthetic]
---

# The small ViLT of mcit's embedded benchmark

A ViLT (`ViltForMaskedLM` with pooler) of {parameters:,} parameters: {layers} layers, width
{width}, 4 heads, images of 48 x 48 pixels in patches of 12, at most 40 words. It knows the small
scenes of the embedded benchmark and nothing else.

## How it was made

    OMP_NUM_THREADS=1 python scripts/pretrain_embedded.py --out mcit/embedded/vilt {command}

{minutes:.0f} minutes on one core, which other programs shared. Only captions of generated scenes
were shown: colored shapes, their sizes, places, numbers and relations, and tags with boxes as
VCR's reader draws them. The seeds of these scenes are not those of the benchmark, and none of its
four tasks was shown. Two objectives: hidden words, read off at their places and, in captions with
one hidden word, off the pooled vector; and image-text matching, where a false caption differs
from a true one in one word or in two exchanged ones. The heads on the pooled vector are not kept.
The embedding of a second image is a copy of the first's.

## What it scored

Percent right on {held_out:,} held-out captions. A hidden word often has several right answers
("there is a ... circle" next to two circles), so that 100 is out of reach; guessing whether a
caption matches scores 50.

| held-out captions | right |
|---|---|
{table}
"""


def start_embeddings(embeddings: nn.Module) -> None:
    """Begin with places that resemble their neighbors and with nothing where the background is.

    From random places, words such as `left` and `above` were not understood after 3,000 steps.
    """
    grid = SIDE // CELL
    width = embeddings.cls_token.shape[-1]
    middle = (torch.arange(grid) + 0.5) / grid * 2 - 1  # [grid], from -1 to 1
    angles = middle[:, None] * torch.linspace(0.3, 3.0, width // 4)  # [grid, width / 4]
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [grid, width / 2]
    rows = waves[:, None].expand(grid, grid, -1)
    columns = waves[None].expand(grid, grid, -1)
    places = torch.cat([rows, columns], dim=-1).flatten(0, 1)  # [grid * grid, width]
    places = places - places.mean(dim=0)
    patch = embeddings.patch_embeddings.projection
    nn.init.normal_(patch.weight, std=0.1)
    with torch.no_grad():
        embeddings.position_embeddings[0, 1:] = 0.7 * places / places.std()
        # the background is about -0.75 once normalized
        patch.bias.copy_(0.75 * patch.weight.sum(dim=(1, 2, 3)))


class Pretraining(nn.Module):
    """The model, and two heads on the pooled vector that are discarded afterwards."""

    def __init__(self, config: ViltConfig):
        super().__init__()
        self.model = ViltForMaskedLM(config)
        start_embeddings(self.model.vilt.embeddings)
        self.encoder = ViltEncoder(self.model.vilt)
        self.match = nn.Linear(config.hidden_size, 2)
        self.name = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, batch: dict[str, Tensor], truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of hidden words, at their places and off pooled vectors, and of truth."""
        states = self.encoder.encode(batch)  # [batch, length, width]
        pooled = self.model.vilt.pooler(states)  # [batch, width]
        masked = batch["input_ids"] == MASK  # [batch, texts' length]
        hidden = states[:, : masked.shape[1]][masked]  # [words, width]
        whole = truth != IGNORED
        return self.model.mlm_score(hidden), self.name(pooled[~whole]), self.match(pooled[whole])


def score(
    model: Pretraining, examples: list[Example], vocabulary: dict[str, int]
) -> dict[str, float]:
    """Return percent right on held-out captions, by what was asked and by kind of caption."""
    right: dict[str, list[float]] = {}
    for start in range(0, len(examples), 256):
        part = examples[start : start + 256]
        batch, words, truth = make_batch(part, vocabulary)
        with torch.no_grad():
            placed, pooled, matched = model(batch, truth)
        masked = [example.kind for example in part if example.hidden]
        whole = [example.kind for example in part if not example.hidden]
        truth = truth[truth != IGNORED]
        for name, logits, target, kinds in (
            ("hidden word", placed, words, masked),
            ("hidden word, pooled", pooled, words, masked),
            ("matching", matched, truth, whole),
        ):
            hits = (logits.argmax(dim=1) == target).tolist()
            for kind, hit in zip(kinds, hits, strict=True):
                right.setdefault(name, []).append(hit)
                right.setdefault(f"{name}: {kind}", []).append(hit)
    return {name: round(100 * float(np.mean(hits)), 1) for name, hits in sorted(right.items())}


def take_loss(
    model: Pretraining, rng: Random, step: int, options: argparse.Namespace, vocabulary: dict
) -> Tensor:
    """Return the loss of a batch of long captions and of one, twice as large, of single ones."""
    objects, matching = plan(step, options.steps)
    long = [make_long_example(rng, objects) for _ in range(options.batch // 2)]
    batch, words, truth = make_batch(long, vocabulary)
    loss = F.cross_entropy(model(batch, truth)[0], words)
    single = [make_example(rng, objects, matching) for _ in range(options.batch)]
    batch, words, truth = make_batch(single, vocabulary)
    placed, pooled, matched = model(batch, truth)
    loss = loss + 0.5 * F.cross_entropy(placed, words) + 0.5 * F.cross_entropy(pooled, words)
    return loss + F.cross_entropy(matched, truth[truth != IGNORED])


def plan(step: int, steps: int) -> tuple[tuple[int, int], float]:
    """Return how many objects the scenes have at a step, and the fraction of whole captions."""
    progress = step / steps
    if progress < 0.1:
        return (1, 2), 0.25
    if progress < 0.25:
        return (1, 4), 0.33
    return (2, 6), 0.5


def pretrain(
    options: argparse.Namespace, vocabulary: dict[str, int]
) -> tuple[Pretraining, dict[str, float], float]:
    """Return the trained model, its scores on held-out captions, and the seconds it took."""
    torch.manual_seed(options.seed)
    model = Pretraining(make_config(options, len(vocabulary)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 200, max(0.01, 1 - step / options.steps))
    )
    held_out = Random(f"captions {options.seed} held out")
    check = [make_example(held_out, (2, 6), 0.5) for _ in range(options.held_out)]
    rng = Random(f"captions {options.seed}")
    start = time.perf_counter()
    for step in range(options.steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
            loss = take_loss(model, rng, step, options, vocabulary)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            scores = score(model, check, vocabulary)
            save(model, vocabulary, options.out)
            seconds = time.perf_counter() - start
            place = f"step {step + 1}/{options.steps}  {seconds:.0f} s"
            print(f"{place}  loss {loss:.3f}  {scores}", flush=True)
    return model, scores, time.perf_counter() - start


def make_config(options: argparse.Namespace, words: int) -> ViltConfig:
    """Return the configuration of the small model."""
    return ViltConfig(
        vocab_size=words,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        intermediate_size=options.inner,
        image_size=SIDE,
        patch_size=CELL,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_image_length=-1,
        modality_type_vocab_size=3,
        # the usual 0.02 suits wide models; here it delays learning for long
        initializer_range=options.width**-0.5,
    )


def save(model: Pretraining, vocabulary: dict[str, int], folder: Path) -> None:
    """Write the folder in Hugging Face format: weights, tokenizer, image processor."""
    kinds = model.model.vilt.embeddings.token_type_embeddings.weight
    # captions have one image; the second of a pair begins as a copy of the first
    kinds.data[2] = kinds.data[1]
    model.model.save_pretrained(folder)
    BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=40).save_pretrained(folder)
    ViltImageProcessorPil(size={"shortest_edge": SIDE}, size_divisor=CELL).save_pretrained(folder)


def write_card(
    folder: Path, options: argparse.Namespace, model: Pretraining, scores: dict, seconds: float
) -> None:
    """Write README.md: what the model is, the command that made it, what it scored."""
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    given = {name: value for name, value in vars(options).items() if name not in ("out", "every")}
    card = CARD.format(
        parameters=parameters,
        command=" ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items()),
        table="\n".join(f"| {name} | {value:.1f} |" for name, value in scores.items()),
        minutes=seconds / 60,
        **vars(options),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Pretrain, save and describe the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--inner", type=int, default=512, help="width of the feed-forward layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--precision", choices=("bf16", "no"), default="bf16", help="of the forward pass"
    )
    parser.add_argument(
        "--held-out", type=int, default=2048, help="captions that are scored, not trained on"
    )
    parser.add_argument("--every", type=int, default=250, help="steps between two scores")
    options = parser.parse_args()
    vocabulary = build_vocabulary()
    model, scores, seconds = pretrain(options, vocabulary)
    write_card(options.out, options, model, scores, seconds)
    print(json.dumps(scores, indent=1), f"\n{seconds:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
