"""transformers.Trainer and LoRA: a small language model learns one kind of question, then another.

The importance of the LoRA adapters is measured on the first task, and the callback holds them while
the second one is learned; the base is frozen anyway. The model is a random Llama made here, so that
nothing is downloaded: put your own model and tokenized data in its place.

    python examples/trainer_lora.py
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from mcit import ConsolidationCallback, ConsolidationManager, measure_importance

SYMBOLS = 16
QUIET = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}


def make_model() -> torch.nn.Module:
    set_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=SYMBOLS + 2, intermediate_size=128, initializer_range=0.1, **sizes
    )
    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(LlamaForCausalLM(config), lora)


def make_task(number: int) -> list[dict[str, torch.Tensor]]:
    """Return all questions (task, symbol) and their answers, a fixed permutation of the symbols."""
    answers = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(number))
    examples = []
    for symbol, answer in enumerate(answers):
        # only the answer is learned: -100 marks tokens that do not count
        ids = torch.tensor([SYMBOLS + number, symbol, answer])
        examples.append({"input_ids": ids, "labels": torch.tensor([-100, -100, answer])})
    return examples


def learn(model: torch.nn.Module, data: list, callbacks: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=40,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            **QUIET,
        )
        Trainer(model, args, train_dataset=data, callbacks=callbacks).train()


@torch.no_grad()
def score(model: torch.nn.Module, data: list) -> float:
    ids = torch.stack([example["input_ids"] for example in data])
    answers = model(input_ids=ids[:, :2]).logits[:, -1].argmax(dim=-1)
    return 100 * (answers == ids[:, 2]).float().mean().item()


def main() -> None:
    first = make_task(0)
    second = make_task(1)
    loader = DataLoader(first, batch_size=8)
    for name, strength in [("finetune", 0.0), ("EWC-LO", 3e4)]:
        model = make_model()
        learn(model, first, callbacks=[])
        manager = ConsolidationManager(model, strength=strength)
        # an example is a whole answer, however many tokens it has
        manager.consolidate(measure_importance(model, loader, score="log_odds"))
        learn(model, second, callbacks=[ConsolidationCallback(manager)])
        kept = score(model, first)
        new = score(model, second)
        print(f"{name}: first task {kept:.0f}%, second task {new:.0f}%")
    held = sum(tensor.numel() for tensor in manager.importance.values())
    print(f"{held:,} of {model.num_parameters():,} weights are held: those of the adapters")


if __name__ == "__main__":
    main()
