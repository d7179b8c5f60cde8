"""Which examples make up which step: the same for any number of processes, and from any step on."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from mcit.parallel.global_batch import Rows, share_rows
from mcit.parallel.shares import load_parts
from mcit.task import Batch, Task


@dataclass(frozen=True)
class Micro:
    """Part of a global batch on this process."""

    indices: list[int]
    rows: Rows  # which of the micro-batch that all processes share
    weight: float  # what its mean loss counts in the global mean, times the number of processes
    last: bool  # completes a step


class Source:
    """A task's training examples within a stage."""

    def __init__(self, task: Task, examples: Dataset, number: int):
        self.task, self.examples, self.number = task, examples, number
        self.batches = math.ceil(len(examples) / task.recipe.batch_size)  # per epoch
        self.steps = self.batches * task.recipe.epochs


Turn = tuple[Source, int, Iterator[tuple[Micro, Batch]]]


@dataclass(frozen=True)
class Batches:
    """The steps of a stage over one or several sources, each with the micro-batches of this process.

    `order(examples, epoch, purpose)` gives the indices of an epoch and `derive(epoch, purpose)` its seeds.
    """

    sources: Sequence[Source]
    order: Callable[[Dataset, int, int], Any]
    derive: Callable[[int, int], int]
    accumulate: int = 1
    workers: int = 0
    rank: int = 0
    world: int = 1

    @property
    def total(self) -> int:
        return sum(source.steps for source in self.sources)

    def steps(self, processor: Any, skip: int = 0) -> Iterator[Turn]:
        """Every step from number `skip` on: its source, its epoch, and its micro-batches with their data."""
        for epoch in range(max(source.task.recipe.epochs for source in self.sources)):
            running = [source for source in self.sources if epoch < source.task.recipe.epochs]
            turns = self._take_turns(running, epoch)
            if skip >= len(turns):
                skip -= len(turns)
                continue
            taken = Counter(turns[:skip])
            streams = {
                source: self._stream(source, epoch, processor, taken[source]) for source in running
            }
            for source in turns[skip:]:
                yield source, epoch, _take(streams[source])
            skip = 0

    def _take_turns(self, running: Sequence[Source], epoch: int) -> list[Source]:
        turns = [source for source in running for _ in range(source.batches)]
        if len(running) == 1:
            return turns
        generator = torch.Generator().manual_seed(self.derive(epoch, 1))
        return [turns[i] for i in torch.randperm(len(turns), generator=generator)]

    def _stream(
        self, source: Source, epoch: int, processor: Any, taken: int
    ) -> Iterator[tuple[Micro, Batch]]:
        purpose = 2 + source.number
        order = list(self.order(source.examples, epoch, purpose))
        micros = list(
            divide(order, source.task.recipe.batch_size, self.accumulate, self.rank, self.world)
        )
        ends = [place for place, micro in enumerate(micros, start=1) if micro.last]
        passed = ends[taken - 1] if taken else 0
        # Workers have random states of their own, which only reading brings to where they were: they read again what
        # is thrown away. Without workers, all is drawn from the global state, which is restored.
        skipped, thrown = (0, passed) if self.workers else (passed, 0)
        loader = load_parts(
            source.examples,
            [(micro.indices, micro.rows) for micro in micros[skipped:]],
            functools.partial(source.task.collate, processor=processor),
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(self.derive(epoch, purpose)),
        )
        return itertools.islice(zip(micros[skipped:], loader, strict=True), thrown, None)


def divide(
    order: Sequence[int], batch_size: int, accumulate: int, rank: int, world: int
) -> Iterator[Micro]:
    """A process's parts of each global batch; their weighted losses add up to the mean over the global batch.

    A batch is first cut into micro-batches and then shared, so that these are the same for any number of processes.
    """
    for start in range(0, len(order), batch_size):
        whole = order[start : start + batch_size]
        size = math.ceil(len(whole) / accumulate)
        parts = [whole[i : i + size] for i in range(0, len(whole), size)]
        for number, part in enumerate(parts, start=1):
            rows = share_rows(len(part), rank, world)
            # a process without an example takes part with weight 0, so that all take the same steps
            weight = len(rows.places) * world / len(whole) if rows.counted else 0.0
            yield Micro(
                [part[place] for place in rows.places], rows, weight, last=number == len(parts)
            )


def _take(stream: Iterator[tuple[Micro, Batch]]) -> Iterator[tuple[Micro, Batch]]:
    """The micro-batches of one step."""
    for micro, batch in stream:
        yield micro, batch
        if micro.last:
            return
