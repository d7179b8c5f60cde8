"""Estimators of importance: the score that is differentiated, its labels, and what is squared.

For an example with logits z and label y, p = softmax(z), and a score s,

    importance = mean_i (d s(z_i, y_i) / d theta)^2      unit example (the default)
    importance = mean_b (mean_i d s / d theta)^2         unit batch: another quantity

    score plain         -log p_y                         EWC, the empirical Fisher information
    score reversed      -log softmax(-z)_y               EWC-DR
    score log_odds      log p_y - log(1 - p_y)           proposed here: no vanishing gradient
    score output_norm   |z|, absolute, not squared       MAS

    labels all          sum_y p_y (d s(z, y) / d theta)^2, with score plain the exact Fisher
    weight probability  p_y (d s / d theta)^2

EWC      Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017,
         https://arxiv.org/abs/1612.00796
MAS      Aljundi et al., Memory aware synapses, ECCV 2018, https://arxiv.org/abs/1711.09601
EWC-DR   Liu and Chang, Elastic weight consolidation done right for continual learning, CVPR 2026,
         https://arxiv.org/abs/2603.18596
Fisher   Kunstner et al., Limitations of the empirical Fisher approximation, NeurIPS 2019,
         https://arxiv.org/abs/1905.12558; van de Ven, On the computation of the Fisher information
         in continual learning, 2025, https://arxiv.org/abs/2502.11756

Differs from common code, most of which squares the mean gradient of a batch and so depends on the
batch size: `peer` lists what other code bases compute, as settings of the estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import option, read_hints
from mcit.draws import draw_classes, draw_uniform
from mcit.errors import ConfigError
from mcit.spelling import suggest

# labels 'all' take one backward pass per class: with more classes they are not worth their cost
MOST_EXACT_CLASSES = 256
# options that only some scores read
READ_BY = {
    "labels": ("plain", "reversed", "log_odds"),
    "weight": ("plain", "reversed", "log_odds"),
    "reversal": ("reversed",),
    "norm": ("output_norm",),
    "centered": ("output_norm",),
    "function": ("custom",),
    "odds": ("log_odds",),
    "candidates": ("reversed",),
    "length": ("plain", "reversed", "log_odds", "output_norm"),
}
# options that only answers in words have, see mcit/answer_scores.py
FOR_TEXT = ("odds", "length", "candidates")


class EstimatorError(ConfigError):
    """Choices that no estimator has, or that contradict each other; one line each."""

    def __init__(self, problems: Iterable[str]):
        super().__init__(problems)
        # the call may stand in a program of the user's own: no word of a configuration file
        self.args = ("; ".join(self.problems),)


class OneClassError(ValueError):
    """Class ids for a single output: the softmax of one class is constant, nothing to measure."""


@dataclass(frozen=True)
class Estimator:
    """How importance is measured; `describe()` is printed next to every result."""

    score: Literal["plain", "reversed", "log_odds", "output_norm", "custom"] = option(
        "plain",
        help="what is differentiated: plain (EWC), reversed (EWC-DR), log_odds, output_norm "
        "(MAS), or custom, a function given to `measure_importance(score=function)`",
    )
    labels: Literal["true", "predicted", "sampled", "all"] = option(
        "true",
        help="which labels: true, predicted (the likeliest), sampled (drawn from the model), "
        "or all (every label weighted by its probability, the exact Fisher information)",
    )
    weight: Literal["none", "probability"] = option(
        "none",
        help="weight of squared gradients: none, or the probability of the label, as in Mammoth",
    )
    unit: Literal["example", "batch"] = option(
        "example",
        help="what is squared: the gradient of each example, or of each batch, which depends "
        "on the batch size; output_norm takes absolute values instead of squares",
    )
    mode: Literal["eval", "train"] = option(
        "eval", help="the network's mode while it is measured: eval or train"
    )
    cap: float | None = option(None, help="upper limit of every importance, or none")
    samples: int | float | None = option(
        None, help="how many examples are read: a count, a fraction of the data, or none for all"
    )
    reversal: Literal["positives", "literal", "softmax"] = option(
        "positives",
        help="the reversed score of soft multi-label targets: positives, literal or softmax",
    )
    norm: Literal["l2", "squared_l2"] = option(
        "l2", help="the norm of output_norm: l2 or squared_l2"
    )
    shuffle: bool = option(False, help="permute the importance within each tensor, as a control")
    update_buffers: bool = option(
        False,
        help="keep the values that BatchNorm's statistics get during the pass, as the EWC-DR "
        "release does; needs unit batch and mode train",
    )
    seed: int = option(0, help="seed of sampled labels, of drawn examples and of shuffle")
    function: str = option("", help="name of the function of a custom score")
    odds: Literal["sequence", "token"] = option(
        "sequence",
        help="the log-odds of a text: of the whole answer (sequence) or summed over each token",
    )
    length: Literal["sum", "mean"] = option(
        "sum", help="the score of a text: a sum over the tokens of its answer, or their mean"
    )
    candidates: int | None = option(
        None, help="reverse a text's logits among this many of the likeliest tokens only"
    )
    centered: bool | None = option(
        None, help="subtract the mean of the logits before output_norm; by default for text only"
    )

    def __post_init__(self) -> None:
        problems = [*self._find_unknown(), *self._find_wrong(), *self._find_ignored()]
        if problems:
            raise EstimatorError(problems)

    @classmethod
    def like(cls, name: str) -> Estimator:
        """Return the estimator that computes what another code base does; see `peer`."""
        return peer(name).estimator

    def _find_unknown(self) -> list[str]:
        problems = []
        for name, hint in read_hints(type(self)).items():
            value = getattr(self, name)
            choices = get_args(hint)
            if get_origin(hint) is Literal and value not in choices:
                near = suggest(str(value), choices)
                listed = ", ".join(choices)
                problems.append(f"estimator.{name} is {value!r}{near} (choices: {listed})")
        return problems

    def _find_wrong(self) -> list[str]:
        problems = []
        if self.cap is not None and not self.cap > 0:
            problems.append(
                f"estimator.cap must be above 0, found {self.cap}; leave it out for no cap"
            )
        if self.samples is not None and not _is_budget(self.samples):
            problems.append(
                "estimator.samples must be a count of at least 1, or a fraction above 0 and up to "
                f"1.0, found {self.samples!r}"
            )
        if self.candidates is not None and self.candidates < 2:
            problems.append(f"estimator.candidates must be at least 2, found {self.candidates}")
        if self.unit == "batch" and self.labels == "all":
            problems.append(
                "labels 'all' weighs every label of every example: it needs unit 'example'"
            )
        if self.weight == "probability" and (self.unit == "batch" or self.labels == "all"):
            problems.append(
                "weight 'probability' weighs the squared gradient of one label of each example: "
                f"it needs unit 'example' and labels other than 'all', found unit {self.unit!r} "
                f"and labels {self.labels!r}"
            )
        if self.update_buffers and (self.unit, self.mode) != ("batch", "train"):
            problems.append(
                "update_buffers reproduces the EWC-DR release and needs unit 'batch' and mode "
                "'train'"
            )
        return problems

    def _find_ignored(self) -> list[str]:
        # whoever sets an option that changes nothing expects something else
        problems = []
        for name, scores in READ_BY.items():
            value = getattr(self, name)
            if self.score not in scores and value != getattr(Estimator, name):
                problems.append(
                    f"{name} {value!r} has no meaning for score {self.score!r}: leave it out"
                )
        return problems

    @property
    def absolute(self) -> bool:
        """Whether absolute values are averaged, as in MAS, and not squares."""
        return self.score == "output_norm"

    def describe(self) -> str:
        """Return one line that differs between any two estimators that compute different things."""
        size = "absolute" if self.absolute else "squared"
        mean = f"mean over examples of {size} gradients"
        if self.unit == "batch":
            mean = f"mean over batches of {size} batch-mean gradients"
        parts = [f"score {self._describe_score()}"]
        if self.labels == "sampled":
            parts.append(f"labels sampled (seed {self.seed})")
        elif self.score in READ_BY["labels"]:
            parts.append(f"labels {self.labels}")
        if self.weight == "probability":
            parts.append("weighted by the label's probability")
        if self.length == "mean":
            parts.append("mean over the tokens of an answer")
        buffers = ", buffers updated" if self.update_buffers else ""
        parts.append(f"mode {self.mode}{buffers}")
        if self.samples is None:
            parts.append("all samples")
        else:
            parts.append(f"samples {self.samples} (seed {self.seed})")
        parts.append("no cap" if self.cap is None else f"cap {self.cap:g}")
        if self.shuffle:
            parts.append(f"shuffled within each tensor (seed {self.seed})")
        return f"{mean}: {'; '.join(parts)}"

    def _describe_score(self) -> str:
        details = []
        if self.score == "output_norm":
            details.append("‖z‖₂" if self.norm == "l2" else "‖z‖₂²")
        if self.centered is not None:
            details.append("centered" if self.centered else "not centered")
        if self.odds == "token":
            details.append("of each token")
        if self.candidates is not None:
            details.append(f"among the {self.candidates} likeliest tokens")
        if self.reversal != "positives":
            details.append(f"{self.reversal} where multi-label")
        if self.score == "custom":
            details.append(self.function)
        if not details:
            return self.score
        return f"{self.score} ({', '.join(details)})"


def _is_budget(samples: int | float) -> bool:
    if isinstance(samples, bool):
        return False
    if isinstance(samples, int):
        return samples >= 1
    return 0 < samples <= 1


# --- scores of class heads


def score_examples(
    estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor
) -> list[Tensor]:
    """Return vectors [batch] whose per-example gradients, squared and added up, are the estimate.

    `target` holds class ids [batch], also of multiple choice, or soft labels [batch, outputs].
    `position` [batch] identifies the examples, for labels that are sampled.
    """
    if estimator.score == "custom":
        raise ValueError(
            "score 'custom' needs a function: measure_importance(model, loader, score=function)"
        )
    _refuse_text_options(estimator)
    _check_shapes(logits, target)
    if estimator.score == "output_norm":
        if estimator.centered:
            logits = center(logits)
        return [measure_norm(logits, estimator.norm)]
    if target.is_floating_point():
        return _score_soft_labels(estimator, logits, target.to(logits.dtype), position)
    return _score_classes(estimator, logits, target.long(), position)


def center(logits: Tensor) -> Tensor:
    """Return logits [rows, outputs] less their mean, which softmax ignores and a norm does not."""
    return logits - logits.mean(dim=1, keepdim=True)


def measure_norm(logits: Tensor, norm: str) -> Tensor:
    """Return the norm [rows] of logits [rows, outputs]."""
    if norm == "l2":
        return logits.norm(dim=1)
    return logits.square().sum(dim=1)


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log(p / (1 - p)) [rows] of the labels [rows], exact however close p is to 1."""
    rest = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1)
    return logits.gather(1, labels[:, None]).squeeze(1) - rest


def _score_classes(
    estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor
) -> list[Tensor]:
    if logits.shape[1] == 1:
        raise OneClassError(
            "the logits have one output and the targets are class ids: the softmax of one class "
            "is constant, and so is every score; for a yes-no answer give soft labels, a float "
            "tensor [batch, 1] of 0 and 1"
        )
    if estimator.labels == "all":
        _refuse_many_classes(logits)
        # sqrt(p) times the score is p times its squared gradient
        weights = logits.detach().softmax(dim=1).sqrt()
        scores = []
        for label in range(logits.shape[1]):
            labels = torch.full_like(target, label)
            scores.append(weights[:, label] * _score_class(estimator, logits, labels))
        return scores
    if estimator.labels == "predicted":
        target = logits.detach().argmax(dim=1)
    elif estimator.labels == "sampled":
        target = draw_classes(logits, draw_uniform(estimator.seed, position))
    score = _score_class(estimator, logits, target)
    if estimator.weight == "probability":
        chance = logits.detach().softmax(dim=1).gather(1, target[:, None])
        score = score * chance.squeeze(1).sqrt()
    return [score]


def _score_class(estimator: Estimator, logits: Tensor, labels: Tensor) -> Tensor:
    if estimator.score == "log_odds":
        return log_odds(logits, labels)
    if estimator.score == "reversed":
        logits = -logits
    return F.cross_entropy(logits, labels, reduction="none")


def _score_soft_labels(
    estimator: Estimator, logits: Tensor, target: Tensor, position: Tensor
) -> list[Tensor]:
    if estimator.weight == "probability":
        raise ValueError("weight 'probability' needs class ids, found soft labels: leave it out")
    if estimator.labels == "all":
        return _score_every_soft_label(estimator, logits)
    if estimator.labels == "predicted":
        target = (logits.detach() > 0).to(logits.dtype)
    elif estimator.labels == "sampled":
        outputs = logits.shape[1]
        counter = position.cpu()[:, None] * outputs + torch.arange(outputs)
        draws = draw_uniform(estimator.seed, counter).to(logits)
        target = (draws < logits.detach().sigmoid()).to(logits.dtype)
    return [_score_soft_label(estimator, logits, target)]


def _score_soft_label(estimator: Estimator, logits: Tensor, labels: Tensor) -> Tensor:
    if estimator.score == "log_odds":
        return (labels * logits).sum(dim=1)
    if estimator.score == "reversed" and estimator.reversal == "positives":
        # -y log sigmoid(-z)
        return (labels * F.softplus(logits)).sum(dim=1)
    if estimator.score == "reversed" and estimator.reversal == "softmax":
        # labels that are all zero stay zero
        tiny = torch.finfo(labels.dtype).tiny
        total = labels.sum(dim=1, keepdim=True).clamp_min(tiny)
        return -(labels / total * F.log_softmax(-logits, dim=1)).sum(dim=1)
    if estimator.score == "reversed":
        logits = -logits
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


def _score_every_soft_label(estimator: Estimator, logits: Tensor) -> list[Tensor]:
    # labels are independent, with probability s = sigmoid(z) each: the mean over all sets of labels
    # of (sum_k a_k(y_k) dz_k)^2 is the square of its mean plus a variance per label
    if estimator.score == "reversed" and estimator.reversal == "softmax":
        raise ValueError(
            "labels 'all' have no closed form for the softmax reversal; use labels 'sampled'"
        )
    _refuse_many_classes(logits)
    chance = logits.detach().sigmoid()
    deviation = (chance * (1 - chance)).sqrt()
    if estimator.score == "reversed" and estimator.reversal == "positives":
        deviation = deviation * chance
    scores = []
    # the mean gradient of the plain score is zero
    if estimator.score != "plain":
        scores.append(_score_soft_label(estimator, logits, chance))
    for label in range(logits.shape[1]):
        scores.append(deviation[:, label] * logits[:, label])
    return scores


# --- checks


def _refuse_many_classes(logits: Tensor) -> None:
    if logits.shape[1] > MOST_EXACT_CLASSES:
        raise ValueError(
            f"labels 'all' takes one backward pass per class and this head has {logits.shape[1]} "
            f"(at most {MOST_EXACT_CLASSES}); use labels 'sampled', an unbiased estimate of the "
            "same quantity"
        )


def _refuse_text_options(estimator: Estimator) -> None:
    for name in FOR_TEXT:
        if getattr(estimator, name) != getattr(Estimator, name):
            raise ValueError(
                f"estimator.{name} is for answers in words, and these logits are of classes: "
                "leave it out"
            )


def _check_shapes(logits: Tensor, target: Tensor) -> None:
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be [batch, outputs], found {list(logits.shape)}; for any other model or "
            "loss pass score=function, where function(model, batch) returns one number per example,"
            " [batch]"
        )
    soft = target.is_floating_point()
    expected = logits.shape if soft else logits.shape[:1]
    if target.shape != expected:
        raise ValueError(
            f"logits {list(logits.shape)} need class ids [{len(logits)}] or soft labels "
            f"{list(logits.shape)}, found {target.dtype} {list(target.shape)}"
        )
    if not target.numel():
        return
    lowest = target.min().item()
    highest = target.max().item()
    # NaN is refused too
    if soft and not 0 <= lowest <= highest <= 1:
        raise ValueError(
            f"float targets are soft labels and must lie in 0..1, found {lowest:g}.."
            f"{highest:g}. Regression needs the negative log-likelihood of its own error "
            "model: pass score=function, such as lambda model, batch: (model(batch[0]) - batch[1])"
            ".square().sum(dim=1) / 2 for Gaussian errors"
        )
    if not soft and not 0 <= lowest <= highest < logits.shape[1]:
        raise ValueError(
            f"class ids must lie in 0..{logits.shape[1] - 1}, found {lowest}..{highest}"
        )


# --- what other code bases compute

# options that say how much is read and how, and not what is computed
FREE = ("samples", "shuffle", "seed", "update_buffers")


@dataclass(frozen=True)
class Ratio:
    """The importance of another code base over ours, for N examples in batches of B."""

    formula: str
    compute: Callable[[int, int], float]


SAME = Ratio("1", lambda examples, batch_size: 1.0)
LAST_INDEX = Ratio("N / (N − 1)", lambda examples, batch_size: examples / (examples - 1))
FULL_BATCHES = Ratio(
    "N / (⌈N/B⌉ B)",
    lambda examples, batch_size: examples / (math.ceil(examples / batch_size) * batch_size),
)


@dataclass(frozen=True)
class PeerSetting:
    """The estimator that computes what another code base does, and how strengths convert.

    code: The code base and its version.
    link: Where it is.
    function: What computes the importance there.
    computes: What that is.
    estimator: The setting.
    strength_per_lambda: Our strength for their lambda of 1, at equal importance.
    ratio: Their importance over ours.
    """

    code: str
    link: str
    function: str
    computes: str
    estimator: Estimator
    strength_per_lambda: float
    ratio: Ratio = SAME

    def factor(self, examples: int, batch_size: int) -> float:
        """Return their importance over ours, for so many examples in batches of a size."""
        return self.ratio.compute(examples, batch_size)

    def strength(self, lamda: float, examples: int, batch_size: int) -> float:
        """Return our strength for their lambda, with importance over so many examples."""
        return lamda * self.strength_per_lambda * self.factor(examples, batch_size)

    def options(self) -> dict[str, Any]:
        """Return the options of the estimator that decide what is computed."""
        names = [option.name for option in fields(Estimator) if option.name not in FREE]
        return {name: getattr(self.estimator, name) for name in names}


def peer(name: str) -> PeerSetting:
    """Return the setting that computes what a code base does; PEERS has their names."""
    if name not in PEERS:
        near = suggest(name, PEERS)
        raise EstimatorError([f"unknown peer {name!r}{near} (peers: {', '.join(PEERS)})"])
    return PEERS[name]


AVALANCHE = ("Avalanche 0.6.0", "https://github.com/ContinualAI/avalanche")
FACIL = ("FACIL e09d2c8", "https://github.com/mmasana/FACIL")
VAN_DE_VEN = ("GMvandeVen e6d795a", "https://github.com/GMvandeVen/continual-learning")
MAMMOTH = ("Mammoth e75a491", "https://github.com/aimagelab/mammoth")
EWC_DR_RELEASE = ("EWC-DR release adcaaeb", "https://github.com/scarlet0703/EWC-DR")

PEERS = {
    "avalanche": PeerSetting(
        *AVALANCHE,
        function="`EWCPlugin`",
        computes="squared batch-mean gradients, eval mode",
        estimator=Estimator(unit="batch"),
        strength_per_lambda=2.0,
    ),
    "avalanche-mas": PeerSetting(
        *AVALANCHE,
        function="`MASPlugin`",
        computes="absolute batch-mean gradient of ‖z‖², train mode; moves BatchNorm",
        estimator=Estimator(
            score="output_norm", norm="squared_l2", unit="batch", mode="train", update_buffers=True
        ),
        strength_per_lambda=2.0,
    ),
    "facil": PeerSetting(
        *FACIL,
        function="`ewc` (`max_pred`, its default)",
        computes="squared batch-mean gradients, the model's own labels, train mode, full batches, "
        "backbone only",
        estimator=Estimator(labels="predicted", unit="batch", mode="train"),
        strength_per_lambda=1.0,
    ),
    "facil-mas": PeerSetting(
        *FACIL,
        function="`mas`",
        computes="absolute batch-mean gradient of ‖z‖, train mode, full batches, backbone only",
        estimator=Estimator(score="output_norm", unit="batch", mode="train"),
        strength_per_lambda=1.0,
    ),
    "vandeven": PeerSetting(
        *VAN_DE_VEN,
        function="`estimate_fisher`, labels `all`",
        computes="the exact Fisher, divided by the last index and not by the count",
        estimator=Estimator(labels="all"),
        strength_per_lambda=1.0,
        ratio=LAST_INDEX,
    ),
    "mammoth": PeerSetting(
        *MAMMOTH,
        function="`ewc_on`",
        computes="per-example squares weighted by p(y), divided by batches × batch size; the "
        "network stays in its mode",
        estimator=Estimator(weight="probability"),
        strength_per_lambda=2.0,
        ratio=FULL_BATCHES,
    ),
    "ewc-dr-release": PeerSetting(
        *EWC_DR_RELEASE,
        function="`EWCDR.getImportance`",
        computes="squared batch-mean gradients of CE(−z, y), train mode, cap 1e-4; moves BatchNorm",
        estimator=Estimator(
            score="reversed", unit="batch", mode="train", cap=1e-4, update_buffers=True
        ),
        strength_per_lambda=1.0,
    ),
    "ewc-release": PeerSetting(
        *EWC_DR_RELEASE,
        function="`EWC.getFisherDiagonal`",
        computes="the same with CE(z, y)",
        estimator=Estimator(unit="batch", mode="train", cap=1e-4, update_buffers=True),
        strength_per_lambda=1.0,
    ),
}
