"""What importance measures: a score of the logits, named by every choice that changes its value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config import ConfigError

# One backward pass per class: beyond this many, exact labels cost more than they tell.
MOST_EXACT_CLASSES = 256


@dataclass(frozen=True)
class Estimator:
    """How much a weight matters, spelled out. `describe()` is the line that goes beside every result.

    score: what is differentiated. plain: the negative log-likelihood (EWC). reversed: the same with the logits negated
        (EWC-DR). log_odds: the log-odds of the label. output_norm: the length of the logit vector (MAS).
    labels: true; predicted (the likeliest); sampled (drawn from the model); all (every label, weighted: exact Fisher).
    unit: example (mean of squared per-example gradients, whatever the batch size) or batch (mean of squared batch-mean
        gradients, which is another quantity and depends on the batch size). output_norm takes absolute values instead.
    mode: the network's mode while it is measured.
    cap: upper limit of every importance. samples: a count, a fraction of the data, or None for all; drawn with `seed`.
    reversal: for soft multi-label targets. norm: for output_norm. shuffle: permute within each tensor, as a control.
    update_buffers: keep what BatchNorm's statistics became (unit batch, mode train), as the EWC-DR release does.
    """

    score: Literal["plain", "reversed", "log_odds", "output_norm"] = "plain"
    labels: Literal["true", "predicted", "sampled", "all"] = "true"
    unit: Literal["example", "batch"] = "example"
    mode: Literal["eval", "train"] = "eval"
    cap: float | None = None
    samples: int | float | None = None
    reversal: Literal["positives", "literal", "softmax"] = "positives"
    norm: Literal["l2", "squared_l2"] = "l2"
    shuffle: bool = False
    update_buffers: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"estimator.{field.name} is {getattr(self, field.name)!r} (choices: {', '.join(choices)})"
            for field in dataclasses.fields(self)
            if (choices := _CHOICES.get(field.name)) and getattr(self, field.name) not in choices
        ]
        if self.cap is not None and not self.cap > 0:
            problems.append(f"estimator.cap must be above 0, found {self.cap}; leave it out for no cap")
        if self.samples is not None and not _is_budget(self.samples):
            problems.append(
                f"estimator.samples must be a count from 1 or a fraction above 0 and up to 1.0, found {self.samples!r}"
            )
        if self.unit == "batch" and self.labels == "all":
            problems.append("labels 'all' weighs every label of every example: it needs unit 'example'")
        if self.update_buffers and (self.unit, self.mode) != ("batch", "train"):
            problems.append("update_buffers reproduces the EWC-DR release and needs unit 'batch' and mode 'train'")
        problems += self._find_ignored()
        if problems:
            raise ConfigError(problems)

    def _find_ignored(self) -> list[str]:
        """Choices that would change nothing: whoever made them expects something else."""
        ignored = {
            f"labels {self.labels!r}": self.score == "output_norm" and self.labels != "true",
            f"norm {self.norm!r}": self.score != "output_norm" and self.norm != "l2",
            f"reversal {self.reversal!r}": self.score != "reversed" and self.reversal != "positives",
        }
        return [
            f"{choice} has no meaning for score {self.score!r}: leave it out"
            for choice, is_so in ignored.items()
            if is_so
        ]

    @property
    def absolute(self) -> bool:
        """MAS sums absolute values; everything else sums squares."""
        return self.score == "output_norm"

    def describe(self) -> str:
        """One line that tells this estimate from every other."""
        over = "examples" if self.unit == "example" else "batches"
        size = "absolute" if self.absolute else "squared"
        of = "" if self.unit == "example" else "batch-mean "
        parts = [f"score {self._describe_score()}"]
        if not self.absolute:
            parts.append(f"labels {self.labels}" + (f" (seed {self.seed})" if self.labels == "sampled" else ""))
        parts.append(f"mode {self.mode}" + (", buffers updated" if self.update_buffers else ""))
        parts.append("all samples" if self.samples is None else f"samples {self.samples} (seed {self.seed})")
        parts.append("no cap" if self.cap is None else f"cap {self.cap:g}")
        if self.shuffle:
            parts.append(f"shuffled within each tensor (seed {self.seed})")
        return f"mean over {over} of {size} {of}gradients: " + "; ".join(parts)

    def _describe_score(self) -> str:
        if self.score == "output_norm":
            return "output_norm (‖z‖₂)" if self.norm == "l2" else "output_norm (‖z‖₂²)"
        if self.score == "reversed" and self.reversal != "positives":
            return f"reversed ({self.reversal} where multi-label)"
        return self.score


_CHOICES = {
    "score": ("plain", "reversed", "log_odds", "output_norm"),
    "labels": ("true", "predicted", "sampled", "all"),
    "unit": ("example", "batch"),
    "mode": ("eval", "train"),
    "reversal": ("positives", "literal", "softmax"),
    "norm": ("l2", "squared_l2"),
}


def score_examples(estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor) -> Iterator[Tensor]:
    """Vectors [batch] whose per-example gradients, squared and added up, are the estimate.

    `target` holds class ids [batch] (also the right one of several choices) or soft labels [batch, outputs].
    `position` [batch] tells the examples apart where labels are sampled, whatever their batch or process.
    """
    target = target if target.is_floating_point() else target.long()
    _check_shapes(logits, target)
    if estimator.score == "output_norm":
        yield logits.norm(dim=1) if estimator.norm == "l2" else logits.square().sum(dim=1)
    elif estimator.labels != "all":
        yield _score(estimator, logits, _choose_labels(estimator, logits, target, position))
    elif target.is_floating_point():
        yield from _score_every_multi_label(estimator, logits)
    else:
        _refuse_many_classes(logits)
        # sqrt(p) on the score is p on its squared gradient
        weight = logits.detach().softmax(dim=1).sqrt()  # [batch, classes]
        for label in range(logits.shape[1]):
            yield weight[:, label] * _score(estimator, logits, torch.full_like(target, label))


def _score(estimator: Estimator, logits: Tensor, labels: Tensor) -> Tensor:
    multi_label = labels.is_floating_point()
    if estimator.score == "plain":
        return _multi_label_nll(logits, labels) if multi_label else F.cross_entropy(logits, labels, reduction="none")
    if estimator.score == "log_odds":
        return (labels * logits).sum(dim=1) if multi_label else _log_odds(logits, labels)
    if not multi_label:
        return F.cross_entropy(-logits, labels, reduction="none")
    if estimator.reversal == "literal":
        return _multi_label_nll(-logits, labels)
    if estimator.reversal == "positives":
        return (labels * F.softplus(logits)).sum(dim=1)  # -y log sigmoid(-z)
    share = labels / labels.sum(dim=1, keepdim=True).clamp_min(torch.finfo(labels.dtype).tiny)  # all-zero stays zero
    return -(share * F.log_softmax(-logits, dim=1)).sum(dim=1)


def _multi_label_nll(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


def _log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] < 2:
        raise ValueError("log-odds need at least two classes, the logits have one")
    own = F.one_hot(labels, logits.shape[1]).bool()  # [batch, classes]
    rest = logits.masked_fill(own, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, labels[:, None]).squeeze(1) - rest


def _score_every_multi_label(estimator: Estimator, logits: Tensor) -> Iterator[Tensor]:
    """Independent labels: E[(Σ a_k(y_k) ∂z_k)²] is the square of its mean plus one variance per label, exactly."""
    if estimator.score == "reversed" and estimator.reversal == "softmax":
        raise ValueError("labels 'all' have no closed form for the softmax reversal; use labels 'sampled'")
    _refuse_many_classes(logits)
    chance = logits.detach().sigmoid()  # [batch, labels]
    if estimator.score != "plain":  # the mean gradient of the plain score is zero
        yield _score(estimator, logits, chance)
    deviation = (chance * (1 - chance)).sqrt()
    if estimator.score == "reversed" and estimator.reversal == "positives":
        deviation = deviation * chance
    for label in range(logits.shape[1]):
        yield deviation[:, label] * logits[:, label]


def _choose_labels(estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor) -> Tensor:
    if estimator.labels == "true":
        return target.to(logits.dtype) if target.is_floating_point() else target
    if target.is_floating_point():
        if estimator.labels == "predicted":
            return (logits.detach() > 0).to(logits.dtype)
        draws = _draw(estimator.seed, position, logits.shape[1]).to(logits)
        return (draws < logits.detach().sigmoid()).to(logits.dtype)
    if estimator.labels == "predicted":
        return logits.detach().argmax(dim=1)
    below = logits.detach().double().softmax(dim=1).cumsum(dim=1)  # [batch, classes]
    draws = _draw(estimator.seed, position, 1).to(below)
    return (below < draws * below[:, -1:]).sum(dim=1).clamp_max(logits.shape[1] - 1)


def _draw(seed: int, position: Tensor, columns: int) -> Tensor:
    """Uniform numbers [batch, columns] that depend on the seed and the example only (a counter-based generator)."""
    with np.errstate(over="ignore"):
        counter = position.cpu().numpy().astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(
            columns, dtype=np.uint64
        )
        bits = counter + np.uint64(seed % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits + np.uint64(0x9E3779B97F4A7C15)) ^ (bits >> np.uint64(shift))
            bits = bits * np.uint64(factor)
        bits ^= bits >> np.uint64(31)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _refuse_many_classes(logits: Tensor) -> None:
    if logits.shape[1] > MOST_EXACT_CLASSES:
        raise ValueError(
            f"labels 'all' takes one backward pass per class and this head has {logits.shape[1]} "
            f"(at most {MOST_EXACT_CLASSES}); use labels 'sampled', an unbiased estimate of the same quantity"
        )


def _check_shapes(logits: Tensor, target: Tensor) -> None:
    if logits.ndim != 2:
        raise ValueError(f"logits must be [batch, outputs], found {list(logits.shape)}")
    expected = logits.shape if target.is_floating_point() else logits.shape[:1]
    if target.shape != expected:
        raise ValueError(
            f"logits {list(logits.shape)} need class ids [{logits.shape[0]}] or soft labels {list(logits.shape)}, "
            f"found {target.dtype} {list(target.shape)}"
        )
    if (
        not target.is_floating_point()
        and len(target)
        and not 0 <= int(target.min()) <= int(target.max()) < logits.shape[1]
    ):
        raise ValueError(
            f"class ids must lie in 0..{logits.shape[1] - 1}, found {int(target.min())}..{int(target.max())}"
        )


def _is_budget(samples: int | float) -> bool:
    if isinstance(samples, bool):
        return False
    return samples >= 1 if isinstance(samples, int) else 0 < samples <= 1
