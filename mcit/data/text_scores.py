"""Metrics of answers in words: raw, by content alone, and whether the answers obey the format.

    score        as the task scores it: what a strict reader counts as right
    normalized   content: the same without case, articles, final period, number words, lead-ins such
                 as "The answer is", and with the letter or box found wherever it stands
    obedience    form: the share of answers in the format that was asked for, right or wrong

All are in percent. A model that has learned another format since may know the answer as before: its
score falls with its obedience, its normalized score does not. Format following beside accuracy is
from Wang et al., SMoLoRA, ICCV 2025, https://arxiv.org/abs/2411.13949, with stricter forms here.

`compat` scores as the public scripts of a benchmark do, see mcit/data/official_scores.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import datasets
import numpy as np

from mcit.data import answers, caption_scores
from mcit.data.official_scores import RULES, Rule
from mcit.data.scores import LocalMetric
from mcit.errors import ConfigError
from mcit.spelling import suggest

Texts = Sequence[str]
# whether an answer has the asked format, given the accepted answers
Form = Callable[[str, Texts], bool]
Box = tuple[float, float, float, float]

# words of a short answer, unless an accepted one is longer
FEW_WORDS = 3
# words of a sentence at least
SENTENCE_WORDS = 5
_POLAR = (frozenset(("yes", "no")), frozenset(("true", "false")))

_LEAD = re.compile(
    r"""^\W*(?:
        (?:so|thus|therefore|hence|well|sure)\b\W*
        | (?:(?:the|my|a)\ )?(?:(?:final|correct|right|best|short)\ )*
          (?:answer|option|choice)\b\W*(?:(?:is|was|would\ be|should\ be)\b\W*)?
        | (?:it|this|that)(?:\ is|'s)\b\W*
    )+""",
    re.VERBOSE | re.IGNORECASE,
)
_CAPTION_LEAD = re.compile(
    r"""^\W*(?:(?:in|on)\ )?(?:(?:the|this|a|an)\ )?(?:image|picture|photo|photograph|caption)\b\W*
        (?:(?:shows|depicts|features|captures|displays|contains|of|is)\b\W*)?""",
    re.VERBOSE | re.IGNORECASE,
)
_CURLY = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
_EDGES = " \t\n\"'`*.,;:!?()[]{}<>" + _CURLY
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_FOUR_NUMBERS = re.compile(rf"\[\s*({_NUMBER})" + rf"\s*,\s*({_NUMBER})" * 3 + r"\s*\]")
_ANY_NUMBER = re.compile(_NUMBER)
_LETTER_FIRST = re.compile(r"^[\W_]*([A-Za-z0-9])(?:[.:;,)\]](?!\d)|\s*$)")
_LETTER_NAMED = re.compile(
    r"\b(?:option|answer|choice)\W+(?:is\W+)?(?:option\W+)?([A-Za-z0-9])\b", re.IGNORECASE
)
_LETTER_IN_BRACKETS = re.compile(r"[(\[]([A-Za-z])[)\]]")


def text_metric(name: str, **options: Any) -> TextMetric:
    """Return the metric `name`, an `evaluate.Metric` of predicted texts and accepted answers.

    Options of all: `form` (exactly one of `choices` | letter | short | sentence | box | reference),
    `choices`, `words` (of a short answer), `compat` (coin | ucit | dcl) and `rule`, where that
    benchmark has several for this metric. Options of `caption`: `headline`.
    """
    if name not in METRICS:
        near = suggest(name, METRICS)
        raise ConfigError(
            [f"unknown text metric {name!r}{near} (text metrics: {', '.join(METRICS)})"]
        )
    return METRICS[name](name, **options)


class TextMetric(LocalMetric):
    """What all metrics of texts share: inputs, content and form, the rules of other scripts."""

    columns: ClassVar = {
        "predictions": datasets.Value("string"),
        "references": datasets.Sequence(datasets.Value("string")),
    }
    default_form: ClassVar[str] = "short"

    def __init__(
        self,
        kind: str,
        *,
        form: str | None = None,
        choices: Texts = (),
        words: int = FEW_WORDS,
        compat: str | None = None,
        rule: str | None = None,
    ):
        super().__init__()
        self.form = make_form(form or self.default_form, choices, words)
        self.compat = compat
        self.official = self.find_official(kind, compat, rule)

    def find_official(self, kind: str, compat: str | None, rule: str | None) -> Rule | None:
        """Return the rule of a benchmark's own script, None without `compat`."""
        if compat is None:
            return None
        if compat not in RULES:
            near = suggest(compat, RULES)
            raise ConfigError([f"unknown compat {compat!r}{near} (compat: {', '.join(RULES)})"])
        rules = RULES[compat]
        wanted = rule or kind
        if wanted not in rules:
            raise ConfigError(
                [f"compat {compat!r} has no rule {wanted!r}; it has rules for {', '.join(rules)}"]
            )
        return rules[wanted]

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float]:
        pairs = list(zip(predictions, references, strict=True))
        empty = [number for number, (_, accepted) in enumerate(pairs) if not accepted]
        if empty:
            raise ValueError(f"example {empty[0]} of {len(pairs)} has no accepted answer")
        rate = self.official or self.rate
        return {
            "score": percent([rate(*pair) for pair in pairs]),
            "normalized": percent([self.rate_content(*pair) for pair in pairs]),
            "obedience": percent([self.form(*pair) for pair in pairs]),
            **self.describe(predictions, references),
        }

    def rate(self, prediction: str, references: Texts) -> float:
        """Return what a strict reader gives to an answer, from 0 to 1."""
        raise NotImplementedError

    def rate_content(self, prediction: str, references: Texts) -> float:
        """Return what a reader gives who asks for the content only, from 0 to 1."""
        raise NotImplementedError

    def describe(self, predictions: Texts, references: Sequence[Texts]) -> dict[str, float]:
        """Return further numbers, in percent."""
        return {}


class ExactText(TextMetric):
    """The share of answers that are one of the accepted ones."""

    summary = "The share of answers that are one of the accepted ones."

    def rate(self, prediction: str, references: Texts) -> float:
        return float(prediction.strip() in [answer.strip() for answer in references])

    def rate_content(self, prediction: str, references: Texts) -> float:
        return float(read_content(prediction) in map(read_content, references))


class SoftText(TextMetric):
    """Soft VQA accuracy with the answers of ten annotators; a single answer stands for ten."""

    summary = "Soft VQA accuracy of texts, min(1, matches / 3) over nine of ten annotators."

    def rate(self, prediction: str, references: Texts) -> float:
        references = _repeat_single(references)
        text = answers.clean(prediction)
        # the official evaluation normalizes only where annotators differ
        if len({answers.clean(answer) for answer in references}) > 1:
            text = answers.normalize(prediction)
        return answers.soft_scores(references).get(text, 0.0)

    def rate_content(self, prediction: str, references: Texts) -> float:
        votes = [read_content(answer) for answer in _repeat_single(references)]
        return answers.vote_scores(votes).get(read_content(prediction), 0.0)


class OptionLetter(TextMetric):
    """The share of answers that are the letter of the right option.

    Content is right if the letter is found, as in `(B) a dog`, or if the text equals an accepted
    answer: give the text of the option beside its letter.
    """

    summary = "The share of right letters of options."
    default_form = "letter"

    def rate(self, prediction: str, references: Texts) -> float:
        return float(prediction.strip() == references[0].strip())

    def rate_content(self, prediction: str, references: Texts) -> float:
        letter = read_letter(prediction)
        if letter is not None and letter.casefold() == references[0].strip().casefold():
            return 1.0
        return float(read_content(prediction) in map(read_content, references))


class ContainedText(TextMetric):
    """The share of answers that hold an accepted one as whole words, in any case."""

    summary = "The share of answers that hold an accepted one."

    def rate(self, prediction: str, references: Texts) -> float:
        return float(any(_holds(prediction.casefold(), each.casefold()) for each in references))

    def rate_content(self, prediction: str, references: Texts) -> float:
        text = read_content(prediction)
        return float(any(_holds(text, read_content(each)) for each in references))


class BoxText(TextMetric):
    """The share of boxes `[x1, y1, x2, y2]` with an IoU above 0.5.

    Content is the first four numbers, whatever stands around them.
    """

    summary = "The share of boxes with an intersection over union above 0.5."
    default_form = "box"

    def rate(self, prediction: str, references: Texts) -> float:
        return float(_best_iou(parse_box(prediction), references) > 0.5)

    def rate_content(self, prediction: str, references: Texts) -> float:
        return float(_best_iou(find_box(prediction), references) > 0.5)

    def describe(self, predictions: Texts, references: Sequence[Texts]) -> dict[str, float]:
        found = [find_box(prediction) for prediction in predictions]
        overlaps = [_best_iou(box, each) for box, each in zip(found, references, strict=True)]
        return {
            "mean_iou": percent(overlaps),
            "parsed": percent([box is not None for box in found]),
        }


Headline = Literal["rouge_l", "bleu_4", "cider_d"]


class CaptionText(TextMetric):
    """Captions: the score is ROUGE-L, unless `headline` names another.

    ROUGE-L is the mean over captions of a number from 0 to 1, so that it stands beside accuracies.
    As a headline CIDEr-D is in percent of its maximum, 10; as a detail it is 100 times CIDEr-D, as
    tables have it. With `compat: ucit` the score is the mean of BLEU-1 to 4, ROUGE-L and CIDEr-D
    times 100, at most 100. The public script averages METEOR in as well, which needs Java.
    """

    summary = "ROUGE-L, BLEU-4 and CIDEr-D of captions."
    default_form = "sentence"

    def __init__(self, kind: str, *, headline: Headline = "rouge_l", **options: Any):
        super().__init__(kind, **options)
        known = ("rouge_l", "bleu_4", "cider_d")
        if headline not in known:
            near = suggest(headline, known)
            raise ConfigError([f"unknown headline {headline!r}{near} ({', '.join(known)})"])
        self.headline = headline

    def find_official(self, kind: str, compat: str | None, rule: str | None) -> Rule | None:
        """Return None: a caption is not scored by itself."""
        if compat not in (None, "ucit"):
            raise ConfigError([f"compat {compat!r} has no rule 'caption'; compat 'ucit' has one"])
        return None

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float]:
        raw = self._measure(predictions, references)
        plain = [drop_caption_lead(text) for text in predictions]
        accepted = [[drop_caption_lead(text) for text in each] for each in references]
        content = self._measure(plain, accepted)
        pairs = zip(predictions, references, strict=True)
        return {
            "score": self._choose(raw),
            "normalized": self._choose(content),
            "obedience": percent([self.form(*pair) for pair in pairs]),
            **raw,
        }

    def _choose(self, numbers: dict[str, float]) -> float:
        if self.compat == "ucit":
            return min(100.0, float(np.mean(list(numbers.values()))))
        if self.headline == "cider_d":
            return numbers["cider_d"] / caption_scores.CIDER_SCALE
        return numbers[self.headline]

    def _measure(self, predictions: Texts, references: Sequence[Texts]) -> dict[str, float]:
        words = [caption_scores.split_words(text) for text in predictions]
        accepted = [[caption_scores.split_words(text) for text in each] for each in references]
        smooth = self.compat == "ucit"
        bleu = caption_scores.bleu(words, accepted, smooth)
        numbers = {
            f"bleu_{order}": 100 * score
            for order, score in zip(caption_scores.ORDERS, bleu, strict=True)
        }
        pairs = zip(words, accepted, strict=True)
        numbers["rouge_l"] = percent([caption_scores.rouge_l(*pair) for pair in pairs])
        numbers["cider_d"] = percent(caption_scores.cider_d(words, accepted))
        return numbers


METRICS: dict[str, type[TextMetric]] = {
    "exact": ExactText,
    "vqa": SoftText,
    "letter": OptionLetter,
    "box": BoxText,
    "caption": CaptionText,
    "contained": ContainedText,
}


def make_form(name: str, choices: Texts = (), words: int = FEW_WORDS) -> Form:
    """Return the test of a format by its name; choices, where given, are the format."""
    if choices:
        allowed = frozenset(choices)
        return lambda prediction, references: prediction in allowed
    forms: dict[str, Form] = {
        "letter": lambda prediction, references: _is_letter(prediction),
        "short": lambda prediction, references: _is_short(prediction, references, words),
        "sentence": lambda prediction, references: _is_sentence(prediction),
        "box": lambda prediction, references: parse_box(prediction) is not None,
        "reference": lambda prediction, references: _is_alike(prediction, references, words),
    }
    if name not in forms:
        near = suggest(name, forms)
        raise ConfigError([f"unknown form of answers {name!r}{near} (forms: {', '.join(forms)})"])
    return forms[name]


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text.isupper()


def _is_short(text: str, references: Texts, words: int) -> bool:
    most = max(words, *(len(answer.split()) for answer in references))
    return 0 < len(text.split()) <= most and "\n" not in text.strip()


def _is_sentence(text: str) -> bool:
    return len(text.split()) >= SENTENCE_WORDS and "\n" not in text.strip()


def _is_alike(text: str, references: Texts, words: int) -> bool:
    """Whether an answer has the format of the accepted one, for tasks that ask for several."""
    answer = references[0].strip()
    if len(answer) == 1 and answer.isalpha():
        return len(text) == 1 and text.isalpha() and text.isupper() == answer.isupper()
    if parse_box(answer) is not None:
        return parse_box(text) is not None
    for pair in _POLAR:
        if answer.casefold() in pair:
            return text.casefold() in pair
    if len(answer.split()) >= SENTENCE_WORDS:
        return _is_sentence(text)
    return _is_short(text, references, words)


def read_content(text: str) -> str:
    """Return an answer by its content: plain characters, no lead-in, official VQA normalization.

    Where nothing would be left, as of the letter `A`, which is an article, only case is dropped.
    """
    plain = unicodedata.normalize("NFKC", text)
    plain = plain.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    stripped = _LEAD.sub("", plain).strip(_EDGES) or plain.strip(_EDGES)
    return answers.normalize(stripped) or stripped.casefold()


def drop_caption_lead(text: str) -> str:
    """Return a caption without `The image shows`, `A photo of` and the like."""
    return _CAPTION_LEAD.sub("", _LEAD.sub("", text)) or text


def read_letter(text: str) -> str | None:
    """Return the letter or digit that an answer names: `B`, `(b) a dog`, `The answer is B.`."""
    plain = unicodedata.normalize("NFKC", text)
    for part in (plain, _LEAD.sub("", plain)):
        first = _LETTER_FIRST.search(part)
        if first is not None:
            return first[1]
    for pattern in (_LETTER_NAMED, _LETTER_IN_BRACKETS):
        found = pattern.search(plain)
        if found is not None:
            return found[1]
    return None


def parse_box(text: str) -> Box | None:
    """Return the box of a text that is `[x1, y1, x2, y2]` and nothing else."""
    found = _FOUR_NUMBERS.fullmatch(text.strip())
    if found is None:
        return None
    left, top, right, bottom = (float(number) for number in found.groups())
    return left, top, right, bottom


def find_box(text: str) -> Box | None:
    """Return the first four numbers of a text, None if it has fewer."""
    numbers = [float(number) for number in _ANY_NUMBER.findall(text)]
    if len(numbers) < 4:
        return None
    left, top, right, bottom = numbers[:4]
    return left, top, right, bottom


def intersection_over_union(one: Box, other: Box) -> float:
    """Return IoU; a box whose corners are in the wrong order has no area."""
    overlap = (
        max(one[0], other[0]),
        max(one[1], other[1]),
        min(one[2], other[2]),
        min(one[3], other[3]),
    )
    both = _area(overlap)
    either = _area(one) + _area(other) - both
    if either <= 0:
        return 0.0
    return both / either


def percent(values: Sequence[float]) -> float:
    """Return the mean in percent."""
    return 100 * float(np.mean(values))


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _best_iou(box: Box | None, references: Texts) -> float:
    if box is None:
        return 0.0
    best = 0.0
    for answer in references:
        wanted = find_box(answer)
        if wanted is None:
            raise ValueError(f"an accepted answer is not a box [x1, y1, x2, y2]: {answer!r}")
        best = max(best, intersection_over_union(box, wanted))
    return best


def _holds(text: str, part: str) -> bool:
    part = part.strip()
    if not part:
        return not text.strip()
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def _repeat_single(references: Texts) -> Texts:
    if len(references) == 1:
        return list(references) * answers.ANNOTATORS
    return references
