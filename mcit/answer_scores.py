"""Importance of a language-model head: an example is a whole answer with its end mark.

For an answer with tokens y_t, logits z_t, p_t = softmax(z_t)[y_t] and P = prod_t p_t,

    plain         -log P, the empirical Fisher information of the sequence model (EWC)
    log_odds      log P - log(1 - P), with gradient sum_t w_t grad(logit p_t) and
                  w_t = (1 - p_t) / (1 - P): it does not vanish with confidence, and tokens that
                  are certain anyway get no weight
    reversed      sum_t CE(-z_t, y_t), EWC-DR taken literally; with `candidates`, among the
                  likeliest tokens only
    output_norm   sum_t |z_t - mean z_t|, MAS; not centered with `centered` false

The papers are listed in mcit/estimator.py. None of them defines its score for text: these are the
definitions that reduce to theirs where an answer has one token. Labels are -100 where a token does
not count, as in transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcit.draws import draw_classes, draw_uniform
from mcit.estimator import Estimator, center, log_odds, measure_norm

IGNORED = -100
# counters of sampled tokens: no answer has more tokens than this
LONGEST_ANSWER = 1 << 20


def is_text(logits: Tensor, target: Tensor) -> bool:
    """Whether these are logits [batch, tokens, vocabulary] and labels [batch, tokens]."""
    return logits.ndim == 3 and target.ndim == 2 and not target.is_floating_point()


def score_answers(estimator: Estimator, logits: Tensor, labels: Tensor, position: Tensor) -> Tensor:
    """Return one score per example, [batch].

    `logits` [batch, tokens, vocabulary] predict the labels [batch, tokens] at the same place.
    `position` [batch] identifies the examples, for labels that are sampled.
    """
    _refuse_class_options(estimator)
    if logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits {list(logits.shape)} need labels {list(logits.shape[:2])}, "
            f"found {list(labels.shape)}"
        )
    counted = labels != IGNORED
    empty = torch.logical_not(counted.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"example {empty[0]} of a batch has no token that counts (all its labels are "
            f"{IGNORED}): leave such rows out; an answer that was cut off by a length limit needs "
            "a higher one"
        )
    example, place = counted.nonzero(as_tuple=True)
    # half precision cannot tell a confident token from a certain one
    token_logits = logits[example, place].to(torch.promote_types(logits.dtype, torch.float32))
    # the number of each token within its answer
    number = (counted.cumsum(dim=1) - 1)[example, place]
    counter = position[example.cpu()].cpu() * LONGEST_ANSWER + number.cpu()
    token_labels = _choose_tokens(estimator, token_logits, labels[example, place], counter)
    scores = _score_tokens(estimator, token_logits, token_labels)
    if estimator.score == "log_odds" and estimator.odds == "sequence":
        scores = scores * _weigh_tokens(scores.detach(), example, len(labels))
    total = scores.new_zeros(len(labels)).index_add(0, example, scores)
    if estimator.length == "mean":
        return total / counted.sum(dim=1)
    return total


def _refuse_class_options(estimator: Estimator) -> None:
    if estimator.labels == "all":
        raise ValueError(
            "labels 'all' would take one backward pass per answer that could be given; "
            "use 'sampled'"
        )
    if estimator.weight == "probability":
        raise ValueError("weight 'probability' needs class ids, found text: leave it out")


def _choose_tokens(estimator: Estimator, logits: Tensor, labels: Tensor, counter: Tensor) -> Tensor:
    """Return the true tokens, or what the model would say after the true beginning of each."""
    outside = (labels < 0) | (labels >= logits.shape[1])
    if outside.any():
        raise ValueError(
            f"labels must lie in 0..{logits.shape[1] - 1} or be {IGNORED}, "
            f"found {int(labels.min())}..{int(labels.max())}"
        )
    if estimator.labels == "predicted":
        return logits.detach().argmax(dim=1)
    if estimator.labels == "sampled":
        return draw_classes(logits, draw_uniform(estimator.seed, counter))
    return labels


def _score_tokens(estimator: Estimator, logits: Tensor, labels: Tensor) -> Tensor:
    """Return one score per token, [tokens], of logits [tokens, vocabulary]."""
    if estimator.score == "plain":
        return F.cross_entropy(logits, labels, reduction="none")
    if estimator.score == "log_odds":
        return log_odds(logits, labels)
    if estimator.score == "reversed":
        if estimator.candidates is not None and estimator.candidates < logits.shape[1]:
            logits, labels = _keep_candidates(logits, labels, estimator.candidates)
        return F.cross_entropy(-logits, labels, reduction="none")
    if estimator.centered is not False:
        logits = center(logits)
    return measure_norm(logits, estimator.norm)


def _keep_candidates(logits: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest logits of each token and where its label is among them."""
    chosen = logits.detach().topk(count, dim=1).indices
    # a label that is not among the likeliest takes the last place
    missing = torch.logical_not((chosen == labels[:, None]).any(dim=1))
    chosen[missing, -1] = labels[missing]
    place = (chosen == labels[:, None]).int().argmax(dim=1)
    return logits.gather(1, chosen), place


def _weigh_tokens(odds: Tensor, example: Tensor, examples: int) -> Tensor:
    """Return (1 - p_t) / (1 - P) of tokens with these log-odds, finite for p_t close to 1 too."""
    odds = odds.double()
    nll = F.softplus(-odds)
    answer_nll = nll.new_zeros(examples).index_add(0, example, nll)
    # log(1 - P), and log(1 - p_t) = -softplus(odds)
    log_doubt = torch.log(-torch.expm1(-answer_nll))
    return torch.exp(-F.softplus(odds) - log_doubt[example]).to(torch.float32)


# --- reading a transformers model


def read_answers(model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return logits [batch, tokens, vocabulary] and the labels [batch, tokens] that they predict.

    A causal model predicts the next token, an encoder-decoder or a token classifier the one at the
    same place. Nothing predicts the first token of a row: its label does not count, as in the loss
    of transformers.
    """
    labels = batch["labels"]
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    base = _find_base(model)
    config = getattr(base, "config", None)
    if config is None:
        raise TypeError(
            f"labels {list(labels.shape)} are per token, and a {type(base).__name__} does not "
            f"say whether its logits predict the same token or the next one: give "
            "forward=lambda model, batch: (logits, labels), aligned"
        )
    if config.is_encoder_decoder:
        # the model makes the decoder's inputs from the labels
        return model(**batch).logits, labels
    if not base.can_generate():
        return model(**inputs).logits, labels
    first = max(1, _find_first(labels))
    kept = labels.shape[1] - first + 1
    if "logits_to_keep" in inspect.signature(base.forward).parameters:
        inputs["logits_to_keep"] = kept
    # count from the end: some models put image tokens of their own before the text
    logits = model(**inputs).logits[:, -kept:-1]
    return logits, labels[:, first:]


def _find_base(model: Any) -> Any:
    """Return the transformers model inside a PEFT model."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def _find_first(labels: Tensor) -> int:
    """Return the first place at which any row has a label."""
    places = (labels != IGNORED).any(dim=0).nonzero()
    if not len(places):
        return labels.shape[1] - 1
    return int(places[0])
