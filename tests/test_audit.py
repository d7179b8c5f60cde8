"""The audit takes a few examples of the first batch, and notices what they have not shown."""

from __future__ import annotations

import pytest
import torch
from importance_oracle import assert_same_importance
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mcit.importance import measure_importance, take_first


class Pictures(nn.Module):
    """Adds up what a layer sees in the rows of each example, of which there may be several."""

    def __init__(self):
        super().__init__()
        self.see = nn.Linear(3, 4)
        self.answer = nn.Linear(4, 2)
        # reads those examples only that have a mark
        self.marked = nn.Linear(3, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        counts = batch["counts"]
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        seen = torch.tanh(self.see(batch["rows"]))
        pooled = torch.zeros(len(counts), 4).index_add(0, owner, seen)
        if bool(batch["marks"].any()):
            shift = torch.tanh(self.marked(batch["marks"][:, None] * batch["first"]))
            pooled = pooled + batch["marks"][:, None] * shift
        return self.answer(pooled)


def make_examples(counts: list[int], marks: list[float]) -> list[dict]:
    generator = torch.Generator().manual_seed(7)
    examples = []
    for count, mark in zip(counts, marks, strict=True):
        rows = torch.randn(count, 3, generator=generator)
        examples.append({"rows": rows, "mark": mark, "label": len(examples) % 2})
    return examples


def collate(examples: list[dict]) -> tuple[dict[str, Tensor], Tensor]:
    inputs = {
        "rows": torch.cat([example["rows"] for example in examples]),
        "first": torch.stack([example["rows"][0] for example in examples]),
        "counts": torch.tensor([len(example["rows"]) for example in examples]),
        "marks": torch.tensor([example["mark"] for example in examples]),
    }
    return inputs, torch.tensor([example["label"] for example in examples])


def loop(model: nn.Module, examples: list[dict]) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for example in examples:
        inputs, target = collate([example])
        loss = nn.functional.cross_entropy(model(inputs), target)
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        for name, gradient in zip(sums, found, strict=True):
            if gradient is not None:
                sums[name] += gradient.square() / len(examples)
    return sums


@pytest.mark.parametrize(
    ("counts", "path"),
    [
        ([2, 2, 2, 2, 2, 2], "rule"),
        # as many rows as if every example had two
        ([2, 2, 1, 3, 2, 2], "module"),
        ([2, 2, 2, 2, 1, 1], "module"),
        ([1, 1, 1, 1, 1, 1], "rule"),
    ],
)
def test_rows_that_belong_to_other_examples_than_the_few_have_shown_are_noticed(counts, path):
    torch.manual_seed(1)
    model = Pictures()
    examples = make_examples(counts, [1.0] * 6)
    found = measure_importance(model, DataLoader(examples, 6, collate_fn=collate))
    assert_same_importance(found.values, loop(model, examples))
    assert found.paths["see.weight"] == path
    assert found.paths["answer.weight"] == "rule"


def test_a_layer_that_the_few_examples_do_not_use_is_served_by_its_rule():
    torch.manual_seed(1)
    model = Pictures()
    examples = make_examples([2] * 6, [0.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    found = measure_importance(model, DataLoader(examples, 6, collate_fn=collate))
    assert_same_importance(found.values, loop(model, examples))
    assert set(found.paths.values()) == {"rule"}


@pytest.mark.parametrize("batches", ["list", "loader"])
def test_the_whole_batch_is_run_once(batches):
    model = nn.Linear(3, 2)
    examples = [(torch.randn(3), place % 2) for place in range(8)]
    sizes = []

    def forward(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        sizes.append(len(batch[0]))
        return model(batch[0]), batch[1]

    loader = DataLoader(examples, 8)
    measure_importance(model, list(loader) if batches == "list" else loader, forward=forward)
    assert sizes == [2, 8]


def test_the_audit_draws_nothing():
    drawn = []

    def draw(batch: list) -> list[Tensor]:
        drawn.append(float(torch.rand(())))
        return torch.utils.data.default_collate(batch)

    examples = [(torch.randn(3), place % 2) for place in range(8)]
    measure_importance(nn.Linear(3, 2), DataLoader(examples, 4, collate_fn=draw))
    first, audit, second = drawn
    assert first != second
    # as if the audit had not been there
    assert audit == second


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((torch.zeros(4, 2), torch.zeros(4)), (2, 2)),
        ((torch.zeros(8, 2), torch.zeros(4)), None),
        ((torch.zeros(2, 2), torch.zeros(2)), None),
        ((torch.zeros(4, 2), ["a", "b", "c", "d"]), None),
        ((torch.zeros(4, 2), torch.zeros(())), None),
    ],
)
def test_a_batch_is_cut_only_where_every_tensor_has_a_row_per_example(batch, expected):
    found = take_first(batch, 2)
    assert (found and tuple(map(len, found))) == expected
