"""The global batch: what depends on all of its rows, wherever they are.

Several processes share the rows of a batch out among them. Random draws for its examples and BatchNorm's statistics
must not depend on how many they are: draws are made for the whole batch, from a generator that every process has in
the same state, and each keeps those of its own rows; statistics are taken over the rows of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """Which examples of a global batch this process holds."""

    places: Sequence[int] | None  # in the batch, of the examples that are here; None: not known
    total: int | None  # examples in the batch
    counted: bool = True  # False where it has none of its own, and takes part with one that another process counts


_held: Rows | None = None


def process_rank() -> tuple[int, int]:
    """This process's number and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def share_rows(total: int, rank: int, world: int) -> Rows:
    """A process's examples of a batch of `total`; where there are fewer than processes, some hold the first."""
    mine = range(rank, total, world)
    return Rows(mine, total) if mine else Rows(range(1), total, counted=False)


@contextmanager
def holding(rows: Rows | None) -> Iterator[None]:
    """What is computed inside is about these rows of a batch that all processes share; None: not shared."""
    global _held
    before, _held = _held, rows
    try:
        yield
    finally:
        _held = before


def draw_rows(draw: Callable[[int], Tensor], count: int) -> Tensor:
    """`draw(count)` [count, ...] for the examples at hand; of a shared batch, it is drawn for all and they keep theirs.

    `draw` uses the global generator, which then moves on as far as in a process that is alone.
    """
    if _held is None or _held.places is None or len(_held.places) == _held.total:
        return draw(count)
    if count != len(_held.places):
        raise RuntimeError(
            f"{count} examples are drawn for where this process holds {len(_held.places)} of the batch"
        )
    return draw(_held.total)[list(_held.places)]


class Dropout(nn.Dropout):
    """`nn.Dropout` of activations [examples, ...] whose draws do not depend on the number of processes."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        keep = draw_rows(
            lambda count: x.new_empty(count, *x.shape[1:]).bernoulli_(1 - self.p), len(x)
        )
        return x * keep.div_(1 - self.p)


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that normalises a batch shared by processes by the statistics of all its rows.

    torch's SyncBatchNorm does so on GPUs only. Alone, in eval mode, and outside `holding`, this is its parent.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or _held is None or process_rank()[1] == 1:
            return super().forward(x)
        self._check_input_dim(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance, count = _measure_channels(wide, _held.counted)
        if count == 1:
            raise ValueError(
                "BatchNorm needs more than one value per channel, and all processes together hold one"
            )
        self._follow(mean.detach(), variance.detach() * (count / (count - 1)))
        scale, shift = torch.rsqrt(variance + self.eps), 0.0
        if self.affine:
            scale, shift = scale * self.weight, self.bias.view(1, -1, 1, 1)
        return ((wide - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + shift).to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None:
            return
        self.num_batches_tracked += 1
        pace = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), pace)
        self.running_var.lerp_(variance.to(self.running_var), pace)


def _measure_channels(x: Tensor, counted: bool) -> tuple[Tensor, Tensor, float]:
    """Mean and variance [channels] over the rows of all processes, and how many values each is of."""
    rank, world = process_rank()
    mean = x.mean(dim=(0, 2, 3))
    spread = (x - mean.view(1, -1, 1, 1)).square().sum(dim=(0, 2, 3))
    count = x.new_full((1,), x.numel() // x.shape[1])
    mine = torch.cat([mean, spread, count]) * float(counted)  # [2 * channels + 1]
    parts = x.new_zeros(world, len(mine)).index_put((torch.tensor(rank, device=x.device),), mine)
    means, spreads, counts = _SumOverProcesses.apply(parts).split([len(mean), len(mean), 1], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total
    # centred before they are added up: the difference of two large squares would lose digits
    variance = (spreads + counts * (means - mean).square()).sum(dim=0) / total
    return mean, variance, float(total.detach())


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient
