"""One way to read a split: global batches, of which every process reads its own rows.

A run makes its `SplitLoader`s itself; from a user's DataLoader `read_in_order` and `read_batches`
make them. Nothing is padded, and the order does not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

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

from mcit.parallel.global_batch import Rows, global_batch_rows, process_rank, rows_of_process
from mcit.task import Examples

T = TypeVar("T")
# called with the number of a batch and how many examples it has
Watch = Callable[[int, int], None]
_NOTHING = object()


@dataclass(frozen=True)
class BatchPart:
    """This process's part of a global batch."""

    batch: Any
    # None: the batch belongs to this process alone
    rows: Rows | None = None
    # examples before the global batch
    first: int = 0
    # reads so many of its first examples, if they can be read again
    read_first: Callable[[int], Any] | None = None

    @property
    def counted(self) -> bool:
        """Whether the examples count here, and are not a duplicate that keeps processes in step."""
        return self.rows is None or self.rows.counted

    def number_examples(self, count: int, before: int) -> Tensor:
        """Return the place [count] of each example among those of all processes.

        before: examples that this process has read so far.
        """
        if self.rows is not None and len(self.rows.places) == count:
            return self.first + torch.tensor(list(self.rows.places), dtype=torch.long)
        rank, world = process_rank()
        return rank + world * (before + torch.arange(count))


class SplitLoader:
    """Global batches of a data set, given by the indices of their examples.

    Iterating yields this process's `BatchPart` of each. Random draws for a batch are made for all
    of its examples, whichever process holds them. `micro_batches` is the number of parts in which
    training takes a batch, so that memory suffices: `in_order` makes batches of that size.
    `watch` is called when a batch was read and worked on.
    """

    def __init__(
        self,
        dataset: Examples,
        batches: Sequence[Sequence[int]],
        collate: Callable[[Any], Any],
        *,
        workers: int = 0,
        generator: torch.Generator | None = None,
        micro_batches: int = 1,
        watch: Watch | None = None,
        **options: Any,
    ):
        self.watch = watch
        self.micro_batches = micro_batches
        self.dataset = dataset
        self.batches = batches
        self.collate = collate
        self.workers = workers
        self.generator = generator
        self.options = options

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BatchPart]:
        rank, world = process_rank()
        rows = [rows_of_process(len(batch), rank, world) for batch in self.batches]
        # a GPU copies pinned memory while the program goes on
        options = {"pin_memory": torch.cuda.is_available(), **self.options}
        loader = DataLoader(
            _RowsOfBatches(self.dataset, self.collate),
            batch_sampler=[[batch, part] for batch, part in zip(self.batches, rows, strict=True)],
            collate_fn=_identity,
            num_workers=self.workers,
            generator=self.generator,
            **options,
        )
        first = 0
        read = zip(rows, loader, self.batches, strict=True)
        for number, (part, batch, indices) in enumerate(read):
            mine = [indices[place] for place in part.places]
            yield BatchPart(batch, part, first, partial(self._read_first, mine))
            first += part.total
            if self.watch is not None:
                # whoever asks for the next one is done with it
                self.watch(number, len(indices))

    def _read_first(self, indices: Sequence[int], count: int) -> Any:
        """Return the first of these examples as a batch of their own."""
        chosen = indices[:count]
        return self.collate(load_examples(self.dataset, chosen))

    def in_order(self, samples: int | float | None = None, seed: int = 0) -> SplitLoader:
        """Return the same data in file order and batches of the same size, or of micro-batches.

        samples: a count or a fraction of the examples, drawn with `seed`; None for all. Drawing
        touches no global random state.
        """
        size = max((len(batch) for batch in self.batches), default=1)
        generator = torch.Generator().manual_seed(seed)
        indices = sorted(chain.from_iterable(self.batches))
        wanted = budget(samples, len(indices))
        if wanted < len(indices):
            drawn = torch.randperm(len(indices), generator=generator)[:wanted]
            indices = [indices[place] for place in drawn.sort().values.tolist()]
        return self._replace(cut(indices, math.ceil(size / self.micro_batches)), generator)

    def limit(self, samples: int | float | None) -> SplitLoader:
        """Return the first batches that hold `samples` examples; None for all."""
        if samples is None:
            return self
        examples = sum(len(batch) for batch in self.batches)
        size = max((len(batch) for batch in self.batches), default=1)
        count = math.ceil(budget(samples, examples) / size)
        return self._replace(self.batches[:count], self.generator)

    def _replace(
        self, batches: Sequence[Sequence[int]], generator: torch.Generator | None
    ) -> SplitLoader:
        return SplitLoader(
            self.dataset,
            batches,
            self.collate,
            workers=self.workers,
            generator=generator,
            watch=self.watch,
            **self.options,
        )


def cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return items, such as indices, in batches of `size`; the last may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def budget(samples: int | float | None, available: int) -> int:
    """Return how many of `available` examples a count, a fraction or None (all) asks for."""
    if samples is None:
        return available
    if isinstance(samples, float):
        samples = max(1, round(samples * available))
    return min(available, samples)


def read_in_order(
    loader: Any, samples: int | float | None = None, seed: int = 0
) -> SplitLoader | None:
    """Return the data of a loader in file order, or None if they cannot be counted and picked.

    A loader whose sampler chooses among the examples is left alone: None.
    """
    if isinstance(loader, SplitLoader):
        return loader.in_order(samples, seed)
    batches = _find_batch_sampler(loader)
    if batches is None:
        return None
    sampler = getattr(batches, "sampler", None)
    size = getattr(batches, "batch_size", None)
    if size is None or not _reads_everything(sampler, loader.dataset):
        return None
    indices = range(len(loader.dataset))
    return _from_loader(loader, cut(indices, size), None).in_order(samples, seed)


def read_batches(loader: Any, samples: int | float | None = None) -> SplitLoader | None:
    """Return the very batches of a loader, or None if it cannot be read by index.

    A loader that accelerate has prepared yields the batches of all processes together. Of
    `samples`, as many whole batches as hold them.
    """
    if isinstance(loader, SplitLoader):
        return loader.limit(samples)
    batches = _find_batch_sampler(loader)
    if batches is None or type(getattr(batches, "sampler", None)) is DistributedSampler:
        return None
    together = 1
    wrapper = loader.batch_sampler
    while wrapper is not batches:
        if not getattr(wrapper, "split_batches", True):
            together *= wrapper.num_processes
        wrapper = wrapper.batch_sampler
    generator = loader.generator
    if generator is None:
        # a loader that is read by itself draws such a seed before its sampler draws the order
        seed = int(torch.empty((), dtype=torch.int64).random_())
        generator = torch.Generator().manual_seed(seed)
    plan: list[list[list[int]]] = [[list(batch) for batch in batches]]
    if process_rank()[1] > 1:
        # an order that each process drew for itself might differ between them
        dist.broadcast_object_list(plan)
    whole = [list(chain(*group)) for group in cut(plan[0], together)]
    if samples is not None:
        size = together * (getattr(batches, "batch_size", None) or 0)
        if not size:
            return None
        whole = whole[: math.ceil(budget(samples, len(loader.dataset)) / size)]
    return _from_loader(loader, whole, generator)


def join_batches(batches: Iterable, device: torch.device) -> Iterator[BatchPart]:
    """Yield batches of this process such that the k-th of all processes are one global batch.

    A process that has run out takes part with its last batch, uncounted.
    """
    world = process_rank()[1]
    last: Any = _NOTHING
    coming = iter(batches)
    while True:
        batch = next(coming, _NOTHING)
        counted = batch is not _NOTHING
        if counted:
            last = batch
        if not any(gather_counts(int(counted), device)):
            return
        if sum(gather_counts(int(last is not _NOTHING), device)) < world:
            raise ValueError("a process was given no batch at all; give each at least one")
        yield BatchPart(last, Rows((), 0, counted))


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Add up each tensor over all processes, in place."""
    if process_rank()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def gather_counts(count: int, device: torch.device) -> list[int]:
    """Return the count of every process, in the order of their numbers."""
    rank, world = process_rank()
    if world == 1:
        return [count]
    counts = torch.zeros(world, dtype=torch.int64, device=device)
    counts[rank] = count
    sum_over_processes([counts])
    return counts.tolist()


class _RowsOfBatches(Dataset):
    """Loads the rows of a global batch that a process holds, and collates them."""

    def __init__(self, dataset: Examples, collate: Callable[[Any], Any]):
        self.dataset = dataset
        self.collate = collate

    def __getitems__(self, part: Sequence[Any]) -> Any:
        indices, rows = part
        mine = [indices[place] for place in rows.places]
        with global_batch_rows(rows):
            return self.collate(load_examples(self.dataset, mine))


def load_examples(dataset: Examples, indices: Sequence[int]) -> Any:
    """Return the examples at these indices, in one go if the data set can."""
    load_many = getattr(dataset, "__getitems__", None)
    if load_many is not None:
        return load_many(indices)
    return [dataset[index] for index in indices]


def _identity(batch: Any) -> Any:
    return batch


def _from_loader(
    loader: Any, batches: Sequence[Sequence[int]], generator: torch.Generator | None
) -> SplitLoader:
    return SplitLoader(
        loader.dataset,
        batches,
        loader.collate_fn,
        workers=loader.num_workers,
        generator=generator,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def _find_batch_sampler(loader: Any) -> Any:
    """Return what decides on the batches of data that are read by index, None for other data."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    # accelerate shards a loader by wrapping its batch sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return batches


def _reads_everything(sampler: Sampler | None, dataset: Sized) -> bool:
    """Whether a sampler visits every index once."""
    if isinstance(sampler, RandomSampler):
        # only these exact types are known to; a subclass may choose
        known = type(sampler) in (RandomSampler, SeedableRandomSampler)
        return known and not sampler.replacement and sampler.num_samples == len(dataset)
    return type(sampler) in (SequentialSampler, DistributedSampler)
