"""What importance measures: a score of the logits, named by every choice that changes its value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config import ConfigError, suggest
from mcit.draws import draw_uniform

# One backward pass per class: beyond this many, exact labels cost more than they tell.
MOST_EXACT_CLASSES = 256


class EstimatorError(ConfigError):
    """Choices that no estimator has, or that contradict each other; one line each."""

    def __init__(self, problems: Iterable[str]):
        super().__init__(problems)
        # of a call in somebody's own program, not of a configuration
        self.args = ("; ".join(self.problems),)


class OneClassError(ValueError):
    """Class ids of a single output: the softmax of one class is constant, and nothing can be measured."""


@dataclass(frozen=True)
class Estimator:
    """How much a weight matters, spelled out. `describe()` is the line that goes beside every result.

    score: what is differentiated. plain: the negative log-likelihood (EWC). reversed: the same with the logits negated
        (EWC-DR). log_odds: the log-odds of the label. output_norm: the length of the logit vector (MAS). custom: a
        function of one's own, given to `measure_importance(score=function)`; `function` is its name.
    labels: true; predicted (the likeliest); sampled (drawn from the model); all (every label, weighted: exact Fisher).
    unit: example (mean of squared per-example gradients, whatever the batch size) or batch (mean of squared batch-mean
        gradients, which is another quantity and depends on the batch size). output_norm takes absolute values instead.
    mode: the network's mode while it is measured.
    cap: upper limit of every importance. samples: a count, a fraction of the data, or None for all; drawn with `seed`.
    reversal: for soft multi-label targets. norm: for output_norm. shuffle: permute within each tensor, as a control.
    Of text, an example is a whole answer (see mcit/answer_scores.py). odds: log_odds of the whole sequence or of each
        token. length: a sum over the answer's tokens, or their mean. candidates: reversed among so many of the
        likeliest tokens. centered: output_norm of logits less their mean; None: for text only.
    update_buffers: keep what BatchNorm's statistics became (unit batch, mode train), as the EWC-DR release does.
    """

    score: Literal["plain", "reversed", "log_odds", "output_norm", "custom"] = "plain"
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
    function: str = ""
    odds: Literal["sequence", "token"] = "sequence"
    length: Literal["sum", "mean"] = "sum"
    candidates: int | None = None
    centered: bool | None = None

    def __post_init__(self) -> None:
        problems = []
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(hint) is Literal and value not in get_args(hint):
                choices = get_args(hint)
                near = suggest(str(value), choices)
                problems.append(
                    f"estimator.{name} is {value!r}{near} (choices: {', '.join(choices)})"
                )
        if self.cap is not None and not self.cap > 0:
            problems.append(
                f"estimator.cap must be above 0, found {self.cap}; leave it out for no cap"
            )
        if self.samples is not None and not _is_budget(self.samples):
            problems.append(
                f"estimator.samples must be a count from 1 or a fraction above 0 and up to 1.0, found {self.samples!r}"
            )
        if self.candidates is not None and self.candidates < 2:
            problems.append(f"estimator.candidates must be at least 2, found {self.candidates}")
        if self.unit == "batch" and self.labels == "all":
            problems.append(
                "labels 'all' weighs every label of every example: it needs unit 'example'"
            )
        if self.update_buffers and (self.unit, self.mode) != ("batch", "train"):
            problems.append(
                "update_buffers reproduces the EWC-DR release and needs unit 'batch' and mode 'train'"
            )
        problems += self._find_ignored()
        if problems:
            raise EstimatorError(problems)

    def _find_ignored(self) -> list[str]:
        """Choices that would change nothing: whoever made them expects something else."""
        ignored = {
            f"labels {self.labels!r}": self.score in ("output_norm", "custom")
            and self.labels != "true",
            f"function {self.function!r}": self.score != "custom" and self.function != "",
            f"norm {self.norm!r}": self.score != "output_norm" and self.norm != "l2",
            f"reversal {self.reversal!r}": self.score != "reversed"
            and self.reversal != "positives",
            f"odds {self.odds!r}": self.score != "log_odds" and self.odds != "sequence",
            f"candidates {self.candidates}": self.score != "reversed"
            and self.candidates is not None,
            f"centered {self.centered}": self.score != "output_norm" and self.centered is not None,
            f"length {self.length!r}": self.score == "custom" and self.length != "sum",
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
        if self.score not in ("output_norm", "custom"):
            parts.append(
                f"labels {self.labels}"
                + (f" (seed {self.seed})" if self.labels == "sampled" else "")
            )
        if self.length != "sum":
            parts.append("mean over the tokens of an answer")
        parts.append(f"mode {self.mode}" + (", buffers updated" if self.update_buffers else ""))
        parts.append(
            "all samples" if self.samples is None else f"samples {self.samples} (seed {self.seed})"
        )
        parts.append("no cap" if self.cap is None else f"cap {self.cap:g}")
        if self.shuffle:
            parts.append(f"shuffled within each tensor (seed {self.seed})")
        return f"mean over {over} of {size} {of}gradients: " + "; ".join(parts)

    def _describe_score(self) -> str:
        if self.score == "output_norm":
            norm = "‖z‖₂" if self.norm == "l2" else "‖z‖₂²"
            logits = {None: "", True: ", centered", False: ", not centered"}[self.centered]
            return f"output_norm ({norm}{logits})"
        if self.score == "log_odds" and self.odds == "token":
            return "log_odds (of each token)"
        if self.candidates is not None:
            return f"reversed (among the {self.candidates} likeliest tokens)"
        if self.score == "custom":
            return f"custom ({self.function})"
        if self.score == "reversed" and self.reversal != "positives":
            return f"reversed ({self.reversal} where multi-label)"
        return self.score


def score_examples(
    estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor
) -> Iterator[Tensor]:
    """Vectors [batch] whose per-example gradients, squared and added up, are the estimate.

    `target` holds class ids [batch] (also the right one of several choices) or soft labels [batch, outputs].
    `position` [batch] tells the examples apart where labels are sampled, whatever their batch or process.
    """
    if estimator.score == "custom":
        raise ValueError(
            "score 'custom' needs a function: measure_importance(model, loader, score=function)"
        )
    target = target if target.is_floating_point() else target.long()
    _refuse_text_options(estimator)
    _check_shapes(logits, target)
    if estimator.score != "output_norm":
        _refuse_one_class(logits, target)
    if estimator.score == "output_norm":
        if estimator.centered:
            logits = logits - logits.mean(dim=1, keepdim=True)
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
        return (
            _multi_label_nll(logits, labels)
            if multi_label
            else F.cross_entropy(logits, labels, reduction="none")
        )
    if estimator.score == "log_odds":
        return (labels * logits).sum(dim=1) if multi_label else _log_odds(logits, labels)
    if not multi_label:
        return F.cross_entropy(-logits, labels, reduction="none")
    if estimator.reversal == "literal":
        return _multi_label_nll(-logits, labels)
    if estimator.reversal == "positives":
        return (labels * F.softplus(logits)).sum(dim=1)  # -y log sigmoid(-z)
    share = labels / labels.sum(dim=1, keepdim=True).clamp_min(
        torch.finfo(labels.dtype).tiny
    )  # all-zero stays zero
    return -(share * F.log_softmax(-logits, dim=1)).sum(dim=1)


def _multi_label_nll(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


def _log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    own = F.one_hot(labels, logits.shape[1]).bool()  # [batch, classes]
    rest = logits.masked_fill(own, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, labels[:, None]).squeeze(1) - rest


def _score_every_multi_label(estimator: Estimator, logits: Tensor) -> Iterator[Tensor]:
    """Independent labels: E[(Σ a_k(y_k) ∂z_k)²] is the square of its mean plus one variance per label, exactly."""
    if estimator.score == "reversed" and estimator.reversal == "softmax":
        raise ValueError(
            "labels 'all' have no closed form for the softmax reversal; use labels 'sampled'"
        )
    _refuse_many_classes(logits)
    chance = logits.detach().sigmoid()  # [batch, labels]
    if estimator.score != "plain":  # the mean gradient of the plain score is zero
        yield _score(estimator, logits, chance)
    deviation = (chance * (1 - chance)).sqrt()
    if estimator.score == "reversed" and estimator.reversal == "positives":
        deviation = deviation * chance
    for label in range(logits.shape[1]):
        yield deviation[:, label] * logits[:, label]


def _choose_labels(
    estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor
) -> Tensor:
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
    """Return uniform numbers [batch, columns] that depend on the seed and the example only."""
    return draw_uniform(seed, position.cpu()[:, None] * columns + torch.arange(columns))


def _refuse_many_classes(logits: Tensor) -> None:
    if logits.shape[1] > MOST_EXACT_CLASSES:
        raise ValueError(
            f"labels 'all' takes one backward pass per class and this head has {logits.shape[1]} "
            f"(at most {MOST_EXACT_CLASSES}); use labels 'sampled', an unbiased estimate of the same quantity"
        )


def _refuse_text_options(estimator: Estimator) -> None:
    meant = {
        "odds": estimator.odds != "sequence",
        "length": estimator.length != "sum",
        "candidates": estimator.candidates is not None,
    }
    for name, is_set in meant.items():
        if is_set:
            raise ValueError(
                f"estimator.{name} is for answers in words, and these logits are of classes: leave it out"
            )


def _check_shapes(logits: Tensor, target: Tensor) -> None:
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be [batch, outputs], found {list(logits.shape)}; for any other model or loss pass "
            "score=function, where function(model, batch) gives one number per example, [batch]"
        )
    if target.is_floating_point():
        _check_soft_labels(logits, target)
    else:
        _check_class_ids(logits, target)


def _check_soft_labels(logits: Tensor, target: Tensor) -> None:
    if target.shape != logits.shape:
        raise _unfit(logits, target)
    if target.numel() and not bool(((target >= 0) & (target <= 1)).all()):
        found = f"{float(target.min()):g}..{float(target.max()):g}"
        raise ValueError(
            f"float targets are soft labels and must lie in 0..1, found {found}. "
            "Regression needs the negative log-likelihood of its own error model: pass score=function, such as "
            "lambda model, batch: (model(batch[0]) - batch[1]).square().sum(dim=1) / 2 for Gaussian errors"
        )


def _check_class_ids(logits: Tensor, target: Tensor) -> None:
    if target.shape != logits.shape[:1]:
        raise _unfit(logits, target)
    if len(target) and not 0 <= int(target.min()) <= int(target.max()) < logits.shape[1]:
        raise ValueError(
            f"class ids must lie in 0..{logits.shape[1] - 1}, found {int(target.min())}..{int(target.max())}"
        )


def _refuse_one_class(logits: Tensor, target: Tensor) -> None:
    if logits.shape[1] == 1 and not target.is_floating_point():
        raise OneClassError(
            "the logits have one output and the targets are class ids: the softmax of one class is constant, and so is "
            "every score; for a yes-no answer give soft labels, a float tensor [batch, 1] of 0 and 1"
        )


def _unfit(logits: Tensor, target: Tensor) -> ValueError:
    return ValueError(
        f"logits {list(logits.shape)} need class ids [{logits.shape[0]}] or soft labels {list(logits.shape)}, "
        f"found {target.dtype} {list(target.shape)}"
    )


def _is_budget(samples: int | float) -> bool:
    if isinstance(samples, bool):
        return False
    return samples >= 1 if isinstance(samples, int) else 0 < samples <= 1
