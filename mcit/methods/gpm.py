"""Gradient projection memory (GPM): steps orthogonal to the inputs of earlier tasks.

Saha, Garg and Roy, Gradient projection memory for continual learning, ICLR 2021,
https://arxiv.org/abs/2103.09762

After task t     R = inputs of a layer (patches of a convolution), as columns
                 R' = R - M M'R, and its left singular vectors join M until M holds a share
                 threshold + growth * t of ||R||^2
In later tasks   dW = dW - dW M M'

Differs from the public code, where tasks have heads of their own and SGD is plain: the finished
step is projected and not the gradient, which is the same for SGD and right for momentum, weight
decay and Adam; BatchNorm keeps its statistics from the second task on, where the code has none; and
with one head for all classes the rows of earlier classes stay as they are.
"""

from __future__ import annotations

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
from mcit.parallel.loading import cut
from mcit.parallel.processes import broadcast
from mcit.projecting import ProjectingMethod, Projector, list_patches, read_plain, watch_layers

# parts of the largest singular value squared that are taken for rounding
ROUNDING = 1e-12


@dataclass
class Gpm(ProjectingMethod):
    """A basis of the inputs of every layer."""

    name = "gpm"
    threshold: float = option(
        0.97, help="fraction of the inputs' energy that the basis holds; 0 is finetuning"
    )
    growth: float = option(0.003, help="added to the threshold with every task")
    examples: int = option(128, help="training examples of a task whose inputs are used")
    vectors: int = option(2048, help="largest number of inputs kept for each layer")
    bases: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name, value in (("threshold", self.threshold), ("growth", self.growth)):
            if not 0 <= value <= 1:
                problems.append(f"method.{name} must lie between 0 and 1, found {value:g}")
        for name, count in (("examples", self.examples), ("vectors", self.vectors)):
            if count < 1:
                problems.append(f"method.{name} must be at least 1, found {count}")
        if problems:
            raise ConfigError(problems)

    def projects(self) -> bool:
        return self.threshold > 0

    def make_projectors(self) -> Mapping[str, Projector]:
        return {name: Projector.avoid(basis) for name, basis in self.bases.items()}

    def see_inputs(self, stage: Stage) -> Sequence[str]:
        threshold = min(1.0, self.threshold + self.growth * stage.index)
        inputs = self._collect(stage)
        extended = None
        if process_rank()[0] == 0:
            extended = {}
            device = find_device(stage.learner)
            for name, rows in inputs.items():
                basis = self.bases.get(name)
                extended[name] = extend_basis(basis, rows.to(device), threshold).cpu()
        # one process computes: another might round its way to another number of directions
        self.bases = broadcast(extended)
        taken = sum(basis.shape[1] for basis in self.bases.values())
        total = sum(basis.shape[0] for basis in self.bases.values())
        return [f"GPM holds {taken} of {total} input directions in {len(self.bases)} layers"]

    def _collect(self, stage: Stage) -> dict[str, Tensor]:
        """Return inputs [vectors, inputs] of each layer for a few examples, drawn at random."""
        generator = torch.Generator().manual_seed(stage.seed + 1009 * stage.index)
        available = len(stage.task.examples("plain"))
        drawn = torch.randperm(available, generator=generator)[: self.examples].tolist()
        size = min(stage.task.recipe.batch_size, len(drawn))
        quota = -(-self.vectors * size // len(drawn))
        found: dict[str, list[Tensor]] = {}

        def see(name: str, layer: nn.Module, inputs: Tensor) -> None:
            # as many examples as have enough patches: an unfolded batch would be large
            rows = list_patches(layer, inputs[:1])
            wanted = min(len(inputs), -(-quota // len(rows)))
            rows = list_patches(layer, inputs[:wanted])
            if len(rows) > quota:
                rows = rows[torch.randperm(len(rows), generator=generator)[:quota].to(rows.device)]
            found.setdefault(name, []).append(rows.cpu())

        watch_layers(stage, read_plain(stage, cut(drawn, size)), see)
        return {name: torch.cat(rows)[: self.vectors] for name, rows in found.items()}

    def examples_read(self, stage: Stage) -> int:
        if not stage.later or not self.projects():
            return 0
        return min(self.examples, len(stage.task.examples("plain")))

    def state_dict(self) -> Mapping[str, Any]:
        return {"bases": self.bases}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.bases = dict(state["bases"])
        self._make_projection(stage)

    def describe(self) -> str:
        return (
            "steps orthogonal to earlier inputs (GPM): "
            f"threshold {self.threshold:g} + {self.growth:g} per task, {self.examples} examples"
        )

    def bytes_held(self) -> int:
        return sum(basis.nbytes for basis in self.bases.values())


def extend_basis(basis: Tensor | None, rows: Tensor, threshold: float) -> Tensor:
    """Return a basis [inputs, directions] that also holds a share of the energy of `rows`.

    rows: inputs [vectors, inputs]. As in the public code, the first basis stays just below the
    threshold, and later ones reach it; 1 stands for all.
    """
    precision = rows.dtype
    rows = rows.double()
    total = rows.square().sum()
    if basis is None:
        basis = rows.new_zeros(rows.shape[1], 0)
    first = basis.shape[1] == 0
    old = basis.to(rows)
    rest = rows - (rows @ old) @ old.T
    energies, directions = find_directions(rest)
    held = (total - rest.square().sum()) / total
    reached = held + energies.cumsum(dim=0) / total
    if threshold >= 1:
        count = len(energies)
    elif first:
        count = int((reached < threshold).sum())
    else:
        before = torch.cat([held.view(1), reached[:-1]])
        count = int((before < threshold).sum())
    count = min(count, len(energies), rows.shape[1] - old.shape[1])
    # orthonormal again, to the last digit
    joined = torch.linalg.qr(torch.cat([old, directions[:, :count]], dim=1)).Q
    return joined.to(precision)


def find_directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared singular values, largest first, and right singular vectors [inputs, count].

    They come from the smaller of the two Gram matrices, without those that are only rounding.
    """
    vectors, inputs = rows.shape
    gram = rows.T @ rows if inputs <= vectors else rows @ rows.T
    energies, found = torch.linalg.eigh(gram)
    kept = energies > ROUNDING * energies[-1].clamp_min(torch.finfo(rows.dtype).tiny)
    energies = energies[kept].flip(0)
    found = found[:, kept].flip(1)
    if inputs > vectors:
        found = rows.T @ found / energies.sqrt()
    return energies, found
