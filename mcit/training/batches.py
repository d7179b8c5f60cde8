"""The examples of every optimizer step: the same for any number of processes."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mcit.parallel.global_batch import Rows, process_rank, rows_of_process
from mcit.parallel.loading import SplitLoader
from mcit.task import Batch, Examples, Task


class Source:
    """The training examples of a task within a stage."""

    def __init__(self, task: Task, examples: Examples, number: int):
        self.task = task
        self.examples = examples
        self.number = number
        self.batches_per_epoch = math.ceil(len(examples) / task.recipe.batch_size)
        self.steps = self.batches_per_epoch * task.recipe.epochs


@dataclass(frozen=True)
class MicroBatch:
    """This process's rows of a part of a global batch, and their weight in the mean loss."""

    batch: Batch
    rows: Rows
    # times the number of processes, by which DDP divides
    weight: float
    # whether it completes an optimizer step
    last: bool


@dataclass(frozen=True)
class ScheduledStep:
    """One optimizer step: where its examples come from, and its micro-batches."""

    source: Source
    epoch: int
    micro_batches: Iterator[MicroBatch]


@dataclass(frozen=True)
class Schedule:
    """The steps of a stage over one or several sources.

    seed_of: returns a seed for an epoch and a purpose; 1 is the order of the sources, 2 and more
    are the orders of their examples.
    """

    sources: Sequence[Source]
    seed_of: Callable[[int, int], int]
    accumulate: int = 1
    workers: int = 0

    @property
    def total(self) -> int:
        """Return the number of steps."""
        return sum(source.steps for source in self.sources)

    def steps(self, processor: Any, skip: int = 0) -> Iterator[ScheduledStep]:
        """Yield every step from number `skip` on."""
        epochs = max(source.task.recipe.epochs for source in self.sources)
        for epoch in range(epochs):
            running = [s for s in self.sources if epoch < s.task.recipe.epochs]
            turns = self._take_turns(running, epoch)
            if skip >= len(turns):
                skip -= len(turns)
                continue
            taken = Counter(turns[:skip])
            streams = {s: self._stream(s, epoch, processor, taken[s]) for s in running}
            for source in turns[skip:]:
                yield ScheduledStep(source, epoch, _one_step(streams[source]))
            skip = 0

    def _take_turns(self, running: Sequence[Source], epoch: int) -> list[Source]:
        """Return the source of every step of an epoch, in random order if there are several."""
        turns = [source for source in running for _ in range(source.batches_per_epoch)]
        if len(running) == 1:
            return turns
        generator = torch.Generator().manual_seed(self.seed_of(epoch, 1))
        return [turns[i] for i in torch.randperm(len(turns), generator=generator)]

    def _stream(
        self, source: Source, epoch: int, processor: Any, taken: int
    ) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an epoch after `taken` steps of it."""
        seed = self.seed_of(epoch, 2 + source.number)
        parts = divide(
            shuffle(len(source.examples), seed), source.task.recipe.batch_size, self.accumulate
        )
        ends = [place for place, part in enumerate(parts, start=1) if part.last]
        passed = ends[taken - 1] if taken else 0
        # Workers have random states of their own, which only reading brings to where they were:
        # what was learned from is read again if it was drawn. Without workers everything is drawn
        # from the global state, which is restored.
        read_again = self.workers > 0 and source.task.draws
        unread = 0 if read_again else passed
        loader = SplitLoader(
            source.examples,
            [part.indices for part in parts[unread:]],
            functools.partial(source.task.collate, processor=processor),
            workers=self.workers,
            generator=torch.Generator().manual_seed(seed),
        )
        rank, world = process_rank()
        pairs = zip(parts[unread:], loader, strict=True)
        for part, read in itertools.islice(pairs, passed - unread, None):
            rows = rows_of_process(len(part.indices), rank, world)
            yield MicroBatch(read.batch, rows, part.weight(rows, world), part.last)


@dataclass(frozen=True)
class BatchDivision:
    """A micro-batch before it is read: examples of all processes, size of the global batch."""

    indices: Sequence[int]
    batch_size: int
    last: bool

    def weight(self, rows: Rows, world: int) -> float:
        """Return the weight of a process's mean loss, so that all add up to the global mean.

        world: the number of processes.
        """
        if not rows.counted:
            return 0.0
        return len(rows.places) * world / self.batch_size


def divide(order: Sequence[int], batch_size: int, accumulate: int) -> list[BatchDivision]:
    """Return the micro-batches of an epoch, each global batch cut into `accumulate` parts.

    Processes divide the micro-batches, which are therefore the same for any number of them.
    """
    parts = []
    for start in range(0, len(order), batch_size):
        whole = order[start : start + batch_size]
        size = math.ceil(len(whole) / accumulate)
        for begin in range(0, len(whole), size):
            end = begin + size
            parts.append(BatchDivision(whole[begin:end], len(whole), last=end >= len(whole)))
    return parts


def shuffle(count: int, seed: int) -> list[int]:
    """Return the numbers below `count` in an order that depends on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator).tolist()


def _one_step(stream: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of one step."""
    for micro_batch in stream:
        yield micro_batch
        if micro_batch.last:
            return
