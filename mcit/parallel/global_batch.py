"""The global batch: draws and statistics that do not depend on the number of processes.

Processes divide the rows of a batch among them. Random draws are made for the whole batch, from a
generator that every process has in the same state, and each keeps those of its own rows; BatchNorm
takes its statistics over the rows of all processes.
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
    """The examples of a global batch that this process holds."""

    # their places in the batch; none if unknown
    places: Sequence[int]
    # number of examples in the batch; 0 if unknown
    total: int
    # False: a duplicated row with weight 0, so that this process stays in step with the others
    counted: bool = True


_current: Rows | None = None


def process_rank() -> tuple[int, int]:
    """Return the number of this process and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def rows_of_process(total: int, rank: int, world: int) -> Rows:
    """Return a process's examples of a batch; with too few, some duplicate the first."""
    mine = range(rank, total, world)
    if mine:
        return Rows(mine, total)
    return Rows(range(1), total, counted=False)


@contextmanager
def global_batch_rows(rows: Rows | None) -> Iterator[None]:
    """Declare that these rows, of a batch shared by all processes, are computed inside."""
    global _current
    before = _current
    _current = rows
    try:
        yield
    finally:
        _current = before


def draw_rows(draw: Callable[[int], Tensor], count: int) -> Tensor:
    """Return `draw(count)` [count, ...] for the examples of this process.

    For a shared batch it is drawn for all examples and this process keeps its own, so that the
    global generator moves on as far as in a process that is alone. An example may have several
    rows, one after the other, as many as the others.
    """
    rows = _current
    if rows is None or len(rows.places) == rows.total:
        return draw(count)
    held = len(rows.places)
    copies, rest = divmod(count, held)
    if rest or not copies:
        raise RuntimeError(
            f"numbers are drawn for {count} examples, but this process holds {held} of the batch"
        )
    places = torch.tensor(list(rows.places)).view(-1, 1) * copies + torch.arange(copies)
    return draw(rows.total * copies)[places.flatten().tolist()]


def sum_over_batch(value: Tensor) -> Tensor:
    """Return a sum over this process's rows, summed over those of all processes.

    Gradients go through it: losses that every process computes of it, and weights by its rows, add
    up to one loss.
    """
    if _current is None or process_rank()[1] == 1:
        return value
    return _SumOverProcesses.apply(value * float(_current.counted))


def mean_over_rows(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count over all processes, as a share of the mean over their examples.

    total: of something that examples have several of, such as tokens; count: how many, both of this
    process. A trainer weighs the loss of a process by its number of examples; weighed so, the
    results of all processes add up to the mean over all tokens of the batch.
    """
    rows = _current
    world = process_rank()[1]
    if rows is None or world == 1:
        return total / count
    everywhere = count.to(total.dtype, copy=True)
    if not rows.counted:
        everywhere.zero_()
    dist.all_reduce(everywhere)
    return total / everywhere * (rows.total / len(rows.places))


class Dropout(nn.Dropout):
    """`nn.Dropout` of [examples, ...] whose draws do not depend on the number of processes."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        keep = draw_rows(
            lambda count: x.new_empty(count, *x.shape[1:]).bernoulli_(1 - self.p), len(x)
        )
        return x * keep.div_(1 - self.p)


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that normalizes by the statistics of all rows on all processes.

    torch's SyncBatchNorm does so on GPUs only. In one process, in eval mode, and outside
    `global_batch_rows` this is its parent.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or _current is None or process_rank()[1] == 1:
            return super().forward(x)
        self._check_input_dim(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance, count = _measure_channels(wide, _current.counted)
        if count == 1:
            raise ValueError(
                "BatchNorm needs more than one value per channel, and all processes together "
                "hold one"
            )
        self._follow(mean.detach(), variance.detach() * (count / (count - 1)))
        centered = wide - mean.view(1, -1, 1, 1)
        scale = torch.rsqrt(variance + self.eps)
        if not self.affine:
            return (centered * scale.view(1, -1, 1, 1) + 0.0).to(x.dtype)
        scale = scale * self.weight
        return (centered * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        if (
            self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        self.num_batches_tracked += 1
        rate = self.momentum
        if rate is None:
            rate = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), rate)
        self.running_var.lerp_(variance.to(self.running_var), rate)


def _measure_channels(x: Tensor, counted: bool) -> tuple[Tensor, Tensor, float]:
    """Return mean and variance [channels] over all processes, and the number of values."""
    rank, world = process_rank()
    mean = x.mean(dim=(0, 2, 3))
    spread = (x - mean.view(1, -1, 1, 1)).square().sum(dim=(0, 2, 3))
    count = x.new_full((1,), x.numel() // x.shape[1])
    mine = torch.cat([mean, spread, count]) * float(counted)  # [2 * channels + 1]
    parts = x.new_zeros(world, len(mine)).index_put((torch.tensor(rank, device=x.device),), mine)
    means, spreads, counts = _SumOverProcesses.apply(parts).split([len(mean), len(mean), 1], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total
    # centered before they are added up: the difference of two large squares would lose digits
    variance = (spreads + counts * (means - mean).square()).sum(dim=0) / total
    return mean, variance, float(total.detach())


def find_batch_covariance(x: Tensor) -> tuple[Tensor, int]:
    """Return the unbiased covariance [width, width] of rows [rows, width], and how many there are.

    The rows are those of all processes, and gradients reach them all.
    """
    counted = _current is None or _current.counted
    weight = x.new_full((1,), float(len(x)) * counted)
    sums = torch.cat([x.sum(dim=0) * counted, weight])
    if process_rank()[1] > 1 and _current is not None:
        sums = _SumOverProcesses.apply(sums)
    count = int(sums[-1])
    centered = x - sums[:-1] / count
    products = centered.T @ centered * counted
    if process_rank()[1] > 1 and _current is not None:
        products = _SumOverProcesses.apply(products)
    return products / max(count - 1, 1), count


class _SumOverProcesses(torch.autograd.Function):
    """Sums a tensor over all processes; its gradient is the sum of theirs."""

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
