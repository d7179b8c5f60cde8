"""What the projection of GPM and Adam-NSCL costs, as a part of `mcit bench classifiers`.

A plain training step of ResNet-18 is timed against the same step with its projection, in turns. The
price depends on how many directions are taken: it is highest if half of them are, and grows with
the smaller of the two parts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.bench.measuring import Goal, race
from mcit.models.learner import Learner
from mcit.models.resnet import build_resnet
from mcit.projecting import Projection, Projector, find_layers
from mcit.task import Head

PROJECTION_GOAL: Goal = ("at most", 1.3)
# shares of each layer's input directions that earlier tasks have taken: few, half, all but few
TAKEN = (0.1, 0.5, 0.95)
HEAD = Head("classes", outputs=100, layout="linear")


def measure_projection(width: int = 64, batch: int = 128, rounds: int = 2) -> dict[str, Any]:
    """Return the time of a projected step over that of a plain one, by the share taken."""
    torch.manual_seed(0)
    learner = Learner(build_resnet(width, "cifar"))
    learner.grow(HEAD)
    learner.train()
    images = torch.randn(batch, 3, 32, 32)
    labels = torch.arange(batch) % HEAD.outputs
    optimizer = torch.optim.SGD(learner.parameters(), lr=1e-3, momentum=0.9)
    plain = partial(_take_step, learner, optimizer, images, labels)
    found = {}
    held = {}
    for share in TAKEN:
        projectors = {}
        for name, layer in find_layers(learner).items():
            projectors[name] = _make_projector(layer.weight[0].numel(), share)
        projection = Projection(learner, projectors)
        projected = partial(_take_step, learner, optimizer, images, labels, projection)
        without, with_it = race(plain, projected, rounds=rounds)
        found[str(share)] = with_it / without
        held[str(share)] = sum(p.directions.nbytes for p in projectors.values())
    return {"projection_over_step": found, "projection_bytes": held}


def _make_projector(inputs: int, share: float) -> Projector:
    """Return a projector that avoids a share of the directions, as thin as those of a run."""
    taken = round(share * inputs)
    within = 2 * taken > inputs
    count = inputs - taken if within else taken
    directions = torch.linalg.qr(torch.randn(inputs, max(1, count))).Q
    return Projector(directions, within=within)


def _take_step(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    projection: Projection | None = None,
) -> None:
    logits = learner({"pixel_values": images}, HEAD).logits
    F.cross_entropy(logits, labels).backward()
    if projection is not None:
        projection.remember()
    optimizer.step()
    if projection is not None:
        projection.project()
    optimizer.zero_grad()
