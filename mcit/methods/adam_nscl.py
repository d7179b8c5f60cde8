"""Adam-NSCL: steps in the approximate null space of the inputs of earlier tasks.

Wang et al., Training networks in null space of feature covariance for continual learning,
CVPR 2021, https://arxiv.org/abs/2103.07113

After task t     X += sum over batches of x'x, x = inputs of a layer (patches of a convolution),
                 averaged over the batch first
                 V = eigenvectors of X with eigenvalues <= ratio * the smallest
In later tasks   dW = dW V V' / ||V V'||, the length of V V' being sqrt(directions in V)

Differs from the public code: it works with every optimizer, since the finished step is projected;
norms and biases stay as they are instead of being held by EWC; with one head for all classes the
rows of earlier classes stay too; the smallest eigenvalue counts as at least `floor` of the largest,
since with dead channels it is 0. Under torch 2 the public code projects nothing, without a word:
zero_grad() leaves no gradients, and it then computes no projector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mcit.class_statistics import find_device
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.method import Stage
from mcit.parallel.global_batch import process_rank
from mcit.parallel.loading import cut, sum_over_processes
from mcit.parallel.processes import broadcast
from mcit.projecting import (
    ProjectingMethod,
    Projector,
    find_layers,
    list_patches,
    read_plain,
    watch_layers,
)


@dataclass
class AdamNscl(ProjectingMethod):
    """The covariance of the inputs of every layer, summed over tasks, and its null space."""

    name = "adam_nscl"
    ratio: float | None = option(
        10.0,
        help="eigenvalues up to this multiple of the smallest count as zero; none: no projection, "
        "which is finetuning",
    )
    floor: float = option(
        1e-8, help=("the smallest eigenvalue is at least this fraction of the largest")
    )
    average: bool = option(True, help="average inputs over the batch before they are multiplied")
    shrink: bool = option(
        True, help="divide steps by the root of the number of directions, as the public code does"
    )
    covariances: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    spaces: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if self.ratio is not None and not self.ratio >= 1:
            problems.append(f"method.ratio must be at least 1, or none, found {self.ratio:g}")
        if not 0 <= self.floor < 1:
            problems.append(f"method.floor must be at least 0 and below 1, found {self.floor:g}")
        if problems:
            raise ConfigError(problems)

    def projects(self) -> bool:
        return self.ratio is not None

    def make_projectors(self) -> Mapping[str, Projector]:
        made = {}
        for name, space in self.spaces.items():
            scale = 1 / math.sqrt(space.shape[1]) if self.shrink else 1.0
            made[name] = Projector(space, within=True, scale=scale)
        return made

    def see_inputs(self, stage: Stage) -> Sequence[str]:
        if self.ratio is None:
            return ()
        device = find_device(stage.learner)
        for name, covariance in self._accumulate(stage).items():
            if name in self.covariances:
                covariance += self.covariances[name].to(device)
            self.covariances[name] = covariance.cpu()
        spaces = None
        if process_rank()[0] == 0:
            spaces = {}
            for name, covariance in self.covariances.items():
                space = find_null_space(covariance.to(device), self.ratio, self.floor)
                spaces[name] = space.cpu()
        # one process computes: another might round its way to another number of directions
        self.spaces = broadcast(spaces)
        free = sum(space.shape[1] for space in self.spaces.values())
        total = sum(space.shape[0] for space in self.spaces.values())
        return [f"Adam-NSCL leaves {free} of {total} input directions in {len(self.spaces)} layers"]

    def _accumulate(self, stage: Stage) -> dict[str, Tensor]:
        """Return the sum of x'x [inputs, inputs] of each layer over the task's batches."""
        generator = torch.Generator().manual_seed(stage.seed + 1009 * stage.index)
        order = torch.randperm(len(stage.task.examples("plain")), generator=generator).tolist()
        size = stage.task.recipe.batch_size
        rank, world = process_rank()
        # a process takes whole batches, since they are averaged
        mine = cut(order, size)[rank::world]
        found = {}
        for name, layer in find_layers(stage.learner).items():
            inputs = layer.weight[0].numel()
            found[name] = layer.weight.new_zeros(inputs, inputs)

        def see(name: str, layer: nn.Module, inputs: Tensor) -> None:
            if self.average:
                inputs = inputs.mean(dim=0, keepdim=True)
            rows = list_patches(layer, inputs)
            found[name] += rows.T @ rows

        watch_layers(stage, read_plain(stage, mine), see)
        sum_over_processes(found.values())
        # a layer whose weights are used without it has shown nothing, and does not move
        return {name: gram for name, gram in found.items() if bool(gram.any())}

    def examples_read(self, stage: Stage) -> int:
        if not stage.later or not self.projects():
            return 0
        return len(stage.task.examples("plain"))

    def state_dict(self) -> Mapping[str, Any]:
        return {"covariances": self.covariances, "spaces": self.spaces}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.covariances = dict(state["covariances"])
        self.spaces = dict(state["spaces"])
        self._make_projection(stage)

    def describe(self) -> str:
        if self.ratio is None:
            return "no projection (Adam-NSCL with ratio none)"
        return (
            "steps in the null space of earlier inputs (Adam-NSCL): "
            f"eigenvalues up to {self.ratio:g} times the smallest"
        )

    def bytes_held(self) -> int:
        held = [*self.covariances.values(), *self.spaces.values()]
        return sum(tensor.nbytes for tensor in held)


def find_null_space(covariance: Tensor, ratio: float, floor: float = 0.0) -> Tensor:
    """Return the eigenvectors [inputs, count] with eigenvalues up to `ratio` times the smallest."""
    values, vectors = torch.linalg.eigh(covariance.double())
    smallest = values[0].clamp_min(max(0.0, float(floor * values[-1])))
    return vectors[:, values <= ratio * smallest].to(covariance.dtype)
