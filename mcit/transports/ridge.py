"""A linear map from old to new features, fitted to the new task's images in closed form.

f ~ f_old M + b,   mu_c -> mu_c M + b,   Sigma_c -> M' Sigma_c M

M minimizes the squared error plus a penalty on M, or on M - I with `toward` identity: where the new
images say nothing of a direction, features are then taken to stay. The penalty is `ridge`, in units
of the mean variance with `relative`.

Gomez-Villa et al., Exemplar-free continual representation learning via learnable drift compensation
(LDC), ECCV 2024, https://arxiv.org/abs/2407.08536, fits a matrix by gradient descent without
intercept; He et al., DPCR, ICML 2025, https://arxiv.org/abs/2503.05423, solves for it and, with
`project`, first projects each class onto the span of its own features; GATF (2026) solves with
intercept, ridge 0.01, toward zero, and with `average` a blends maps seen while the task is learned:
    M, b <- a M, a b + (1 - a) times those of the moment, `looks` times, evenly spaced
from the map of a network that has not moved yet. Differs from all: images are not augmented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from mcit.class_statistics import ClassStatistics, Needs
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.transport import Drift, Transport

# of the largest eigenvalue: directions below it are not in a class's span
SPAN = 1e-6


@dataclass
class RidgeTransport(Transport):
    """One affine map for all classes."""

    name = "ridge"
    ridge: float = option(0.01, help="weight of the penalty")
    relative: bool = option(True, help="give the penalty in units of the features' mean variance")
    toward: Literal["identity", "zero"] = option(
        "identity", help=("what the penalty pulls the map towards")
    )
    intercept: bool = option(True, help="fit a shift in addition to the matrix")
    project: bool = option(False, help="project each class onto its own span first, as DPCR does")
    average: float = option(
        0.0,
        help="decay of a running average of maps, 0.9 in GATF; 0: the last map alone",
    )
    looks: int = option(19, help="with `average`, how many maps are fitted during a task")
    # the running average
    matrix: Tensor | None = field(default=None, init=False, repr=False)
    shift: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.ridge < math.inf:
            problems.append(f"'ridge' must be above 0 and finite, found {self.ridge:g}")
        if not 0 <= self.average < 1:
            problems.append(f"'average' must be at least 0 and below 1, found {self.average:g}")
        if self.looks < 1:
            problems.append(f"'looks' must be at least 1, found {self.looks}")
        if problems:
            raise ConfigError(problems)

    def needs(self) -> Needs:
        if self.project:
            return Needs(means=True, powers=frozenset({1.0}))
        return Needs()

    def count_looks(self) -> int:
        return self.looks if self.average else 0

    def begin_task(self) -> None:
        self.matrix = None
        self.shift = None

    def look(self, drift: Drift) -> None:
        before = drift.before.values
        if self.matrix is None:
            self.matrix, self.shift = self.solve(before, before)
        matrix, shift = self.solve(before, drift.after.values)
        self.matrix = torch.lerp(matrix, self.matrix, self.average)
        if shift is not None and self.shift is not None:
            self.shift = torch.lerp(shift, self.shift, self.average)

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        matrix, shift = self.matrix, self.shift
        # without an average, and in a dry run that ends before the first look
        if matrix is None:
            matrix, shift = self.solve(drift.before.values, drift.after.values)
        if self.project:
            matrix = find_spans(statistics.gram()) @ matrix
        return statistics.map_features(matrix, shift)

    def solve(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return M [width, width] and b [width], from features of the same images."""
        old = before.double()
        new = after.double()
        old_mean = old.mean(dim=0)
        new_mean = new.mean(dim=0)
        if self.intercept:
            old = old - old_mean
            new = new - new_mean
        covariance = old.T @ old / len(old)
        cross = old.T @ new / len(old)
        penalty = self.ridge
        if self.relative:
            penalty = penalty * float(covariance.diagonal().mean())
        # features that are constant, in a dry run, have no map but the identity
        penalty = max(penalty, torch.finfo(torch.float32).tiny)
        identity = torch.eye(len(covariance), dtype=covariance.dtype)
        if self.toward == "identity":
            cross = cross + penalty * identity
        matrix = torch.linalg.solve(covariance + penalty * identity, cross)
        shift = new_mean - old_mean @ matrix if self.intercept else None
        return matrix, shift

    def state_dict(self) -> Mapping[str, Tensor]:
        found = {"matrix": self.matrix, "shift": self.shift}
        return {name: value for name, value in found.items() if value is not None}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.matrix = state.get("matrix")
        self.shift = state.get("shift")

    def describe(self) -> str:
        averaged = f", average of {self.looks} maps" if self.average else ""
        return f"ridge (penalty {self.ridge:g} toward {self.toward}{averaged})"


def find_spans(grams: Tensor) -> Tensor:
    """Return the projector [classes, width, width] onto the span of each class's features."""
    values, vectors = torch.linalg.eigh(grams)
    kept = values > SPAN * values[:, -1:]
    basis = vectors * kept.unsqueeze(1)
    return basis @ basis.mT
