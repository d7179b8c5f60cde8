"""Protect a finetuned model: measure its importance once, and train on new data whenever you like.

The first step needs the old data, and leaves one file next to the model. The second step needs only
that file: hand it on with the model, and whoever trains it further can keep what it knows.

    python examples/protect_finetuned.py DIR
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from mcit import ConsolidationManager, Importance, measure_importance

FILE = "importance.safetensors"


def make_reviews(seed: int) -> list[dict[str, torch.Tensor]]:
    """Return 400 texts of 12 words and their labels; two domains share 10 of their 50 words."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(0, 50, (400, 12), generator=generator)
    good = torch.randn(50, generator=generator)
    labels = (good[texts].sum(dim=1) > 0).long()
    texts += 40 * seed
    return [{"input_ids": text, "labels": label} for text, label in zip(texts, labels, strict=True)]


def train(model: torch.nn.Module, data: list, manager: ConsolidationManager | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(12):
        for batch in DataLoader(data, batch_size=20, shuffle=True):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            if manager is not None:
                manager.add_gradient_()
            optimizer.step()


@torch.no_grad()
def score(model: torch.nn.Module, data: list) -> float:
    ids = torch.stack([example["input_ids"] for example in data])
    labels = torch.stack([example["labels"] for example in data])
    return 100 * (model.eval()(input_ids=ids).logits.argmax(dim=1) == labels).float().mean().item()


def finetune_and_measure(folder: Path) -> None:
    """Finetune a model, and write it with its importance: the old data are not needed again."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=100, intermediate_size=128, num_labels=2, **sizes)
    model = BertForSequenceClassification(config)
    train(model, make_reviews(0))
    importance = measure_importance(model, DataLoader(make_reviews(0), batch_size=20), labels="all")
    model.save_pretrained(folder)
    importance.save(folder / FILE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where model and importance are kept")
    folder = parser.parse_args().folder
    if not (folder / FILE).exists():
        finetune_and_measure(folder)
    importance = Importance.load(folder / FILE)
    print(f"{FILE}: {importance.describe()}")
    for name, strength in [("unprotected", 0.0), ("protected", 1000.0)]:
        torch.manual_seed(1)
        model = BertForSequenceClassification.from_pretrained(folder)
        manager = ConsolidationManager(model, strength=strength)
        # from here on the present weights are held
        manager.consolidate(importance)
        before = score(model, make_reviews(0))
        train(model, make_reviews(1), manager)
        old = score(model, make_reviews(0))
        new = score(model, make_reviews(1))
        print(f"{name}: old task {before:.0f}% -> {old:.0f}%, new task {new:.0f}%")


if __name__ == "__main__":
    main()
