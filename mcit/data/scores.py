"""What tasks are scored by: `evaluate` metrics that need no hub, keep their data in memory and answer in percent."""

from __future__ import annotations

from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from mcit.data.answers import ANNOTATORS
from mcit.data.arrow import cache_folder, make_folder

_WHOLE = datasets.Value("int64")


class Score(evaluate.Metric):
    """A metric whose inputs stay in memory, so that any number of them may be filled at once."""

    summary: str
    columns: ClassVar[dict[str, Any]]

    def __init__(self, **options: Any):
        folder = cache_folder() / "metrics"
        make_folder(folder)  # `evaluate` wants one even where it writes nothing
        super().__init__(**{"keep_in_memory": True, "cache_dir": str(folder), **options})

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


class Accuracy(Score):
    """The share of examples whose predicted class is the right one."""

    summary = "The share of right predictions."
    columns: ClassVar = {"predictions": _WHOLE, "references": _WHOLE}

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"score": 100 * float(np.mean(np.equal(predictions, references)))}


class SoftAccuracy(Score):
    """The mean of what the predicted answers score with their annotators.

    `references` are the ids of the answers that score anything, filled up with -1, and `scores` what they score.
    """

    summary = "The mean soft score of the predicted answers."
    columns: ClassVar = {
        "predictions": _WHOLE,
        "references": datasets.Sequence(_WHOLE, length=ANNOTATORS),
        "scores": datasets.Sequence(datasets.Value("float64"), length=ANNOTATORS),
    }

    def _compute(self, predictions: list[int], references: list, scores: list) -> dict[str, float]:
        hits = np.equal(
            np.asarray(predictions)[:, None], np.asarray(references)
        )  # [examples, annotators]
        return {"score": 100 * float(np.mean(np.sum(hits * np.asarray(scores), axis=1)))}


class PairAccuracy(Score):
    """Accuracy, and `consistency`: the share of sentences that are judged right with every one of their image pairs.

    `groups` numbers the sentences.
    """

    summary = "The share of right predictions, and of sentences that are right throughout."
    columns: ClassVar = {"predictions": _WHOLE, "references": _WHOLE, "groups": _WHOLE}

    def _compute(
        self, predictions: list[int], references: list[int], groups: list[int]
    ) -> dict[str, float]:
        right = np.equal(predictions, references)
        sentences, failed = np.unique(groups).size, np.unique(np.asarray(groups)[~right]).size
        return {
            "score": 100 * float(right.mean()),
            "consistency": 100 * (sentences - failed) / sentences,
        }
