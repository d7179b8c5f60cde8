"""One way to read a split: each example once, budgets, and loaders that are left alone."""

from __future__ import annotations

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import mcit.parallel.loading
from mcit.parallel.global_batch import process_rank
from mcit.parallel.loading import budget, read_in_order, sum_over_processes


def numbers(count: int = 7) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def read(loader) -> list[int]:
    parts = [part for part in loader if part.counted]
    return torch.cat([part.batch[0] for part in parts]).tolist() if parts else []


@pytest.mark.parametrize(
    ("samples", "available", "expected"),
    [
        (None, 9, 9),
        (4, 9, 4),
        (20, 9, 9),
        (1, 1, 1),
        (0.5, 9, 4),
        (1.0, 9, 9),
        (0.001, 9, 1),
        (1, 9, 1),
        (0.5, 0, 0),
    ],
)
def test_a_budget_is_a_count_or_a_fraction(samples, available, expected):
    assert budget(samples, available) == expected


def test_one_process_alone_is_the_first_of_one():
    assert process_rank() == (0, 1)
    tensor = torch.ones(2)
    sum_over_processes([tensor])
    assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize("world", [1, 2, 3, 10])
@pytest.mark.parametrize("samples", [None, 5, 0.5])
def test_parts_hold_each_example_once_and_are_never_padded(monkeypatch, world, samples):
    found = []
    for rank in range(world):
        monkeypatch.setattr(mcit.parallel.loading, "process_rank", lambda rank=rank: (rank, world))
        found += read(read_in_order(DataLoader(numbers(), 2, shuffle=True), samples, seed=1))
    assert len(found) == len(set(found)) == budget(samples, 7)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(numbers(), 3),
        DataLoader(numbers(), 3, shuffle=True),
        DataLoader(numbers(), 3, drop_last=True),
        DataLoader(numbers(), 3, sampler=DistributedSampler(numbers(), num_replicas=2, rank=1)),
        DataLoader(numbers(), batch_sampler=BatchSampler(RandomSampler(numbers()), 3, True)),
        prepare_data_loader(
            DataLoader(numbers(), 3, shuffle=True), num_processes=2, process_index=1
        ),
        prepare_data_loader(DataLoader(numbers(), 3, shuffle=True), use_seedable_sampler=True),
    ],
    ids=[
        "plain",
        "shuffled",
        "drop_last",
        "distributed",
        "batch sampler",
        "accelerate of two",
        "seedable",
    ],
)
def test_loaders_of_the_whole_data_are_read_in_order(loader):
    assert read(read_in_order(loader)) == list(range(7))
    assert len(read_in_order(loader)) == 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(7))


class Backwards(SequentialSampler):
    """A sampler of the user's own, whatever it inherits."""

    def __iter__(self):
        return iter([5, 3])

    def __len__(self):
        return 2


class InPairs:
    def __iter__(self):
        return iter([[0, 1], [4, 5]])

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    "loader",
    [
        [torch.arange(3)],
        DataLoader(Stream(), 3),
        DataLoader(numbers(), 3, sampler=SubsetRandomSampler([1, 2])),
        DataLoader(numbers(), 3, sampler=WeightedRandomSampler([1.0] * 7, 7)),
        DataLoader(numbers(), 3, sampler=RandomSampler(numbers(), replacement=True)),
        DataLoader(numbers(), 3, sampler=RandomSampler(numbers(), num_samples=3)),
        DataLoader(numbers(), 3, sampler=[3, 4]),
        DataLoader(numbers(), 3, sampler=Backwards(numbers())),
        DataLoader(numbers(), batch_sampler=InPairs()),
        DataLoader(numbers(), batch_size=None),
    ],
    ids=[
        "list",
        "stream",
        "subset",
        "weighted",
        "replacing",
        "fewer",
        "indices",
        "own",
        "pairs",
        "no batches",
    ],
)
def test_loaders_that_choose_or_cannot_be_counted_are_left_alone(loader):
    assert read_in_order(loader) is None


def test_drawing_is_seeded_and_touches_no_global_state():
    state = torch.get_rng_state()
    first, again, other = (
        read(read_in_order(DataLoader(numbers(50), 7), 20, seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again != other
    assert first == sorted(first)


def test_the_loader_s_collation_is_kept():
    loader = DataLoader(
        numbers(), 3, collate_fn=lambda rows: [torch.stack([row[0] for row in rows]) * 10]
    )
    assert read(read_in_order(loader)) == [0, 10, 20, 30, 40, 50, 60]
