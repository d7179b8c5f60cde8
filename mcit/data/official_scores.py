"""The scoring rules of the public scripts of CoIN, UCIT and MLLM-DCL, mistakes included.

They are here for numbers that can be laid beside published ones. What they get wrong is said at
each rule; mcit's own metrics in mcit/data/text_scores.py do it right.

Chen et al., CoIN, NeurIPS 2024, https://arxiv.org/abs/2403.08350, github.com/zackschen/CoIN
Guo et al., HiDe-LLaVA (UCIT), ACL 2025, https://arxiv.org/abs/2503.12941, github.com/Ghy0501
Zhao et al., MLLM-CL, 2025, https://arxiv.org/abs/2506.05453, github.com/bjzhb666/MLLM-CL

A rule takes a predicted text and the accepted answers and returns a score from 0 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mcit.data.answers import normalize, vote_scores

Rule = Callable[[str, Sequence[str]], float]

OPTIONS = ("A", "B", "C", "D", "E")
# predictions that hold it are wrong, even if it is the answer
REFUSED = "Unanswerable"
_LONE_CHARACTER = re.compile(r"\b(\w)\b")


def equal_upper(prediction: str, references: Sequence[str]) -> float:
    """Equality in upper case with one answer: VQAv2 and VizWiz of CoIN, four tasks of UCIT.

    VQAv2 and VizWiz have ten answers each; the scripts know one.
    """
    return float(prediction.upper() == references[0].upper())


def equal_lower_unless_refused(prediction: str, references: Sequence[str]) -> float:
    """Equality in lower case: OCR-VQA of CoIN."""
    if REFUSED in prediction:
        return 0.0
    return float(prediction.lower() == references[0].lower())


def equal_without_period(prediction: str, references: Sequence[str]) -> float:
    """Equality of the lower-case prediction, final periods removed: GQA.

    The answer is not put into lower case, as those of GQA are.
    """
    text = prediction.rstrip(".").lower().removeprefix(" ")
    return float(text == references[0])


def soft_textvqa(prediction: str, references: Sequence[str]) -> float:
    """Soft accuracy with ten answers that are always normalized: TextVQA."""
    scores = vote_scores([_normalize_m4c(answer) for answer in references])
    return scores.get(_normalize_m4c(prediction), 0.0)


def _normalize_m4c(answer: str) -> str:
    lower = answer.lower().replace(",", "").replace("?", "").replace("'s", " 's")
    return normalize(lower.strip())


def first_letter(prediction: str, references: Sequence[str]) -> float:
    """The letter, `X. ...`, or else the first word of one character: ScienceQA.

    So `A dog` answers A, and so does `It is a dog`.
    """
    return float(_read_letter(prediction) == references[0])


def _read_letter(prediction: str) -> str | None:
    if prediction in OPTIONS:
        return prediction
    if prediction[:1] in OPTIONS and prediction[1:3] == ". ":
        return prediction[0]
    lone = _LONE_CHARACTER.search(prediction)
    if lone is None or lone[1].upper() not in OPTIONS:
        return None
    return lone[1].upper()


def contained_either_way(prediction: str, references: Sequence[str]) -> float:
    """Prediction and answer, one in the other, case counts: ImageNet of CoIN.

    An empty prediction is right.
    """
    answer = references[0]
    return float(answer in prediction or prediction in answer)


def cut_box(prediction: str, references: Sequence[str]) -> float:
    """IoU above 0.5 of a box whose first and last character are cut: Grounding.

    Brackets are removed before, so that the last digit is lost.
    """
    wanted = _read_numbers(references[0])
    found = _read_numbers(prediction.removeprefix(" "), cut=True)
    if wanted is None or found is None or len(found) != 4:
        return 0.0
    return float(_unclamped_iou(found, wanted) > 0.5)


def _read_numbers(text: str, cut: bool = False) -> list[float] | None:
    text = text.replace("[", "").replace("]", "")
    if cut:
        text = text[1:-1]
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        return None


def _unclamped_iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Return intersection over union as the script has it: areas may be negative."""
    wide = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    high = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    both = wide * high
    either = _signed_area(one) + _signed_area(other) - both
    return both / either if either > 0 else 0.0


def _signed_area(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def contained_at_spaces(prediction: str, references: Sequence[str]) -> float:
    """The answer is in the prediction, beside a space or a mark if it is one word: RS and AD.

    A border at one side is enough: `no` is not in `not sure`, but in `is north`.
    """
    if REFUSED in prediction:
        return 0.0
    text = prediction.lower()
    answer = references[0].lower()
    if " " in answer:
        return float(answer in text)
    answer = answer.replace(".", "")
    if " " not in text:
        return float(answer in text)
    bordered = (f" {answer}", f"{answer} ", f"{answer}.", f"{answer},")
    return float(any(part in text for part in bordered))


def contained_lower(prediction: str, references: Sequence[str]) -> float:
    """The answer is anywhere in the prediction: Med; `no` is in `know`."""
    if REFUSED in prediction:
        return 0.0
    return float(references[0].lower() in prediction.lower())


def equal_without_spaces(prediction: str, references: Sequence[str]) -> float:
    """Equality after spaces and periods are taken from the prediction, not the answer: Fin."""
    if REFUSED in prediction:
        return 0.0
    text = prediction.lower().replace(" ", "").replace(".", "")
    return float(text == references[0].lower())


def letter_or_list(prediction: str, references: Sequence[str]) -> float:
    """Equality with a letter; of a list, the share found; else contained: Sci.

    The script tells these cases by the name of the image and words of the question; this rule by
    the answer, since a metric sees no more.
    """
    if REFUSED in prediction:
        return 0.0
    text = prediction.lower()
    answer = references[0].lower()
    if len(answer) == 1:
        return float(text == answer)
    if "," not in answer:
        return float(answer in text)
    wanted = answer.split(",")
    listed = text.split(",")
    return sum(name in listed for name in wanted) / len(wanted)


# by benchmark, then by mcit's metric or the name that a task gives to a rule of its own
RULES: Mapping[str, Mapping[str, Rule]] = {
    "coin": {
        "exact": equal_upper,
        "vqa": soft_textvqa,
        "letter": first_letter,
        "contained": contained_either_way,
        "box": cut_box,
        "answerable": equal_lower_unless_refused,
        "period": equal_without_period,
    },
    "ucit": {"exact": equal_upper, "letter": equal_upper},
    "dcl": {
        "exact": equal_without_spaces,
        "contained": contained_at_spaces,
        "anywhere": contained_lower,
        "list": letter_or_list,
    },
}
