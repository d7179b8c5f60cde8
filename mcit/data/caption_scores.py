"""BLEU, ROUGE-L and CIDEr-D of captions, in plain Python.

    BLEU-n    (p_1 ... p_n)^(1/n) exp(min(0, 1 - r / c)): clipped n-gram precisions of all captions
              together; c words were written, r are in the references nearest in length
    ROUGE-L   (1 + 1.2^2) P R / (R + 1.2^2 P), with P and R the longest common subsequence over the
              words of the caption and of the reference, each at its best reference
    CIDEr-D   10 mean_n mean_refs exp(-(l - l_r)^2 / 72) min(g, g_r) . g_r / (|g| |g_r|), with g the
              counts of n-grams times log(captioned images / images that have the n-gram)

Papineni et al., BLEU, ACL 2002, https://aclanthology.org/P02-1040
Lin, ROUGE, 2004, https://aclanthology.org/W04-1013
Vedantam et al., CIDEr, CVPR 2015, https://arxiv.org/abs/1411.5726

Differs from pycocoevalcap: words are split by a few rules instead of the Stanford tokenizer, which
needs Java, and an n-gram precision of 0 makes BLEU 0 unless `smooth` adds its tiny constants.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

ORDERS = (1, 2, 3, 4)
# of pycocoevalcap
ROUGE_BETA = 1.2
CIDER_SIGMA = 6.0
CIDER_SCALE = 10.0
TINY = 1e-15
SMALL = 1e-9

_CLITIC = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m))\b")
_WORD = re.compile(r"n't|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-.,/]\w+)*|[$%#&@+=*]")

Words = Sequence[str]
Grams = Counter[tuple[str, ...]]


def split_words(caption: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation; `man's` is two words."""
    apart = _CLITIC.sub(r" \1", caption.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return _WORD.findall(apart)


def bleu(
    candidates: Sequence[Words], references: Sequence[Sequence[Words]], smooth: bool = False
) -> list[float]:
    """Return BLEU-1 to BLEU-4 of all captions together, from 0 to 1."""
    matched = dict.fromkeys(ORDERS, 0)
    written = dict.fromkeys(ORDERS, 0)
    length = 0
    wanted = 0
    for candidate, accepted in zip(candidates, references, strict=True):
        length += len(candidate)
        wanted += _nearest_length(candidate, accepted)
        for order in ORDERS:
            grams = count_grams(candidate, order)
            most: Grams = Counter()
            for reference in accepted:
                most |= count_grams(reference, order)
            matched[order] += (grams & most).total()
            written[order] += grams.total()
    ratio = length / max(wanted, 1)
    if smooth:
        ratio = (length + TINY) / (wanted + SMALL)
    return _combine(matched, written, ratio, smooth)


def _combine(
    matched: dict[int, int], written: dict[int, int], ratio: float, smooth: bool
) -> list[float]:
    """Return the geometric means of the precisions up to each order, with the brevity penalty."""
    product = 1.0
    scores = []
    for order in ORDERS:
        if smooth:
            product *= (matched[order] + TINY) / (written[order] + SMALL)
        else:
            product *= matched[order] / max(written[order], 1)
        score = product ** (1 / order)
        if ratio == 0:
            score = 0.0
        elif ratio < 1:
            score *= math.exp(1 - 1 / ratio)
        scores.append(score)
    return scores


def rouge_l(candidate: Words, references: Sequence[Words]) -> float:
    """Return ROUGE-L of one caption, from 0 to 1."""
    precision = 0.0
    recall = 0.0
    for reference in references:
        common = common_length(candidate, reference)
        precision = max(precision, common / max(len(candidate), 1))
        recall = max(recall, common / max(len(reference), 1))
    if precision == 0 or recall == 0:
        return 0.0
    weight = ROUGE_BETA**2
    return (1 + weight) * precision * recall / (recall + weight * precision)


def common_length(one: Words, other: Words) -> int:
    """Return the length of the longest common subsequence of words."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, against in enumerate(other, start=1):
            above = lengths[place]
            if word == against:
                lengths[place] = diagonal + 1
            else:
                lengths[place] = max(above, lengths[place - 1])
            diagonal = above
    return lengths[-1]


def cider_d(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Return CIDEr-D of each caption, from 0 to 10; rarity is counted in these references."""
    seen: Grams = Counter()
    for accepted in references:
        grams: set[tuple[str, ...]] = set()
        for reference in accepted:
            for order in ORDERS:
                grams |= count_grams(reference, order).keys()
        seen.update(grams)
    log_total = math.log(max(len(references), 1))
    scores = []
    for candidate, accepted in zip(candidates, references, strict=True):
        own = [_weigh(candidate, order, seen, log_total) for order in ORDERS]
        similar = 0.0
        for reference in accepted:
            other = [_weigh(reference, order, seen, log_total) for order in ORDERS]
            pairs = zip(own, other, strict=True)
            likeness = sum(_clipped_cosine(mine, theirs) for mine, theirs in pairs) / len(ORDERS)
            # pycocoevalcap measures length in pairs of words
            apart = max(len(candidate) - 1, 0) - max(len(reference) - 1, 0)
            similar += likeness * math.exp(-(apart**2) / (2 * CIDER_SIGMA**2))
        scores.append(CIDER_SCALE * similar / len(accepted))
    return scores


def count_grams(words: Words, order: int) -> Grams:
    """Return how often each run of `order` words occurs."""
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def _weigh(words: Words, order: int, seen: Grams, log_total: float) -> dict[tuple[str, ...], float]:
    grams = count_grams(words, order)
    return {
        gram: count * (log_total - math.log(max(seen[gram], 1))) for gram, count in grams.items()
    }


def _clipped_cosine(
    own: dict[tuple[str, ...], float], other: dict[tuple[str, ...], float]
) -> float:
    norms = _norm(own) * _norm(other)
    if norms == 0:
        return 0.0
    common = own.keys() & other.keys()
    return sum(min(own[gram], other[gram]) * other[gram] for gram in common) / norms


def _norm(weights: dict[tuple[str, ...], float]) -> float:
    return math.sqrt(sum(weight**2 for weight in weights.values()))


def _nearest_length(candidate: Words, references: Sequence[Words]) -> int:
    """Return the length of the reference nearest in length, the shorter of two."""
    lengths = [len(reference) for reference in references]
    return min(lengths, key=lambda length: (abs(length - len(candidate)), length))
