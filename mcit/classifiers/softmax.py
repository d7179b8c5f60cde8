"""Softmax regression on features of new classes and on draws from the old ones.

Magistri et al., EFC++: elastic feature consolidation with prototype re-balancing for cold start
exemplar-free incremental learning, 2025, https://arxiv.org/abs/2503.10439

score_c = w_c f + b_c, minimizing  mean_i CE(W x_i + b, y_i) + decay / 2 ||W||^2
over the features of the latest task and, for every old class, as many draws from N(mu_c, Sigma_c)
as it had images. It is what EFC++ calls re-balancing: all classes are seen alike.

Solved by L-BFGS on one set of draws, from zero, with features divided by their mean length: the
same every time. Differs from the release, which takes 50 epochs of SGD from the heads as they were
trained, without bias, with new draws and augmented images in every epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import Features, Needs, draw_normal
from mcit.classifier import Classifier, Fitted, Known
from mcit.config.options import option
from mcit.errors import ConfigError

# what draws come from, with the number of classes
SEED = 1993


@dataclass
class Softmax(Classifier):
    """A linear layer that has seen all classes alike."""

    name = "softmax"
    fits_features = True
    decay: float = option(5e-4, help="weight of the penalty on the weights' squares")
    iterations: int = option(100, help="largest number of iterations of L-BFGS")

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.decay < math.inf:
            problems.append(f"'decay' must be at least 0 and finite, found {self.decay:g}")
        if self.iterations < 1:
            problems.append(f"'iterations' must be at least 1, found {self.iterations}")
        if problems:
            raise ConfigError(problems)

    def needs(self) -> Needs:
        return Needs(means=True, powers=frozenset({1.0}))

    def fit(self, known: Known) -> Fitted:
        rows = add_draws(known)
        scale = float(rows.values.norm(dim=1).mean()) or 1.0
        solution = fit_softmax(
            rows.values.double() / scale,
            rows.labels,
            classes=known.statistics.classes,
            decay=self.decay,
            iterations=self.iterations,
        )
        weight = solution[:, :-1] / scale
        return {"weight": weight.float(), "bias": solution[:, -1].float()}

    def score(self, fitted: Fitted, features: Tensor) -> Tensor:
        return features @ fitted["weight"].T + fitted["bias"]

    def softmax_layer(self, fitted: Fitted) -> tuple[Tensor, Tensor]:
        return fitted["weight"], fitted["bias"]

    def describe(self) -> str:
        return f"softmax on draws of old classes (decay {self.decay:g})"


def add_draws(known: Known) -> Features:
    """Return the latest task's features, then draws from every earlier class, as many as it had."""
    if known.features is None:
        raise ValueError("softmax regression is fitted to features, and none are at hand")
    statistics = known.statistics
    generator = torch.Generator().manual_seed(SEED + statistics.classes)
    values = [known.features.values]
    labels = [known.features.labels]
    present = set(known.features.labels.tolist())
    for label, count in enumerate(statistics.counts.tolist()):
        if label in present:
            continue
        covariance = statistics.covariances[1.0][label]
        values.append(draw_normal(statistics.means[label], covariance, count, generator))
        labels.append(torch.full((count,), label))
    return Features(torch.cat(values), torch.cat(labels))


def fit_softmax(
    rows: Tensor, labels: Tensor, *, classes: int, decay: float, iterations: int
) -> Tensor:
    """Return weights and bias [classes, width + 1]; biases are not penalized."""
    inputs = F.pad(rows, (0, 1), value=1.0)
    solution = torch.zeros(classes, inputs.shape[1], dtype=inputs.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [solution],
        max_iter=iterations,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        penalty = decay / 2 * solution[:, :-1].square().sum()
        loss = F.cross_entropy(inputs @ solution.T, labels) + penalty
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(evaluate)
    return solution.detach()
