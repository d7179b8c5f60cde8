"""What two models take on eight GPUs, worked out by the formulas of docs/scaling.md.

python scripts/work_out_scaling.py

ViLT-B/32 on CLiMB's tasks, every GPU with the whole model; LLaVA-1.5-7B with LoRA, whole and
divided (FSDP2). The networks have shapes only (torch's meta device), the recipes are the tasks'
own, the numbers of examples are the official ones. Nothing is measured: times follow from the
operations and a GPU's data sheet, and are as good as the share of its speed that is assumed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import _checkout  # noqa: F401 - finds mcit in this checkout
import torch
from torch import nn

from mcit.models.estimate import UTILIZATION, Footprint
from mcit.registry import find_task
from mcit.task import Recipe

GPUS = 8
# NVIDIA A100 SXM, 80 GB: bf16 products without sparsity, and what a GPU sends over NVLink
PEAK = 312e12
LINK = 300e9
FLOAT = 4
HALF = 2
ADAMW = 2 * FLOAT
HELD = 2 * FLOAT
# examples of the training splits; views that go through the network for each
CLIMB = {"vqa": (443_757, 1), "nlvr2": (86_373, 2), "snli-ve": (529_527, 1), "vcr": (212_923, 4)}
# 40 words, 12 x 20 patches of 32 pixels and their [CLS]: the longest row
VILT_TOKENS = 40 + 12 * 20 + 1
SAMPLES = 4096
# a task of CoIN's size, an image of 576 tokens with a question, an answer of a few words
LLAVA_EXAMPLES = 100_000
LLAVA_TOKENS = 576 + 64
LLAVA_ANSWER = 16
LLAVA_RECIPE = Recipe(epochs=1, batch_size=128, learning_rate=2e-4)
RANK = 16


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    what: str
    formula: str
    values: Sequence[str]


def ring(elements: float) -> float:
    """Return the bytes that a process sends to add up elements of 4 bytes over all."""
    return 2 * (GPUS - 1) / GPUS * FLOAT * elements


def gather(size: float) -> float:
    """Return the bytes that a process sends to gather weights of so many bytes."""
    return (GPUS - 1) / GPUS * size


def seconds(operations: float) -> float:
    """Return the time of operations that all GPUs share."""
    return operations / (GPUS * UTILIZATION * PEAK)


def make_vilt() -> nn.Module:
    """Return ViLT-B/32 without values, with a third modality for the second image of a pair."""
    from transformers import ViltConfig, ViltModel

    with torch.device("meta"):
        return ViltModel(ViltConfig(modality_type_vocab_size=3))


def work_out_vilt() -> list[Row]:
    """Return what CLiMB's four tasks take with ewc_dr."""
    weights = sum(p.numel() for p in make_vilt().parameters())
    footprint = Footprint(weights, weights, FLOAT * weights, 12, 768, 0, HALF, False)
    columns: dict[str, list[float]] = {}
    for name, (examples, views) in CLIMB.items():
        recipe = find_task(name)().recipe
        steps = recipe.epochs * math.ceil(examples / recipe.batch_size)
        operations = footprint.step_operations(recipe.batch_size * views, VILT_TOKENS)
        rows = math.ceil(recipe.batch_size / GPUS) * views
        measured = footprint.step_operations(SAMPLES * views, VILT_TOKENS)
        found = {
            "steps": steps,
            "step": seconds(operations),
            "hours": steps * seconds(operations) / 3600,
            "activations": footprint.activation_bytes(rows, VILT_TOKENS, 0),
            "sent": ring(weights),
            "sending": ring(weights) / LINK,
            "all": steps * ring(weights),
            "importance": seconds(measured),
        }
        for key, value in found.items():
            columns.setdefault(key, []).append(value)
    whole = FLOAT * weights + (FLOAT + ADAMW) * weights + HELD * weights
    return [
        Row("examples", "", [f"{examples:,}" for examples, _ in CLIMB.values()]),
        Row("steps", "epochs ⌈N / batch⌉", [f"{value:,.0f}" for value in columns["steps"]]),
        Row("a step's products", "6 W s batch / (8 · 0.4 · 312 TFLOP/s)", _ms(columns["step"])),
        Row("sent per step and GPU", "2 · 7/8 · 4 T", _mb(columns["sent"])),
        Row("which takes, over NVLink", "/ 300 GB/s", _ms(columns["sending"])),
        Row("hours of products", "steps · a step's", [f"{v:.1f}" for v in columns["hours"]]),
        Row("sent per task and GPU", "steps · a step's", _tb(columns["all"])),
        Row("importance of 4,096, products", "as of 4,096 trained", _s(columns["importance"])),
        Row("importance, sent", "2 · 7/8 · 4 P, once", _mb(columns["sent"])),
        Row("activations per GPU", "17 s width bytes, each layer", _gb(columns["activations"])),
        Row("the rest per GPU", "(4 + 12 + 8) W", _gb([whole] * len(CLIMB))),
    ]


def make_llava() -> nn.Module:
    """Return LLaVA-1.5-7B without values."""
    from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    with torch.device("meta"):
        return LlavaForConditionalGeneration(
            LlavaConfig(text_config=LlamaConfig(vocab_size=32_064))
        )


def count_lora(model: nn.Module) -> int:
    """Return the weights of adapters on every linear layer of the language model's blocks."""
    count = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "language_model.layers" in name:
            count += RANK * (module.in_features + module.out_features)
    return count


def work_out_llava() -> list[Row]:
    """Return what a task takes with LoRA, ewc_lo and checkpointed gradients: whole, divided."""
    model = make_llava()
    frozen = sum(p.numel() for p in model.parameters())
    trained = count_lora(model)
    text = model.config.get_text_config()
    blocks = [sum(p.numel() for p in b.parameters()) for b in model.model.language_model.layers]
    outside = sum(p.numel() for p in model.model.language_model.embed_tokens.parameters())
    outside += sum(p.numel() for p in model.lm_head.parameters())
    footprint = Footprint(
        weights=frozen + trained,
        trained=trained,
        weight_bytes=HALF * frozen + FLOAT * trained,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        vocabulary=text.vocab_size,
        precision=HALF,
        checkpointing=True,
    )
    batch = LLAVA_RECIPE.batch_size
    steps = math.ceil(LLAVA_EXAMPLES / batch)
    step = seconds(footprint.step_operations(batch, LLAVA_TOKENS))
    activations = footprint.activation_bytes(batch // GPUS, LLAVA_TOKENS, LLAVA_ANSWER)
    adapters = (2 * FLOAT + ADAMW + HELD) * trained
    # a block, the next one that is on its way, and what is outside of blocks
    gathered = HALF * (2 * max(blocks) + outside)
    divided = HALF * frozen / GPUS + gathered + adapters
    whole = HALF * frozen + adapters
    passes = 2 * gather(HALF * frozen)
    # a row at a time: a forward and a backward pass each
    measured = seconds(footprint.step_operations(SAMPLES, LLAVA_TOKENS))
    gathering = SAMPLES / GPUS * passes
    return [
        Row("frozen weights", "bf16", [f"{frozen:,}"] * 2),
        Row("weights of LoRA, T = P", "16 (inputs + outputs)", [f"{trained:,}"] * 2),
        Row("frozen, per GPU", "2 W, or 2 W / 8", _gb([HALF * frozen, HALF * frozen / GPUS])),
        Row("gathered at a time", "two blocks, and the words", ["–", *_gb([gathered])]),
        Row("adapters, all that belongs to them", "(4 + 4 + 8 + 8) T", _gb([adapters] * 2)),
        Row("activations", "2 s width bytes a layer, and logits", _gb([activations] * 2)),
        Row("in all, per GPU", "", _gb([whole + activations, divided + activations])),
        Row("steps", "⌈100,000 / 128⌉", [f"{steps:,}"] * 2),
        Row("a step's products", "2 s batch (3 W + T) / …", _s([step] * 2)),
        Row(
            "sent per step and GPU",
            "2 · 7/8 · 4 T; and 2 · 7/8 · 2 W",
            _gb([ring(trained), ring(trained) + passes]),
        ),
        Row(
            "which takes, over NVLink",
            "/ 300 GB/s",
            _ms([ring(trained) / LINK, (ring(trained) + passes) / LINK]),
        ),
        Row("hours of products", "steps · a step's", [f"{steps * step / 3600:.2f}"] * 2),
        Row("importance of 4,096, products", "as of 4,096 trained", _s([measured] * 2)),
        Row("importance of 4,096, gathered", "4,096 / 8 · 2 · 7/8 · 2 W", ["–", *_tb([gathering])]),
        Row("which takes, over NVLink", "/ 300 GB/s", ["–", *_s([gathering / LINK])]),
        Row("importance, added up", "2 · 7/8 · 4 P, once", _mb([ring(trained)] * 2)),
        Row("importance and anchor", "8 P", _mb([HELD * trained] * 2)),
    ]


def format_table(head: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(("", "formula", *head)) + " |"]
    lines.append("|---|---|" + "---:|" * len(head))
    for row in rows:
        lines.append("| " + " | ".join((row.what, row.formula, *row.values)) + " |")
    return "\n".join(lines)


def _gb(values: Sequence[float]) -> list[str]:
    return [f"{value / 1e9:.2f} GB" for value in values]


def _mb(values: Sequence[float]) -> list[str]:
    return [f"{value / 1e6:,.0f} MB" for value in values]


def _tb(values: Sequence[float]) -> list[str]:
    return [f"{value / 1e12:.1f} TB" for value in values]


def _s(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f} s" for value in values]


def _ms(values: Sequence[float]) -> list[str]:
    return [f"{1000 * value:.1f} ms" for value in values]


def main(argv: Sequence[str] | None = None) -> list[str]:
    """Print the tables, and return them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    tables = [
        format_table(list(CLIMB), work_out_vilt()),
        format_table(["whole (gpu8.yaml)", "divided (fsdp2.yaml)"], work_out_llava()),
    ]
    print("\n\n".join(tables))
    return tables


if __name__ == "__main__":
    main()
