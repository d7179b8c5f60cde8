r"""Pretrain the small LLaVA of the embedded benchmark: captions told, completed and matched.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 scripts/pretrain_embedded_llava.py --out FOLDER

The scenes come from seeds of their own, never those of the benchmark, and the conversations about
them (mcit/embedded/conversations.py) are about captions: none of the tasks' questions and
instructions is shown. First the vision tower and the projector learn to name what is in the cells
of the grid. Then every weight is trained, by the next word of the answers only: on descriptions of
scenes first, then mostly on comparing. Comparing begins with scenes of one or two objects.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from random import Random

import _checkout  # noqa: F401 - finds mcit in this checkout
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from mcit.embedded.conversations import (
    ASSISTANT,
    CONTENTS,
    END,
    IMAGE,
    PAD,
    TOKENS,
    UNKNOWN,
    USER,
    Conversation,
    build_vocabulary,
    make_batch,
    make_cells,
    make_conversation,
    make_description,
)
from mcit.embedded.render import CELL, SIDE

# one turn's words stand between its two marks; an answer ends with the end mark
TEMPLATE = (
    "{% for message in messages %}"
    "{{ 'USER:' if message['role'] == 'user' else 'ASSISTANT:' }}"
    "{% if message['content'] is string %}{{ ' ' + message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ ' <image>' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{{ '</s>' if message['role'] == 'assistant' else ' ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

SCRIPT = "scripts/pretrain_embedded_llava.py"
FOLDER = "mcit/embedded/llava"
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
tags: [llava, synthetic]
---

# The small LLaVA of mcit's embedded benchmark

A LLaVA (`LlavaForConditionalGeneration`: CLIP's vision tower, a projector, Llama) of {parameters:,}
weights. Language model: {text.num_hidden_layers} layers, width {text.hidden_size},
{text.num_attention_heads} heads, inner width {text.intermediate_size}; vision tower:
{vision.num_hidden_layers} layer(s), width {vision.hidden_size}; images of 48 x 48 pixels in patches
of 12, so that an image has 16 tokens. Its {words} words are those of captions, tasks and usual
instructions; any other word is spelled in characters. It knows the small scenes of the embedded
benchmark and nothing else.

    USER: <image> Does it match: The circle is red. ASSISTANT: yes</s>

## How it was made

    {command}

{minutes} minutes on two cores, which other programs shared. First, vision tower and projector
learned to name what is in each cell of the grid by the embeddings of its words. Then the whole
model was shown captions of generated scenes (colored shapes, their sizes, places, numbers and
relations, and tags with boxes as VCR's reader draws them) in short conversations: tell some
(`tell`), fill a gap (`fill`), does it match (`match`), the same in words that the prompt names
(`say`), pick the letter of what fits (`pick`), which of two images does it fit (`which`); learned
by the next word of the answers. The seeds of
these scenes are not those of the benchmark, and none of its tasks' questions and instructions was
shown.

## What it scored

Percent of the answers of {held_out:,} held-out conversations of one turn that are right to the
last word, by the likeliest word at each place; of a caption that is told, the last word after the
others. A gap or a caption often has several right words, so that 100 is out of reach there.
Guessing scores 50 in `match` and `say`, 25 or more in `pick` and 25 in `which`.

| held-out answers | right |
|---|---|
{table}
"""


def make_config(options: argparse.Namespace, vocabulary: dict[str, int]) -> LlavaConfig:
    """Return the configuration of the small model."""
    vision = CLIPVisionConfig(
        hidden_size=options.vision_width,
        intermediate_size=2 * options.vision_width,
        num_hidden_layers=options.vision_layers,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=CELL,
        projection_dim=options.vision_width,
    )
    text = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=options.width,
        intermediate_size=options.inner,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        # the usual 0.02 suits wide models; here it delays learning for long
        initializer_range=options.width**-0.5,
        pad_token_id=vocabulary[PAD],
        bos_token_id=None,
        eos_token_id=vocabulary[END],
        tie_word_embeddings=False,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=vocabulary[IMAGE],
        image_seq_length=TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        pad_token_id=vocabulary[PAD],
        eos_token_id=vocabulary[END],
        tie_word_embeddings=False,
        dtype="float32",
    )


def start_vision(embeddings: nn.Module) -> None:
    """Begin with places that resemble their neighbors and with nothing where the background is."""
    grid = SIDE // CELL
    width = embeddings.class_embedding.shape[-1]
    middle = (torch.arange(grid) + 0.5) / grid * 2 - 1  # [grid], from -1 to 1
    angles = middle[:, None] * torch.linspace(0.3, 3.0, width // 4)  # [grid, width / 4]
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [grid, width / 2]
    rows = waves[:, None].expand(grid, grid, -1)
    columns = waves[None].expand(grid, grid, -1)
    places = torch.cat([rows, columns], dim=-1).flatten(0, 1)  # [grid * grid, width]
    places = places - places.mean(dim=0)
    patch = embeddings.patch_embedding
    nn.init.normal_(patch.weight, std=0.1)
    # the background is about -0.75 once normalized, and the patches have no bias
    background = 0.75 * patch.weight.sum(dim=(1, 2, 3))
    with torch.no_grad():
        embeddings.position_embedding.weight[1:] = 0.7 * places / places.std() + background


def processes() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Batches(Dataset):
    """A process's batch of every step, from a seed of its own, whoever makes it."""

    def __init__(self, options: argparse.Namespace, vocabulary: dict[str, int], rank: int):
        self.options = options
        self.vocabulary = vocabulary
        self.rank = rank

    def __len__(self) -> int:
        return self.options.steps

    def __getitem__(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        options = self.options
        rng = Random(f"conversations {options.seed} {step} {self.rank}")
        objects, share = plan(step, options)
        conversations = []
        for _ in range(options.batch // processes()):
            make = make_description if rng.random() < share else make_conversation
            conversations.append(make(rng, objects, options.length))
        return make_batch(conversations, self.vocabulary)


def plan(step: int, options: argparse.Namespace) -> tuple[tuple[int, int], float]:
    """Return how many objects the scenes of a step have, and the share of descriptions."""
    progress = step / options.steps
    if progress < 0.04:
        return (1, 3), 0.8
    if progress < 0.1:
        return (2, 4), 0.6
    # comparing is learned on few objects
    if progress < 0.2:
        return (1, 2), 0.1
    if progress < 0.4:
        return (1, 4), 0.1
    return (2, 6), 0.1


def warm_up(
    model: LlavaForConditionalGeneration, vocabulary: dict[str, int], options: argparse.Namespace
) -> None:
    """Teach vision tower and projector to name what is where by the words' embeddings.

    Without it the language model learned for 600 steps to guess before it began to look.
    """
    vision = model.model.vision_tower
    projector = model.model.multi_modal_projector
    words = model.model.language_model.embed_tokens.weight.detach()
    named = []
    for values in CONTENTS:
        named.append(torch.stack([words[vocabulary[word or UNKNOWN]] for word in values]))
    # cells differ within halves too
    place = nn.Linear(options.width, TOKENS)
    parameters = [*vision.parameters(), *projector.parameters(), *place.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / (options.warm_up + 1)
    )
    rng = Random(f"cells {options.seed}")
    cells = torch.arange(TOKENS)
    for step in range(options.warm_up):
        pixels, contents = make_cells(rng, (2, 6), 64)
        states = projector(vision(pixels).last_hidden_state[:, 1:])  # [64, cells, width]
        loss = F.cross_entropy(place(states).flatten(0, 1), cells.repeat(len(states)))
        # states are to be as large as embeddings
        loss = loss + 0.1 * (states.pow(2).mean(dim=-1) - 1).pow(2).mean()
        filled = contents[..., 0] > 0
        right = []
        for rows, target in zip(named, contents.unbind(-1), strict=True):
            logits = states @ rows.T * options.width**-0.5
            loss = loss + F.cross_entropy(logits.flatten(0, 1), target.flatten())
            right.append(100 * float((logits.argmax(-1) == target)[filled].float().mean()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        if (step + 1) % 100 == 0:
            known = " ".join(f"{value:.1f}" for value in right)
            size = float(states.detach().std())
            print(f"cells, step {step + 1}: right {known}; size {size:.2f}", flush=True)


def start_language(model: LlavaForConditionalGeneration) -> None:
    """Begin with words that are larger than what the first layers add to them."""
    words = model.model.language_model.embed_tokens.weight
    nn.init.normal_(words, std=1.0)
    layers = model.model.language_model.layers
    share = (2 * len(layers)) ** -0.5
    with torch.no_grad():
        # what is said begins as what is heard
        model.lm_head.weight.copy_(words * words.shape[1] ** -0.5)
        for layer in layers:
            layer.self_attn.o_proj.weight *= share
            layer.mlp.down_proj.weight *= share


def predict(
    model: LlavaForConditionalGeneration, batch: dict[str, Tensor], labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return logits and labels of the answers' words, in order."""
    states = model.model(**batch, use_cache=False).last_hidden_state  # [batch, length, width]
    known = labels[:, 1:] != -100
    return model.lm_head(states[:, :-1][known]), labels[:, 1:][known]


def score(
    model: LlavaForConditionalGeneration,
    conversations: list[Conversation],
    vocabulary: dict[str, int],
) -> dict[str, float]:
    """Return percent of right answers, by kind of turn and of caption."""
    right: dict[str, list[bool]] = {}
    model.eval()
    for start in range(0, len(conversations), 256):
        part = conversations[start : start + 256]
        batch, labels = make_batch(part, vocabulary)
        with torch.no_grad():
            logits, words = predict(model, batch, labels)
        hits = logits.argmax(dim=1) == words
        lengths = (labels != -100).sum(dim=1).tolist()
        for conversation, hit in zip(part, hits.split(lengths), strict=True):
            kind = conversation.turns[0].kind
            # of a caption that is told, the last word: before its period and end mark
            good = bool(hit[-3]) if kind.startswith("tell") else bool(hit.all())
            for name in {kind.partition(":")[0], kind}:
                right.setdefault(name, []).append(good)
    model.train()
    return {name: round(100 * float(np.mean(hits)), 1) for name, hits in sorted(right.items())}


def pretrain(
    options: argparse.Namespace, vocabulary: dict[str, int]
) -> tuple[LlavaForConditionalGeneration, dict[str, float], float]:
    """Return the trained model, its scores on held-out captions, and the seconds it took."""
    torch.manual_seed(options.seed)
    model = LlavaForConditionalGeneration(make_config(options, vocabulary))
    start_vision(model.model.vision_tower.embeddings)
    start_language(model)
    warm_up(model, vocabulary, options)
    model.train()
    if processes() > 1:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, max(0.01, 1 - step / options.steps))
    )
    held_out = Random(f"conversations {options.seed} held out")
    # too short for a second turn
    check = [make_conversation(held_out, (2, 6), 0) for _ in range(options.held_out)]
    rank = int(os.environ.get("RANK", "0"))
    start = time.perf_counter()
    scores: dict[str, float] = {}
    loader = DataLoader(Batches(options, vocabulary, rank), batch_size=None)
    for step, (batch, labels) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
            logits, words = predict(model, batch, labels)
            loss = F.cross_entropy(logits, words)
        optimizer.zero_grad()
        loss.backward()
        if processes() > 1:
            average_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        last = step + 1 == options.steps
        if rank == 0 and ((step + 1) % options.every == 0 or last):
            scores = score(model, check, vocabulary)
            save(model, vocabulary, options.out)
            seconds = time.perf_counter() - start
            place = f"step {step + 1}/{options.steps}  {seconds:.0f} s"
            print(f"{place}  loss {loss:.3f}  {scores}", flush=True)
    return model, scores, time.perf_counter() - start


def average_gradients(model: nn.Module) -> None:
    """Replace gradients by their mean over the processes, in one exchange."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / processes(), gradients)


def make_tokenizer(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words that spells unknown ones."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[IMAGE, USER, ASSISTANT],
        padding_side="left",
        model_max_length=512,
    )


def save(model: LlavaForConditionalGeneration, vocabulary: dict[str, int], folder: Path) -> None:
    """Write the folder in Hugging Face format: weights, tokenizer, processor, chat template."""
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=16,
        pad_token_id=vocabulary[PAD],
        eos_token_id=vocabulary[END],
    )
    model.save_pretrained(folder)
    images = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    LlavaProcessor(
        image_processor=images,
        tokenizer=make_tokenizer(vocabulary),
        patch_size=CELL,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def write_card(
    options: argparse.Namespace,
    model: LlavaForConditionalGeneration,
    words: int,
    scores: dict[str, float],
    seconds: float,
) -> None:
    """Write README.md: what the model is, the commands that made it, what it scored."""
    command = f"OMP_NUM_THREADS=1 torchrun --nproc-per-node {processes()} {SCRIPT} --out {FOLDER}"
    for name, value in vars(options).items():
        if name not in ("out", "every"):
            command += f" --{name.replace('_', '-')} {value}"
    card = CARD.format(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        command=command,
        minutes=round(seconds / 60),
        table="\n".join(f"| {name} | {value:.1f} |" for name, value in scores.items()),
        words=words,
        text=model.config.text_config,
        vision=model.config.vision_config,
        held_out=options.held_out,
    )
    (options.out / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Pretrain, save and describe the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--steps", type=int, default=14000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--warm-up", type=int, default=300, help="steps of the vision tower alone")
    parser.add_argument("--length", type=int, default=72, help="tokens of a conversation")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--inner", type=int, default=256, help="width of the feed-forward layers")
    parser.add_argument("--vision-width", type=int, default=96)
    parser.add_argument("--vision-layers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--precision", choices=("bf16", "no"), default="bf16", help="of the forward pass"
    )
    parser.add_argument(
        "--held-out", type=int, default=1024, help="conversations that are scored, not trained on"
    )
    parser.add_argument("--every", type=int, default=500, help="steps between two scores")
    options = parser.parse_args()
    if processes() > 1:
        dist.init_process_group("gloo")
    vocabulary = build_vocabulary()
    model, scores, seconds = pretrain(options, vocabulary)
    if processes() > 1:
        dist.barrier()
        first = dist.get_rank() == 0
        dist.destroy_process_group()
        if not first:
            return
    write_card(options, model, len(vocabulary), scores, seconds)
    print(json.dumps(scores, indent=1), f"\n{seconds:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
