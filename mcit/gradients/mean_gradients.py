"""Squares of gradients that processes must add up first: of a global batch's mean, or of weights that are sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from mcit.gradients.per_example import make_sum
from mcit.parallel.global_batch import process_rank
from mcit.parallel.sharded import is_sharded, local
from mcit.parallel.shares import gather_counts, sum_over_processes


class MeanGradients:
    """Accumulates f(gradient) for named parameters, f the square or the absolute value, in `sums`; of a sharded
    parameter, this process's part. All processes must call, also one whose examples are not counted."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], absolute: bool = False):
        self.parameters, self.absolute = parameters, absolute
        self.sums = {name: make_sum(local(parameter)) for name, parameter in parameters.items()}
        self.device = next(iter(self.sums.values())).device
        self.sharded = _check_meshes(parameters)
        self.batches = self.examples = 0

    def add_mean(self, score: Tensor, counted: bool) -> None:
        """Add the gradient of the mean of all processes' scores [examples]."""
        total = sum(gather_counts(len(score) if counted else 0, self.device))
        self._add(
            score.mean() if process_rank()[1] == 1 else score.sum() * (float(counted) / total)
        )
        self.batches, self.examples = self.batches + 1, self.examples + total

    def add_each(self, vectors: Sequence[Tensor], counted: bool) -> None:
        """Add the gradient of each process's each score, for all vectors [examples] of scores."""
        rank, counts = (
            process_rank()[0],
            gather_counts(len(vectors[0]) if counted else 0, self.device),
        )
        for vector in vectors:
            for owner, count in enumerate(counts):
                for place in range(count):
                    # the others take part with nothing: their weights are needed, and theirs is a part of the gradient
                    self._add(
                        vector[place] if owner == rank else vector.sum() * 0, retain_graph=True
                    )
        self.examples += sum(counts)

    def _add(self, loss: Tensor, retain_graph: bool = False) -> None:
        found = self._differentiate(loss, retain_graph)
        for total, gradient in zip(self.sums.values(), found, strict=True):
            if gradient is not None:
                gradient = gradient.to(total.dtype)
                total += gradient.abs() if self.absolute else gradient.square()

    def _differentiate(self, loss: Tensor, retain_graph: bool) -> Iterator[Tensor | None]:
        """The gradients of the sum of all processes' losses."""
        world, parameters = process_rank()[1], list(self.parameters.values())
        if self.sharded:  # FSDP averages, and only where a gradient is accumulated
            for parameter in parameters:
                parameter.grad = None
            (loss * world).backward(retain_graph=retain_graph)
            found = [parameter.grad for parameter in parameters]
        else:
            found = torch.autograd.grad(
                loss, parameters, allow_unused=True, retain_graph=retain_graph
            )
        for parameter, gradient in zip(parameters, found, strict=True):
            if world > 1 and not is_sharded(parameter):
                # a copy, because autograd may give two parameters the same memory
                gradient = torch.zeros_like(parameter) if gradient is None else gradient.clone()
                gradient = gradient.contiguous()
                sum_over_processes([gradient])
                gradient = gradient / world if self.sharded else gradient
            yield None if gradient is None else local(gradient)


def _check_meshes(parameters: Mapping[str, nn.Parameter]) -> bool:
    """Whether any parameter is sharded; those that are must be so over all processes, or their means are not ours."""
    world, sharded = process_rank()[1], False
    for name, parameter in parameters.items():
        if is_sharded(parameter):
            sharded = True
            if parameter.device_mesh.size() != world:
                raise ValueError(
                    f"{name!r} is sharded over {parameter.device_mesh.size()} of {world} processes; importance needs "
                    "parameters that are sharded over all, or a copy of the model that is not sharded"
                )
    return sharded
