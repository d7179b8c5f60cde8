"""Squares of gradients that processes must add up first: of batch means, or of sharded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mcit.gradients.contributions import magnitude
from mcit.gradients.per_example import make_sum
from mcit.parallel.global_batch import process_rank
from mcit.parallel.loading import gather_counts, sum_over_processes
from mcit.parallel.sharded import is_sharded, to_local


class MeanGradients:
    """Sums squares, or absolute values, of gradients of named parameters, in `sums`.

    Of a sharded parameter, this process's part. All processes must call, also one whose examples
    are not counted.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], absolute: bool = False):
        self.parameters = parameters
        self.absolute = absolute
        self.sums = {name: make_sum(to_local(p)) for name, p in parameters.items()}
        self.device = next(iter(self.sums.values())).device
        self.rank, self.world = process_rank()
        self.sharded = any(is_sharded(parameter) for parameter in parameters.values())
        # whether `sums` are of this process's examples alone
        self.apart = False
        self.batches = 0
        self.examples = 0
        self._check_meshes()

    def add_mean(self, score: Tensor, counted: bool) -> None:
        """Add the gradient of the mean of all processes' scores [examples]."""
        total = sum(gather_counts(len(score) if counted else 0, self.device))
        if self.world == 1:
            mean = score.mean()
        else:
            mean = score.sum() * (float(counted) / total)
        self._add(mean, retain_graph=False)
        self.batches += 1
        self.examples += total

    def add_each(self, vectors: Sequence[Tensor], counted: bool) -> None:
        """Add the gradient of every score of every process, for all vectors [examples]."""
        counts = gather_counts(len(vectors[0]) if counted else 0, self.device)
        self.examples += sum(counts)
        if not self.sharded:
            self._add_own(vectors, counts)
            return
        for vector in vectors:
            # the other processes add a zero loss, so that FSDP's collectives run everywhere
            nothing = vector.sum() * 0
            for owner, count in enumerate(counts):
                for place in range(count):
                    loss = vector[place] if owner == self.rank else nothing
                    self._add(loss, retain_graph=True)

    def _add_own(self, vectors: Sequence[Tensor], counts: Sequence[int]) -> None:
        """Add the gradients of this process's scores, in step with the others.

        The weights between them and what is measured are sharded, and gathered by all at a time.
        """
        parameters = list(self.parameters.values())
        for vector in vectors:
            for place in range(max(counts)):
                counts_here = place < counts[self.rank]
                loss = vector[place] if counts_here else vector.sum() * 0
                gradients = torch.autograd.grad(
                    loss, parameters, allow_unused=True, retain_graph=True
                )
                for name, gradient in zip(self.parameters, gradients, strict=True):
                    if gradient is not None and counts_here:
                        self._add_square(name, gradient)
        self.apart = True

    def finish(self) -> None:
        """Add up what processes have summed of their own examples."""
        if self.apart:
            sum_over_processes(self.sums.values())
            self.apart = False

    def _add(self, loss: Tensor, retain_graph: bool) -> None:
        gradients = self._differentiate(loss, retain_graph)
        for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True):
            if self.world > 1 and not is_sharded(parameter):
                gradient = self._sum_over_processes(parameter, gradient)
            if gradient is not None:
                self._add_square(name, gradient)

    def _add_square(self, name: str, gradient: Tensor) -> None:
        total = self.sums[name]
        total += magnitude(to_local(gradient).to(total.dtype), self.absolute)

    def _differentiate(self, loss: Tensor, retain_graph: bool) -> Sequence[Tensor | None]:
        """Return this process's gradients; those of sharded parameters are of all losses' sum."""
        parameters = list(self.parameters.values())
        if not self.sharded:
            return torch.autograd.grad(
                loss, parameters, allow_unused=True, retain_graph=retain_graph
            )
        # FSDP reduces gradients only when they are accumulated, and averages them
        for parameter in parameters:
            parameter.grad = None
        (loss * self.world).backward(retain_graph=retain_graph)
        return [parameter.grad for parameter in parameters]

    def _sum_over_processes(self, parameter: nn.Parameter, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        # a copy, because autograd may give two parameters the same memory
        gradient = gradient.clone().contiguous()
        sum_over_processes([gradient])
        if self.sharded:
            # the loss was multiplied for FSDP's average, which left this parameter out
            return gradient / self.world
        return gradient

    def _check_meshes(self) -> None:
        """Raise a ValueError if a parameter is sharded over some of the processes only."""
        for name, parameter in self.parameters.items():
            if is_sharded(parameter) and parameter.device_mesh.size() != self.world:
                raise ValueError(
                    f"{name!r} is sharded over {parameter.device_mesh.size()} of {self.world} "
                    "processes; importance needs parameters that are sharded over all, or a copy "
                    "of the model that is not sharded"
                )
