"""KeepLoRA: each task learns in directions of its gradient that nothing learned before uses.

Luo et al., KeepLoRA: continual learning with residual gradient adaptation, ICLR 2026,
https://arxiv.org/abs/2601.19659

M, rows that are orthonormal, spans what must be kept of a layer's inputs.

At the start     M = the leading right singular vectors of W, up to `general` of its energy
Before task t    G = mean gradient of the loss by W; A_t = the leading right singular vectors of
                 G (I - M^T M), B_t = 0
During task t    B_t alone trains; pairs before it stay, frozen and acting
After task t     directions of the gradient G at the new weights are appended to M, the leading
                 right singular vectors of G (I - M^T M), until M has `share` of the energy of G

Differs from the public code: the gradient is measured in eval mode; singular vectors are computed
in double precision, with the largest entry positive, and not by a randomized method; a finished
pair stays next to the layer instead of being merged into its weight. Where the residual has fewer
directions than the rank, the rows of A that are left are zero and learn nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.fresh_pairs import FreshPairMethod, fresh_pairs
from mcit.gradients.preserve_state import preserve_state
from mcit.method import Outcome, Stage
from mcit.parallel.global_batch import global_batch_rows
from mcit.parallel.loading import budget, read_batches, sum_over_processes
from mcit.task import move


@dataclass
class Keeplora(FreshPairMethod):
    """Fresh pairs that read residual directions only; A is computed and frozen."""

    name = "keeplora"
    # A is computed before the first step
    first_task_is_finetuning = False
    general: float = option(0.6, help="fraction of the energy of the loaded weights that is kept")
    share: float = option(0.99, help="fraction of the energy of a task's gradient that is kept")
    samples: float = option(0.2, help="fraction of the examples on which the gradient is measured")
    # M by the name of a layer's weight, [directions, inputs]
    directions: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name in ("general", "share", "samples"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                problems.append(f"method.{name} must be above 0 and at most 1, found {value:g}")
        if problems:
            raise ConfigError(problems)

    def begin_task(self, stage: Stage) -> Sequence[str]:
        super().begin_task(stage)
        pairs = fresh_pairs(stage)
        if not self.directions:
            for pair in pairs:
                weight = pair.weight.detach().flatten(1)
                self.directions[pair.name] = lead(weight, weight, self.general)
        gradients = measure_gradients(stage, self.samples)
        for pair in pairs:
            residual = remove(gradients[pair.name], self.directions[pair.name])
            rows = lead(residual, residual, 1.0)[: len(pair.a)].to(pair.a)
            with torch.no_grad():
                flat = pair.a.flatten(1)
                flat.zero_()
                flat[: len(rows)] = rows
                pair.b.zero_()
            pair.a.requires_grad_(False)
        return ()

    def end_task(self, stage: Stage) -> Outcome:
        if stage.later:
            for name, gradient in measure_gradients(stage, self.samples).items():
                known = self.directions[name]
                added = lead(remove(gradient, known), gradient, self.share)
                self.directions[name] = torch.cat([known, added.to(known)])
        return Outcome()

    def examples_read(self, stage: Stage) -> int:
        passes = 2 if stage.later else 1
        return passes * budget(self.samples, len(stage.task.examples("train")))

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.directions)

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        super().restore(stage, state)
        device = next(stage.learner.parameters()).device
        self.directions = {name: rows.to(device) for name, rows in state.items()}

    def describe(self) -> str:
        return (
            "LoRA in residual directions of the gradient (KeepLoRA): A frozen, kept energy "
            f"{self.general:g} of the weights and {self.share:g} of each task's gradient"
        )

    def bytes_held(self) -> int:
        return self.kept + sum(rows.nbytes for rows in self.directions.values())


def measure_gradients(stage: Stage, samples: float) -> dict[str, Tensor]:
    """Return the mean gradient [outputs, inputs] of the loss by the weight of every layer."""
    weights = {pair.name: pair.weight for pair in fresh_pairs(stage)}
    totals = {name: torch.zeros_like(weight).float() for name, weight in weights.items()}
    batches = 0
    trained = {name: weight.requires_grad for name, weight in weights.items()}
    with preserve_state(stage.learner, weights):
        stage.learner.eval()
        for weight in weights.values():
            weight.requires_grad_(True)
        for part in read_batches(stage.load(stage.task, "train"), samples) or ():
            with global_batch_rows(part.rows):
                loss = _measure_loss(stage, part)
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for total, gradient in zip(totals.values(), found, strict=True):
                if gradient is not None:
                    total += gradient
            batches += 1
    for name, weight in weights.items():
        weight.requires_grad_(trained[name])
    sum_over_processes(list(totals.values()))
    return {name: total.flatten(1) / batches for name, total in totals.items()}


def _measure_loss(stage: Stage, part: Any) -> Tensor:
    """Return this process's part of the mean loss of a batch."""
    device = next(stage.learner.parameters()).device
    batch = move(part.batch, device)
    with stage.precision():
        loss = stage.task.loss(stage.learner(batch, stage.task.head).logits, batch)
    if part.rows is None:
        return loss
    return loss * (len(part.rows.places) * part.rows.counted / part.rows.total)


def remove(matrix: Tensor, directions: Tensor) -> Tensor:
    """Return the rows of a matrix without their parts along orthonormal directions."""
    directions = directions.to(matrix.dtype)
    return matrix - (matrix @ directions.T) @ directions


def lead(matrix: Tensor, whole: Tensor, share: float) -> Tensor:
    """Return the leading right singular vectors of a matrix, as rows.

    As many as are needed so that, with what the matrix lacks of `whole`, `share` of the energy of
    `whole` is covered. Directions without energy are left out.
    """
    _, values, rows = torch.linalg.svd(matrix.double(), full_matrices=False)
    energy = values.square()
    total = whole.double().square().sum()
    covered = total - energy.sum()
    before = torch.cat([covered[None], covered + energy.cumsum(0)[:-1]])
    # rounding leaves a little energy in directions that were removed
    wanted = (before < share * total) & (energy > 1e-10 * total)
    rows = rows[: int(wanted.sum())]
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    return (rows * largest.sign()).to(matrix.dtype)
