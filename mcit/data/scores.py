"""The metrics of tasks: they need no hub, keep their data in memory and answer in percent."""

from __future__ import annotations

from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from mcit.data.answers import ANNOTATORS
from mcit.data.tables import open_cache

_WHOLE = datasets.Value("int64")


class LocalMetric(evaluate.Metric):
    """A metric whose inputs stay in memory, so that any number of them may be filled at once."""

    summary: str
    columns: ClassVar[dict[str, Any]]

    def __init__(self, **options: Any):
        # `evaluate` wants a folder even if it writes nothing
        folder = str(open_cache("metrics"))
        super().__init__(**{"keep_in_memory": True, "cache_dir": folder, **options})

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.summary,
            citation="",
            inputs_description=f"Inputs: {', '.join(self.columns)}. Result: `score`, in percent.",
            features=datasets.Features(self.columns),
        )

    def _finalize(self) -> None:
        if self.writer is None:
            raise ValueError(f"{self.name}: nothing to score; call add_batch before compute")
        super()._finalize()


class Accuracy(LocalMetric):
    """The share of examples whose predicted class is the right one."""

    summary = "The share of right predictions."
    columns: ClassVar = {"predictions": _WHOLE, "references": _WHOLE}

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"score": _percent(np.equal(predictions, references))}


class SoftAccuracy(LocalMetric):
    """The mean of what the predicted answers score with their annotators.

    `references` are the ids of the answers that score anything, filled up with -1, and `scores`
    what each of them scores.
    """

    summary = "The mean soft score of the predicted answers."
    columns: ClassVar = {
        "predictions": _WHOLE,
        "references": datasets.Sequence(_WHOLE, length=ANNOTATORS),
        "scores": datasets.Sequence(datasets.Value("float64"), length=ANNOTATORS),
    }

    def _compute(self, predictions: list[int], references: list, scores: list) -> dict[str, float]:
        # [examples, annotators]
        hits = np.equal(np.asarray(predictions)[:, None], np.asarray(references))
        return {"score": _percent(np.sum(hits * np.asarray(scores), axis=1))}


class PairAccuracy(LocalMetric):
    """Accuracy, and `consistency`: the share of sentences that are right with all their pairs.

    `groups` numbers the sentences.
    """

    summary = "The share of right predictions, and of sentences that are right throughout."
    columns: ClassVar = {"predictions": _WHOLE, "references": _WHOLE, "groups": _WHOLE}

    def _compute(
        self, predictions: list[int], references: list[int], groups: list[int]
    ) -> dict[str, float]:
        right = np.equal(predictions, references)
        sentences = np.unique(groups).size
        failed = np.unique(np.asarray(groups)[~right]).size
        return {
            "score": _percent(right),
            "consistency": 100 * (sentences - failed) / sentences,
        }


def _percent(values: np.ndarray) -> float:
    return 100 * float(np.mean(values))
