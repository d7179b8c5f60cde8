"""Old means follow pseudo-examples: new images, changed until they look like an old class.

Goswami et al., Resurrecting old classes with new data for exemplar-free continual learning (ADC),
CVPR 2024, https://arxiv.org/abs/2405.19074

For an old class c, the `candidates` images nearest to mu_c by f_old are changed `iterations` times
    x <- clip(x - step * g / ||g||),  g = d/dx of the mean squared distance of f_old(x) to mu_c
with one length ||g|| for all of them. Those whose nearest old mean is mu_c count, or all of them as
they were if there is none:
    mu_c += mean of f(x) - f_old(x)

Differs from the release: images are not augmented before. Covariances stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from mcit.class_statistics import ClassStatistics, find_device
from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.gradients.preserve_state import eval_mode
from mcit.parallel.loading import load_examples
from mcit.task import Batch, move
from mcit.transport import Drift, Transport

PIXELS = "pixel_values"


@dataclass
class Attack(Transport):
    """Means move by what adversarial examples of their class do."""

    name = "attack"
    candidates: int = option(100, help="images per old class")
    step: float = option(25.0, help="step length, for all images of a class together")
    iterations: int = option(3, help="steps of the attack")

    def __post_init__(self) -> None:
        problems = []
        for name in ("candidates", "iterations"):
            if getattr(self, name) < 1:
                problems.append(f"'{name}' must be at least 1, found {getattr(self, name)}")
        if not 0 < self.step < math.inf:
            problems.append(f"'step' must be above 0 and finite, found {self.step:g}")
        if problems:
            raise ConfigError(problems)

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        device = find_device(drift.old)
        means = statistics.means.to(device)
        away = torch.cdist(statistics.means, drift.before.values)  # [classes, examples]
        shifts = []
        for label, distances in enumerate(away):
            count = min(self.candidates, len(distances))
            chosen = distances.topk(count, largest=False, sorted=True).indices.tolist()
            batch = _read(drift, chosen, device)
            shifts.append(self._follow(drift, batch, means, label).cpu())
        return statistics.shift_means(torch.stack(shifts))

    def attack(self, see: Callable[[Tensor], Tensor], pixels: Tensor, target: Tensor) -> Tensor:
        """Return images [batch, ...] whose features, as `see` has them, are nearer to `target`."""
        low = pixels.min()
        high = pixels.max()
        changed = pixels
        with torch.enable_grad():
            for _ in range(self.iterations):
                changed = changed.detach().requires_grad_(True)
                loss = (see(changed) - target).square().mean()
                (gradient,) = torch.autograd.grad(loss, changed)
                # an image that is there already has no direction
                length = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
                changed = (changed - self.step * gradient / length).clamp(low, high)
        return changed.detach()

    @torch.no_grad()
    def _follow(self, drift: Drift, batch: Batch, means: Tensor, label: int) -> Tensor:
        """Return how far [width] pseudo-examples of a class moved."""
        head = drift.stage.task.head

        def see_old(pixels: Tensor) -> Tensor:
            return drift.old({**batch, PIXELS: pixels}, head).features

        learner = drift.stage.learner
        with eval_mode(learner):
            changed = self.attack(see_old, batch[PIXELS], means[label])
            before = see_old(changed).float()
            reached = torch.cdist(before, means).argmin(dim=1) == label
            if not bool(reached.any()):
                changed = batch[PIXELS]
                before = see_old(changed).float()
                reached = torch.ones_like(reached)
            after = learner({**batch, PIXELS: changed}, head).features.float()
        return (after - before)[reached].double().mean(dim=0)

    def describe(self) -> str:
        return f"attack ({self.candidates} images per class)"


def _read(drift: Drift, chosen: list[int], device: torch.device) -> Batch:
    """Return images of the task by their places among its features; every process reads all."""
    loader = drift.stage.load(drift.stage.task, "plain")
    places = list(chain.from_iterable(loader.batches))
    examples = load_examples(loader.dataset, [places[place] for place in chosen])
    return move(loader.collate(examples), device)
