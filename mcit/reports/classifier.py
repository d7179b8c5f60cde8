"""What each score protects in a classifier, for the samples of one class: vanishing gradients and needless rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from mcit.estimator import Estimator, score_examples
from mcit.gradients.as_it_was import as_it_was
from mcit.importance import Forward, read_logits

SCORES = ("plain", "output_norm", "reversed", "log_odds")
METHODS = {"plain": "EWC", "output_norm": "MAS", "reversed": "EWC-DR", "log_odds": "log-odds"}


@dataclass(frozen=True, eq=False)
class ClassView:
    """Importance of a classifier's weights, averaged over samples of one class, by score."""

    weight_name: str
    class_index: int
    examples: int
    confidence: float  # mean probability of the class
    values: dict[str, Tensor]  # [classes, features] each
    multi_label: bool = False  # whether a sample may belong to several classes

    def sums(self, score: str) -> Tensor:
        """The importance of each class's row. [classes]"""
        return self.values[score].sum(dim=1)

    def shares(self, score: str) -> Tensor:
        """The percent of the importance in each class's row. [classes]"""
        sums = self.sums(score)
        return 100 * sums / sums.sum().clamp_min(torch.finfo(sums.dtype).tiny)


def classifier_importance(
    model: nn.Module,
    loader: Iterable[Any],
    weight_name: str,
    class_index: int,
    scores: Sequence[str] = SCORES,
    *,
    forward: Forward | None = None,
    most: int | None = None,
) -> dict[str, Tensor]:
    """Importance [classes, features] of a linear classifier's weights by score, over the samples of one class.

    What `measure_importance` gives in eval mode for those samples alone, but all scores in one pass and without a
    backward pass through the network. `weight_name` is that of an `nn.Linear`; `forward` is as for
    `measure_importance`; `most` stops after so many samples of the class. Of multi-label data, a sample belongs to
    the class if its label for it is above 0. The model comes back exactly as it was.
    """
    return view_classifier(
        model, loader, weight_name, class_index, scores, forward=forward, most=most
    ).values


def view_classifier(
    model: nn.Module,
    loader: Iterable[Any],
    weight_name: str,
    class_index: int,
    scores: Sequence[str] = SCORES,
    *,
    forward: Forward | None = None,
    most: int | None = None,
) -> ClassView:
    """`classifier_importance`, with the number of samples and how sure the network was of them."""
    linear = find_linear(model, weight_name)
    classes = linear.out_features
    if not 0 <= class_index < classes:
        raise ValueError(
            f"there is no class {class_index}: the classifier has {classes}, from 0 to {classes - 1}"
        )
    estimators = {score: Estimator(score=score) for score in scores}
    sums = {score: torch.zeros(linear.weight.shape, dtype=torch.float64) for score in scores}
    seen, confidence, labels, multi_label = 0, 0.0, set(), False
    with as_it_was(model, {}):
        model.eval()
        for batch in loader:
            batch = send_to_device(batch, linear.weight.device)
            with _Watch(linear) as watched:
                logits, target = (forward or read_logits)(model, batch)
            chosen = _choose(target, class_index, None if most is None else most - seen)
            multi_label = target.is_floating_point()
            labels |= set() if multi_label else set(target.tolist())
            if len(chosen):
                for score, estimator in estimators.items():
                    (vector,) = score_examples(estimator, logits, target, torch.arange(len(logits)))
                    sums[score] += watched.importance(vector, chosen, estimator.absolute)
                confidence += float(_confidence(logits, target)[chosen, class_index].sum())
                seen += len(chosen)
            if most is not None and seen >= most:
                break
    if not seen:
        known = f" (classes: {', '.join(map(str, sorted(labels)))})" if labels else ""
        raise ValueError(f"the data have no sample of class {class_index}{known}")
    means = {score: total / seen for score, total in sums.items()}
    return ClassView(weight_name, class_index, seen, confidence / seen, means, multi_label)


def find_linear(model: nn.Module, weight_name: str) -> nn.Linear:
    """The layer that a weight belongs to; it must have a row for each of several classes."""
    path, _, leaf = weight_name.rpartition(".")
    linears = [
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    ]
    if leaf != "weight" or weight_name not in linears:
        raise ValueError(
            f"{weight_name!r} is no weight of a linear layer (the last ones: {', '.join(linears[-3:])})"
        )
    linear = model.get_submodule(path)
    if linear.out_features < 2:
        raise ValueError(
            f"{weight_name} has one row for all choices, so that there is no row of a class to look at"
        )
    return linear


class _Watch:
    """Keeps what a layer was given and what it gave, and cuts the graph there: its gradient is all that is needed."""

    def __init__(self, linear: nn.Linear):
        self.linear = linear

    def __enter__(self) -> _Watch:
        self.calls = 0
        self.handle = self.linear.register_forward_hook(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()

    def _see(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.calls += 1
        self.input, self.output = inputs[0].detach(), output.detach().requires_grad_()
        return self.output

    def importance(self, vector: Tensor, chosen: Tensor, absolute: bool) -> Tensor:
        """The sum over the chosen samples of their squared or absolute gradients. [classes, features]"""
        if self.calls != 1 or len(self.output) != len(vector):
            raise ValueError(
                f"the classifier must see each sample once: {self.calls} calls, {len(self.output)} rows in the last, "
                f"{len(vector)} samples"
            )
        (gradient,) = torch.autograd.grad(vector[chosen].sum(), self.output, retain_graph=True)
        size = torch.abs if absolute else torch.square
        given, inputs = gradient[chosen].double(), self.input[chosen].double()
        if given.ndim == 2:  # the gradient of a sample is an outer product, and so is its square
            return (size(given).T @ size(inputs)).cpu()
        given, inputs = (
            given.flatten(1, -2),
            inputs.flatten(1, -2),
        )  # [samples, places, classes or features]
        return sum(size(g.T @ x) for g, x in zip(given, inputs, strict=True)).cpu()


def _choose(target: Tensor, class_index: int, most: int | None) -> Tensor:
    own = target[:, class_index] > 0 if target.is_floating_point() else target == class_index
    return own.nonzero().squeeze(1)[:most]


def _confidence(logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.detach()
    return logits.sigmoid() if target.is_floating_point() else logits.softmax(dim=1)
