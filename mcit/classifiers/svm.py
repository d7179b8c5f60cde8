"""A linear support vector machine per class, on real features of new classes and moved ones of old.

Petit et al., FeTrIL: feature translation for exemplar-free class-incremental learning, WACV 2023,
https://arxiv.org/abs/2211.13131

An old class c borrows the features of the new class n whose mean is nearest: x - mu_n + mu_c.
One-against-rest on unit rows, minimized over w_c, b_c:
    ||(w_c, b_c)||^2 / 2 + cost * sum_i max(0, 1 - s_ic (w_c x_i + b_c))^2,  s_ic = 1 or -1
score_c = w_c x + b_c

Solved for all classes at once by L-BFGS, in double precision: the same objective as scikit-learn's
LinearSVC, which the release uses, and deterministic. Differs from the release as PyCIL does: means
are compared by angle, unless `neighbor` is euclid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Features, Needs
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option
from mcit.errors import ConfigError


@dataclass
class Svm(Classifier):
    """Linear machines on features; of old classes only the means are kept."""

    name = "svm"
    fits_features = True
    cost: float = option(1.0, help="weight of the examples against the margin")
    neighbor: Literal["cosine", "euclid"] = option(
        "cosine", help="how to choose the new class whose features an old class borrows"
    )
    iterations: int = option(200, help="largest number of iterations of L-BFGS")

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.cost < math.inf:
            problems.append(f"'cost' must be above 0 and finite, found {self.cost:g}")
        if self.iterations < 1:
            problems.append(f"'iterations' must be at least 1, found {self.iterations}")
        if problems:
            raise ConfigError(problems)

    def needs(self) -> Needs:
        return Needs(means=True)

    def fit(self, known: Known) -> Fitted:
        if known.features is None:
            raise ValueError("a support vector machine is fitted to features, and none are given")
        means = known.statistics.means
        borrowed = borrow_features(known.features, means, self.neighbor)
        rows = F.normalize(borrowed.values.double(), dim=1)
        solution = fit_machines(rows, borrowed.labels, len(means), self.cost, self.iterations)
        return {"weight": solution[:, :-1].float(), "bias": solution[:, -1].float()}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) @ fitted["weight"].T + fitted["bias"]

    def describe(self) -> str:
        return f"linear SVM (cost {self.cost:g})"


def find_neighbors(old: Tensor, new: Tensor, kind: str) -> Tensor:
    """Return for every old mean [old, width] the place [old] of the nearest new one."""
    if kind == "cosine":
        return (F.normalize(old, dim=1) @ F.normalize(new, dim=1).T).argmax(dim=1)
    return torch.cdist(old, new).argmin(dim=1)


def borrow_features(features: Features, means: Tensor, kind: str) -> Features:
    """Return the features of new classes, then moved copies of them for every old class."""
    values = [features.values.double()]
    labels = [features.labels]
    present = features.labels.unique()
    first = int(present.min())
    places = means.double()
    neighbors = find_neighbors(places[:first], places[present], kind)
    for old, place in enumerate(neighbors.tolist()):
        new = int(present[place])
        moved = features.of_class(new).double() - places[new] + places[old]
        values.append(moved)
        labels.append(torch.full((len(moved),), old))
    return Features(torch.cat(values), torch.cat(labels))


def fit_machines(
    rows: Tensor, labels: Tensor, classes: int, cost: float, iterations: int
) -> Tensor:
    """Return weights and bias [classes, width + 1] of one machine per class."""
    inputs = F.pad(rows, (0, 1), value=1.0)
    signs = 2 * F.one_hot(labels, classes).to(inputs) - 1  # [examples, classes]
    solution = torch.zeros(classes, inputs.shape[1], dtype=inputs.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [solution],
        max_iter=iterations,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        missing = (1 - signs * (inputs @ solution.T)).clamp_min(0)
        loss = solution.square().sum() / 2 + cost * missing.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(evaluate)
    return solution.detach()
