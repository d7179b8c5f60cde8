"""Importance of a language-model head: an example is a whole answer, scored over its tokens and the end mark.

For an answer y with token probabilities p_t and P = prod p_t:

    plain        -log P, the empirical Fisher of the sequence model
    log_odds     logit P = log P - log(1 - P); its gradient is sum_t w_t grad(logit p_t) with w_t = (1 - p_t) / (1 - P),
                 so that nothing vanishes with confidence and tokens that are certain anyway get no weight
    reversed     sum_t CE(-z_t, y_t), EWC-DR taken literally; with `candidates`, among the likeliest tokens only
    output_norm  sum_t |z_t|, of centered logits unless told otherwise: softmax ignores a constant, the norm does not

Labels are -100 where a token does not count, as in transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcit.draws import draw_uniform
from mcit.estimator import Estimator

IGNORED = -100
# Draws of one example lie this far apart: no answer has more tokens.
_LONGEST = 1 << 20


def is_text(logits: Tensor, target: Tensor) -> bool:
    """Whether these are logits [batch, tokens, vocabulary] and labels [batch, tokens]."""
    return logits.ndim == 3 and target.ndim == 2 and not target.is_floating_point()


def score_answers(estimator: Estimator, logits: Tensor, labels: Tensor, position: Tensor) -> Tensor:
    """Return one number per example, [batch].

    `logits` [batch, tokens, vocabulary] at a place speak of the label at that place. `position` [batch] tells the
    examples apart where labels are sampled.
    """
    if logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits {list(logits.shape)} need labels {list(logits.shape[:2])}, found {list(labels.shape)}"
        )
    if estimator.labels == "all":
        raise ValueError(
            "labels 'all' would take one backward pass per answer that could be given; use 'sampled'"
        )
    counted = labels != IGNORED
    empty = torch.logical_not(counted.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"example {empty[0]} of a batch has no token that counts (all its labels are {IGNORED}): leave such rows "
            "out; an answer that was cut off by a length limit needs a higher one"
        )
    example, place = counted.nonzero(as_tuple=True)
    # half precision cannot tell a confident token from a certain one
    z = logits[example, place].to(torch.promote_types(logits.dtype, torch.float32))
    y = _choose_tokens(
        estimator,
        z,
        labels[example, place],
        position[example.cpu()],
        _count_up(counted)[example, place],
    )
    tokens = _score_tokens(estimator, z, y)
    if estimator.score == "log_odds" and estimator.odds == "sequence":
        tokens = tokens * _weigh_by_doubt(tokens.detach(), example, len(labels))
    scores = tokens.new_zeros(len(labels)).index_add(0, example, tokens)
    if estimator.length == "mean":
        scores = scores / counted.sum(dim=1)
    return scores


def _count_up(counted: Tensor) -> Tensor:
    """Return the number of each token within its answer."""
    return counted.cumsum(dim=1) - 1


def _choose_tokens(
    estimator: Estimator, z: Tensor, y: Tensor, position: Tensor, number: Tensor
) -> Tensor:
    """Return the labels: those given, or what the model would say at each place after the answer's true beginning."""
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < z.shape[1]:
        raise ValueError(
            f"labels must lie in 0..{z.shape[1] - 1} or be {IGNORED}, found {int(y.min())}..{int(y.max())}"
        )
    if estimator.labels == "true" or estimator.score == "output_norm":
        return y
    if estimator.labels == "predicted":
        return z.detach().argmax(dim=1)
    below = z.detach().double().softmax(dim=1).cumsum(dim=1)
    draws = draw_uniform(estimator.seed, position.cpu() * _LONGEST + number.cpu()).to(below)[
        :, None
    ]
    return (below < draws * below[:, -1:]).sum(dim=1).clamp_max(z.shape[1] - 1)


def _score_tokens(estimator: Estimator, z: Tensor, y: Tensor) -> Tensor:
    """Return one number per token, [tokens], of logits [tokens, vocabulary]."""
    if estimator.score == "plain":
        return F.cross_entropy(z, y, reduction="none")
    if estimator.score == "log_odds":
        rest = z.scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
        return z.gather(1, y[:, None]).squeeze(1) - rest
    if estimator.score == "reversed":
        return _reverse(z, y, estimator.candidates)
    if estimator.centered is not False:
        z = z - z.mean(dim=1, keepdim=True)
    if estimator.norm == "l2":
        return z.norm(dim=1)
    return z.square().sum(dim=1)


def _reverse(z: Tensor, y: Tensor, candidates: int | None) -> Tensor:
    if candidates is None or candidates >= z.shape[1]:
        return F.cross_entropy(-z, y, reduction="none")
    chosen = z.detach().topk(candidates, dim=1).indices
    # the label takes the last place where it is not among the likeliest
    missing = torch.logical_not((chosen == y[:, None]).any(dim=1))
    chosen[missing, -1] = y[missing]
    place = (chosen == y[:, None]).int().argmax(dim=1)
    return F.cross_entropy(-z.gather(1, chosen), place, reduction="none")


def _weigh_by_doubt(odds: Tensor, example: Tensor, examples: int) -> Tensor:
    """Return (1 - p_t) / (1 - P) of tokens with these log-odds, in logarithms: finite however sure the model is."""
    odds = odds.double()
    nll = F.softplus(-odds)
    total = nll.new_zeros(examples).index_add(0, example, nll)
    log_doubt = torch.log(-torch.expm1(-total))
    return torch.exp(-F.softplus(odds) - log_doubt[example]).to(torch.float32)


# --- reading a transformers model


def read_answers(model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return logits [batch, tokens, vocabulary] and the labels [batch, tokens] that they speak of.

    A causal model speaks of the next token, an encoder-decoder or a token classifier of the one at the same place.
    """
    labels = batch["labels"]
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    base = _find_base(model)
    config = getattr(base, "config", None)
    if config is None:
        raise TypeError(
            f"labels {list(labels.shape)} are of tokens, and a {type(base).__name__} does not say whether its logits "
            "speak of the same token or of the next: give forward=lambda model, batch: (logits, labels), aligned"
        )
    if config.is_encoder_decoder:
        # the model makes the decoder's inputs from the labels
        return _get_logits(model(**batch)), labels
    if not base.can_generate():
        return _get_logits(model(**inputs)), labels
    first = _find_first(labels)
    if first == 0:
        raise ValueError(
            "the first token of a row has a label, and nothing before it could predict it: set it to -100"
        )
    kept = labels.shape[1] - first + 1
    if "logits_to_keep" in inspect.signature(base.forward).parameters:
        inputs["logits_to_keep"] = kept
    # some models put image tokens of their own before the text, so count from the end
    logits = _get_logits(model(**inputs))[:, -kept:-1]
    return logits, labels[:, first:]


def _find_base(model: nn.Module) -> nn.Module:
    """Return the transformers model inside a PEFT model."""
    get_base = getattr(model, "get_base_model", None)
    return model if get_base is None else get_base()


def _find_first(labels: Tensor) -> int:
    """Return the first place at which any row has a label."""
    places = (labels != IGNORED).any(dim=0).nonzero()
    return int(places[0]) if len(places) else labels.shape[1] - 1


def _get_logits(output: Any) -> Tensor:
    return output.logits
