"""A small network from old to new features, through which draws from every old class are sent.

Rypesc et al., Task-recency bias strikes back: adapting covariances in exemplar-free class
incremental learning (AdaGauss), NeurIPS 2024, https://arxiv.org/abs/2409.18265

A = linear, GELU, linear, fitted to  mean ||A(f_old) - f||^2  over the new task's images
mu_c, Sigma_c <- mean and covariance of A(x), x drawn from N(mu_c, Sigma_c)

Fitted by SGD with momentum 0.9, a tenth of the rate after 30, 60 and 90 percent of the epochs.
Differs from the release: images are not augmented, the network has no anti-collapse term of its
own, and it learns a change of the features, A(x) + x, so that it begins as no change at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcit.class_statistics import ClassStatistics, Needs, draw_normal, find_covariance
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.transport import Drift, Transport

MILESTONES = (0.3, 0.6, 0.9)


@dataclass
class Network(Transport):
    """A multilayer perceptron; means and covariances are estimated anew from draws."""

    name = "network"
    hidden: int = option(2048, help="width of the hidden layer")
    epochs: int = option(100, help="passes over the task's features")
    learning_rate: float = option(0.01, help="first learning rate")
    batch_size: int = option(256, help="features per step")
    draws: int = option(10_000, help="draws per old class")

    def __post_init__(self) -> None:
        problems = []
        for name in ("hidden", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                problems.append(f"'{name}' must be at least 1, found {getattr(self, name)}")
        if self.draws < 2:
            problems.append(f"'draws' must be at least 2, found {self.draws}")
        if not 0 < self.learning_rate < math.inf:
            problems.append(
                f"'learning_rate' must be above 0 and finite, found {self.learning_rate:g}"
            )
        if problems:
            raise ConfigError(problems)

    def needs(self) -> Needs:
        return Needs(means=True, powers=frozenset({1.0}))

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        seed = drift.stage.seed + 1009 * drift.stage.index
        generator = torch.Generator().manual_seed(seed)
        adapter = self.fit(drift.before.values, drift.after.values, generator)
        means = []
        covariances = []
        for mean, covariance in zip(statistics.means, statistics.covariances[1.0], strict=True):
            moved = adapter(draw_normal(mean, covariance, self.draws, generator))
            means.append(moved.double().mean(dim=0))
            covariances.append(find_covariance(moved))
        moved_means = torch.stack(means).float()
        moved_covariances = {1.0: torch.stack(covariances).float()}
        return replace(statistics, means=moved_means, covariances=moved_covariances)

    def fit(self, before: Tensor, after: Tensor, generator: torch.Generator) -> Adapter:
        """Return a network that maps features [examples, width] of before to those of after."""
        # on copies in every process alike: features are gathered, and all draws are the generator's
        adapter = Adapter(before.shape[1], self.hidden, generator)
        optimizer = torch.optim.SGD(
            adapter.parameters(), self.learning_rate, momentum=0.9, weight_decay=5e-4
        )
        milestones = [max(1, round(part * self.epochs)) for part in MILESTONES]
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(before), generator=generator)
                for rows in order.split(self.batch_size):
                    optimizer.zero_grad()
                    loss = F.mse_loss(adapter(before[rows].float()), after[rows].float())
                    loss.backward()
                    nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
                    optimizer.step()
                scheduler.step()
        return adapter.requires_grad_(False)

    def describe(self) -> str:
        return f"network ({self.hidden} hidden, {self.epochs} epochs)"


class Adapter(nn.Module):
    """x + W2 gelu(W1 x + b1) + b2, with W2 and b2 zero at the start."""

    def __init__(self, width: int, hidden: int, generator: torch.Generator):
        super().__init__()
        bound = width**-0.5
        draws = torch.rand(hidden, width + 1, generator=generator, dtype=torch.float32)
        weight, bias = ((2 * draws - 1) * bound).split([width, 1], dim=1)
        self.weight1 = nn.Parameter(weight.contiguous())
        self.bias1 = nn.Parameter(bias.squeeze(1).contiguous())
        self.weight2 = nn.Parameter(weight.new_zeros(width, hidden))
        self.bias2 = nn.Parameter(weight.new_zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(F.linear(x, self.weight1, self.bias1))
        return x + F.linear(inner, self.weight2, self.bias2)
