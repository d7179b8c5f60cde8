"""Which rows of a classifier each score protects, for the samples of one class.

EWC's gradients vanish for samples that the network is sure of, and MAS and EWC-DR protect rows of
classes that the sample is not of; see the figures of the EWC-DR paper.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from mcit.gradients.preserve_state import preserve_state
from mcit.importance import Forward, measure_importance, read_logits

SCORES = {"plain": "EWC", "output_norm": "MAS", "reversed": "EWC-DR", "log_odds": "log-odds"}
# classes that tables and figures show
MOST_CLASSES = 16


@dataclass(frozen=True, eq=False)
class ClassView:
    """Importance of a classifier's weights, averaged over samples of one class, by score."""

    weight_name: str
    class_index: int
    examples: int
    # mean probability of the class
    confidence: float
    # [classes, features] each
    values: dict[str, Tensor]

    def sums(self, score: str) -> Tensor:
        """Return the importance of each class's row, [classes]."""
        return self.values[score].sum(dim=1)

    def shares(self, score: str) -> Tensor:
        """Return the percent of the importance in each class's row, [classes]."""
        sums = self.sums(score)
        return 100 * sums / sums.sum().clamp_min(torch.finfo(sums.dtype).tiny)

    @property
    def shown(self) -> list[int]:
        """The class itself and those with the largest shares in any score, in their order."""
        largest = torch.stack([self.shares(score) for score in self.values]).amax(dim=0)
        largest[self.class_index] = torch.inf
        return sorted(largest.argsort(descending=True)[:MOST_CLASSES].tolist())


@torch.no_grad()
def view_classifier(
    model: nn.Module,
    loader: Iterable[Any],
    weight_name: str,
    class_index: int,
    *,
    forward: Forward = read_logits,
    most: int = 256,
) -> ClassView:
    """Return the importance of a linear classifier's weights for samples of one class, by score.

    It is what `measure_importance` returns for those samples in eval mode, and the model is not
    changed. `weight_name` is that of the `nn.Linear` whose outputs are the logits. A sample of
    multi-label data belongs to the class if its label for it is above 0.
    """
    linear = _find_linear(model, weight_name, class_index)
    inputs: list[Tensor] = []
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    hook = linear.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with hook, preserve_state(model, {}):
        model.eval()
        for batch in loader:
            inputs.clear()
            logits, target = forward(model, send_to_device(batch, linear.weight.device))
            if len(inputs) != 1 or len(inputs[0]) != len(logits):
                raise ValueError(f"{weight_name} must see each sample once, in one call")
            chosen = _find_samples(target, class_index)
            sure = logits.softmax(dim=1)
            if target.is_floating_point():
                sure = logits.sigmoid()
            samples = (inputs[0], target, sure[:, class_index])
            found += zip(*(values[chosen] for values in samples), strict=True)
            if len(found) >= most:
                break
    if not found:
        raise ValueError(f"the data have no sample of class {class_index}")
    features, targets, sure = (torch.stack(each) for each in zip(*found[:most], strict=True))
    alone = copy.deepcopy(linear).requires_grad_(True)
    values = {}
    for score in SCORES:
        measured = measure_importance(alone, [(features, targets)], score=score)
        values[score] = measured.values["weight"].double().cpu()
    return ClassView(weight_name, class_index, len(features), float(sure.mean()), values=values)


def _find_linear(model: nn.Module, weight_name: str, class_index: int) -> nn.Linear:
    modules = {f"{name}.weight": module for name, module in model.named_modules()}
    linear = modules.get(weight_name)
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"{weight_name!r} is not the weight of a linear layer")
    classes = linear.out_features
    if classes < 2:
        raise ValueError(f"{weight_name} has one row for all choices, not one per class")
    if not 0 <= class_index < classes:
        raise ValueError(
            f"there is no class {class_index}: the classifier has {classes}, "
            f"from 0 to {classes - 1}"
        )
    return linear


def _find_samples(target: Tensor, class_index: int) -> Tensor:
    if target.is_floating_point():
        return (target[:, class_index] > 0).nonzero().squeeze(1)
    return (target == class_index).nonzero().squeeze(1)
