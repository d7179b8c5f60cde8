"""Each example once: a process's own part of every batch, in a fixed order, never padded; and sums over processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from accelerate.data_loader import SeedableRandomSampler
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from mcit.parallel.global_batch import Rows, holding, process_rank, share_rows

_NOTHING = object()
Part = tuple[
    Sequence[int], Rows
]  # indices in the data, and which rows of the global batch they are


@dataclass(frozen=True)
class Share:
    """This process's part of a global batch."""

    batch: Any
    rows: Rows | None = None  # None: it is a batch of this process's own
    first: int = 0  # examples before the global batch

    def number_examples(self, count: int, before: int) -> Tensor:
        """The place [count] of each example among those of all processes; `before` it has had so many itself."""
        if (
            self.rows is not None
            and self.rows.places is not None
            and len(self.rows.places) == count
        ):
            return self.first + torch.tensor(list(self.rows.places))
        rank, world = process_rank()
        return rank + world * (before + torch.arange(count))


@dataclass(frozen=True)
class SharedLoader:
    """The global batches of a loader, of which every process reads its part."""

    loader: DataLoader
    parts: Sequence[Part]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Share]:
        first = 0
        for (_, rows), batch in zip(self.parts, self.loader, strict=True):
            yield Share(batch, rows, first)
            first += rows.total


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Add up each tensor over all processes, in place."""
    if process_rank()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def budget(samples: int | float | None, available: int) -> int:
    """How many of `available` examples a count, a fraction or None (all) asks for; at least one of any."""
    if samples is None:
        return available
    return min(
        available, samples if isinstance(samples, int) else max(1, round(samples * available))
    )


def share_loader(
    loader: Iterable, samples: int | float | None = None, seed: int = 0
) -> SharedLoader | None:
    """The same data in order, in batches as large as the loader's, or None where they cannot be counted and picked.

    The parts of all processes together hold each example once (or each of `samples` drawn with `seed`). Drawing
    touches no global random state. A loader whose sampler chooses among the examples is left alone: None.
    """
    batches = _batch_sampler(loader)
    sampler, size = getattr(batches, "sampler", None), getattr(batches, "batch_size", None)
    if size is None or not _reads_everything(sampler, loader.dataset):
        return None
    generator = torch.Generator().manual_seed(seed)
    chosen: Sequence[int] = range(len(loader.dataset))
    if budget(samples, len(chosen)) < len(chosen):
        chosen = (
            torch.randperm(len(chosen), generator=generator)[: budget(samples, len(chosen))]
            .sort()
            .values.tolist()
        )
    return _share(loader, [chosen[i : i + size] for i in range(0, len(chosen), size)], generator)


def share_batches(loader: Iterable, samples: int | float | None = None) -> SharedLoader | None:
    """The very batches of a loader, shared out; None where it cannot be read by index, or is a process's own already.

    A loader that accelerate has prepared gives the batches of all processes together. Of `samples`, as many whole
    batches as hold them.
    """
    batches = _batch_sampler(loader)
    if batches is None or type(getattr(batches, "sampler", None)) is DistributedSampler:
        return None
    together = 1
    wrapper = loader.batch_sampler
    while wrapper is not batches:
        together *= 1 if getattr(wrapper, "split_batches", True) else wrapper.num_processes
        wrapper = wrapper.batch_sampler
    generator = loader.generator
    if (
        generator is None
    ):  # a loader that is read by itself draws such a seed before its sampler draws the order
        generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
    plan = [[list(batch) for batch in batches]]
    if process_rank()[1] > 1:
        dist.broadcast_object_list(
            plan
        )  # a shuffled order that was drawn in each process might be another in each
    whole = [list(chain(*plan[0][i : i + together])) for i in range(0, len(plan[0]), together)]
    if samples is not None:
        size = together * (getattr(batches, "batch_size", None) or 0)
        if not size:
            return None
        whole = whole[: math.ceil(budget(samples, len(loader.dataset)) / size)]
    return _share(loader, whole, generator)


def join_batches(batches: Iterable, device: torch.device) -> Iterator[Share]:
    """Batches of this process's own, such that all processes come to equally many and the k-th of all are one batch.

    One that has no more takes part with its last, uncounted.
    """
    last, (_, world), coming = _NOTHING, process_rank(), iter(batches)
    while True:
        batch = next(coming, _NOTHING)
        counted = batch is not _NOTHING
        last = batch if counted else last
        if not any(gather_counts(int(counted), device)):
            return
        if sum(gather_counts(int(last is not _NOTHING), device)) < world:
            raise ValueError("a process was given no batch at all; give each at least one")
        yield Share(last, Rows(None, None, counted))


def gather_counts(count: int, device: torch.device) -> list[int]:
    """The count of every process, in the order of their numbers."""
    rank, world = process_rank()
    if world == 1:
        return [count]
    counts = torch.zeros(world, dtype=torch.int64, device=device)
    counts[rank] = count
    sum_over_processes([counts])
    return counts.tolist()


def load_parts(
    dataset: Dataset, parts: Sequence[Part], collate: Callable[[Any], Any], **options: Any
) -> DataLoader:
    """A loader that gives the batch of each part; what is drawn at random for it is drawn for the whole batch."""
    return DataLoader(_Parts(dataset, collate), batch_sampler=parts, collate_fn=_leave, **options)


class _Parts(Dataset):
    def __init__(self, dataset: Dataset, collate: Callable[[Any], Any]):
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, part: Part) -> Any:
        indices, rows = part
        fetch = getattr(self.dataset, "__getitems__", None)
        with holding(rows):
            return self.collate(
                fetch(indices) if fetch else [self.dataset[index] for index in indices]
            )


def _leave(batch: Any) -> Any:
    return batch


def _share(
    loader: DataLoader, batches: Sequence[Sequence[int]], generator: torch.Generator | None
) -> SharedLoader:
    shares = [(batch, share_rows(len(batch), *process_rank())) for batch in batches]
    parts = [([batch[place] for place in rows.places], rows) for batch, rows in shares]
    shared = load_parts(
        loader.dataset,
        parts,
        loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=generator,
    )
    return SharedLoader(shared, parts)


def _batch_sampler(loader: Iterable) -> Any:
    """What decides on the batches of data that are read by index; accelerate shards a loader by wrapping it."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return batches


def _reads_everything(sampler: Sampler | None, dataset: Dataset) -> bool:
    if isinstance(sampler, RandomSampler):
        # accelerate's own, and its parent; a subclass by anybody else may choose
        known = type(sampler) in (RandomSampler, SeedableRandomSampler)
        return known and not sampler.replacement and sampler.num_samples == len(dataset)
    return type(sampler) in (SequentialSampler, DistributedSampler)
