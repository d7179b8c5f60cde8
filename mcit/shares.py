"""Each example once: a process's own share of the data, in a fixed order, never padded; and sums over processes."""

from __future__ import annotations

from collections.abc import Iterable

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


def process_rank() -> tuple[int, int]:
    """This process's number and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Add up each tensor over all processes, in place."""
    if process_rank()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def budget(samples: int | float | None, available: int) -> int:
    """How many of `available` examples a count, a fraction or None (all) asks for; at least one of any."""
    if samples is None:
        return available
    return min(available, samples if isinstance(samples, int) else max(1, round(samples * available)))


def share_loader(loader: Iterable, samples: int | float | None = None, seed: int = 0) -> DataLoader | None:
    """A loader over this process's share of the same data, or None where the data cannot be counted and picked.

    The shares of all processes together hold each example once (or each of `samples` drawn with `seed`). Drawing
    touches no global random state. A loader whose sampler chooses among the examples is left alone: None.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        sampler, batch_size = loader.sampler, None
    else:
        batches = loader.batch_sampler
        while hasattr(batches, "batch_sampler"):  # accelerate shards a loader by wrapping its batch sampler
            batches = batches.batch_sampler
        sampler, batch_size = getattr(batches, "sampler", None), getattr(batches, "batch_size", None)
    if not _reads_everything(sampler, loader.dataset) or batch_size is None:
        return None
    rank, world = process_rank()
    generator = torch.Generator().manual_seed(seed)
    chosen = range(len(loader.dataset))
    if budget(samples, len(chosen)) < len(chosen):
        chosen = torch.randperm(len(chosen), generator=generator)[: budget(samples, len(chosen))].sort().values.tolist()
    return DataLoader(
        loader.dataset,
        batch_size=batch_size,
        sampler=chosen[rank::world],
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=generator,
    )


def _reads_everything(sampler: Sampler | None, dataset: Dataset) -> bool:
    if isinstance(sampler, RandomSampler):
        # accelerate's own, and its parent; a subclass by anybody else may choose
        known = type(sampler) in (RandomSampler, SeedableRandomSampler)
        return known and not sampler.replacement and sampler.num_samples == len(dataset)
    return type(sampler) in (SequentialSampler, DistributedSampler)
