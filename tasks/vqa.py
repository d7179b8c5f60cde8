"""VQAv2: an open question about an image, answered from a vocabulary and scored against ten annotators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import datasets
import torch
from torch import Tensor
from torch.nn import functional

from mcit.data import answers as vqa_answers
from mcit.data.annotated import AnnotatedTask, Row, Shown
from mcit.data.arrow import cache_folder, fingerprint, keep_text
from mcit.data.bad_records import BadRecords, Policy
from mcit.data.images import coco_id
from mcit.data.records import BadRecord, Record, read_records
from mcit.data.scores import SoftAccuracy
from mcit.task import Batch, DataError, DataPart, Head, Recipe

RECIPE = Recipe(epochs=10, batch_size=64, learning_rate=1e-4, weight_decay=1e-2)
PUBLISHED = 3129  # answers in the vocabularies of the literature


@dataclass(frozen=True)
class Vqa(AnnotatedTask):
    """Ten answers a question make soft targets over the vocabulary; the score is the official soft accuracy.

    The vocabulary is made of the majority answers of both splits that occur at least `minimum` times, unless a JSON
    file is given; `answers` is how many it must hold. `compat: climb` matches answers unnormalised, as CLiMB does.
    """

    root: Path | None = None
    recipe: Recipe = RECIPE
    minimum: int = 9
    vocabulary: Path | None = None
    answers: int | None = None
    compat: Literal["climb"] | None = None
    on_bad_record: Policy = "fail"

    name = "vqa"
    embedded = True
    chance = 0.0
    source = "unpack the v2 questions and annotations of visualqa.org in vqav2/ and COCO's images in ms-coco/images/"
    page = "https://visualqa.org/download.html (images: https://cocodataset.org/#download)"
    archives: ClassVar = {
        "v2_Questions_Train_mscoco.zip": "vqav2",
        "v2_Questions_Val_mscoco.zip": "vqav2",
        "v2_Annotations_Train_mscoco.zip": "vqav2",
        "v2_Annotations_Val_mscoco.zip": "vqav2",
        "train2014.zip": "ms-coco/images",
        "val2014.zip": "ms-coco/images",
        "train2017.zip": "ms-coco/images",
        "val2017.zip": "ms-coco/images",
    }
    splits: ClassVar = {"train": "train2014", "eval": "val2014"}
    sizes: ClassVar = {"train2014": 443757, "val2014": 214354}
    image_key = staticmethod(coco_id)
    features: ClassVar = {
        "id": datasets.Value("int64"),
        "image": datasets.Value("int64"),
        "question": datasets.Value("string"),
        "majority": datasets.Value("string"),
        "answers": datasets.Sequence(datasets.Value("string")),
        "scores": datasets.Sequence(datasets.Value("float64")),
    }

    @cached_property
    def answer_ids(self) -> dict[str, int]:
        """Each answer of the vocabulary and its place among the outputs."""
        known, origin = self._read_vocabulary() if self.vocabulary else self._build_vocabulary()
        if self.answers is not None and len(known) != self.answers:
            raise DataError(self._explain_answers(len(known), origin))
        return {answer: place for place, answer in enumerate(known)}

    @property
    def head(self) -> Head:
        return Head(self.name, outputs=len(self.answer_ids), kind="multi_label", layout="mlp")

    def check(self) -> None:
        super().check()
        _ = self.answer_ids

    def remarks(self) -> list[str]:
        known = len(self.answer_ids)
        if self.vocabulary is not None:
            return [f"{known:,} answers in the vocabulary {self.vocabulary}"]
        lines = [
            f"{known:,} answers in the vocabulary, each the majority {self.minimum} times at least"
        ]
        if known != PUBLISHED:
            lines.append(
                f"published ones have {PUBLISHED:,}: with configs/climb.yaml, add --set tasks.vqa.answers={known}"
            )
        return lines

    def data_parts(self) -> list[DataPart]:
        parts = super().data_parts()
        if self.vocabulary is not None:
            parts = [*parts, DataPart("vocabulary", fingerprint([self.vocabulary], {}))]
        return parts

    def files(self, split: str) -> tuple[Path, ...]:
        folder = self.path("vqav2")
        return (
            folder / f"v2_OpenEnded_mscoco_{split}_questions.json",
            folder / f"v2_mscoco_{split}_annotations.json",
        )

    def image_place(self, split: str) -> tuple[str, ...]:
        return "ms-coco", "images"

    def options(self) -> Mapping[str, Any]:
        return {"compat": self.compat}

    def records(self, split: str, bad: BadRecords) -> Iterator[Record]:
        return read_records(self.files(split)[1], key="annotations", on_bad=bad.add)

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row]:
        questions: dict[int, tuple[str, int]] = {}
        for record in read_records(self.files(split)[0], key="questions", on_bad=bad.add):
            try:
                text = record.get("question", kind=str), record.get("image_id", kind=int)
                number = record.get("question_id", kind=int)
                if questions.setdefault(number, text) != text:
                    raise record.error(
                        f"question_id {number} has another question before",
                        "two questions of one id",
                    )
            except BadRecord as error:
                bad.add(error)
        bad.raise_if_any()
        return lambda record: self._read(record, questions)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        answers = dict(zip(row["answers"], row["scores"], strict=True))
        return {"image": shown[0], "text": row["question"], "answers": answers}

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        ids = torch.full((len(examples), vqa_answers.ANNOTATORS), -1)  # [batch, annotators]
        scores = torch.zeros(len(examples), vqa_answers.ANNOTATORS)  # [batch, annotators]
        labels = torch.zeros(len(examples), len(self.answer_ids))  # [batch, answers]
        for row, example in enumerate(examples):
            known = [
                (self.answer_ids[a], score)
                for a, score in example["answers"].items()
                if a in self.answer_ids
            ]
            for place, (answer, score) in enumerate(known):
                ids[row, place], scores[row, place], labels[row, answer] = answer, score, score
        return {
            **processor.read_texts([example["text"] for example in examples]),
            **processor.read_images([example["image"] for example in examples]),
            "labels": labels,
            "answer_ids": ids,
            "answer_scores": scores,
        }

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        # summed over the answers: a mean would shrink the gradient by the size of the vocabulary
        return functional.binary_cross_entropy_with_logits(
            logits, batch["labels"], reduction="sum"
        ) / len(logits)

    def columns(self, logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        predictions = logits.argmax(dim=-1)  # [batch]
        # scores are tenths; single precision would leave its noise in the result
        scores = batch["answer_scores"].cpu().double().mul(10).round().div(10)
        return {"predictions": predictions, "references": batch["answer_ids"], "scores": scores}

    def metric(self) -> SoftAccuracy:
        return SoftAccuracy()

    def _read(self, record: Record, questions: Mapping[int, tuple[str, int]]) -> Row:
        number, image = record.get("question_id", kind=int), record.get("image_id", kind=int)
        if number not in questions:
            text = f"question_id {number} has no question; the two files of a split belong together"
            raise record.error(text, "no question of that id")
        question, asked_of = questions[number]
        if asked_of != image:
            text = (
                f"question {number} is about image {asked_of}, its annotation about image {image}"
            )
            raise record.error(text, "question and annotation about different images")
        given = record.items("answers")
        if len(given) != vqa_answers.ANNOTATORS:
            text = f"has {len(given)} answers where {vqa_answers.ANNOTATORS} annotators are needed"
            raise record.error(text, "not ten answers")
        score = vqa_answers.raw_scores if self.compat == "climb" else vqa_answers.soft_scores
        scores = score([answer.get("answer", kind=str) for answer in given])
        return {
            "id": number,
            "image": image,
            "question": question,
            "majority": vqa_answers.normalise(record.get("multiple_choice_answer", kind=str)),
            "answers": list(scores),
            "scores": list(scores.values()),
        }

    def _explain_answers(self, known: int, origin: str) -> str:
        """Why the vocabulary has another size than was asked for; where it was made, because of the data."""
        asked = f"tasks.vqa.answers asks for {self.answers}"
        accept = f"--set tasks.vqa.answers={known}"
        file = "--set tasks.vqa.vocabulary=FILE"
        if self.vocabulary is None and self.path("embedded.json").is_file():
            return (
                f"the vocabulary has {known} answers where {asked}, because {self.path()} is the embedded benchmark; "
                f"set --data-root to the folder of the official data, or stay with the embedded ones: {accept}"
            )
        records = [] if self.vocabulary else self._count_official()
        if records:
            return (
                f"the vocabulary has {known} answers where {asked}, because {self.path()} holds "
                f"{' and '.join(records)}; set --data-root to the folder of all of them, or accept the smaller "
                f"vocabulary: {accept}, or name a list of answers: {file}"
            )
        return f"{origin} has {known} answers where {asked}; {accept}, or name another file: {file}"

    def _count_official(self) -> list[str]:
        """How much of the official data there is, where that is not all."""
        counts = {official: self.count_records(split) for split, official in self.splits.items()}
        if counts == dict(self.sizes):
            return []
        return [
            f"{count:,} of {self.sizes[name]:,} records of {name}" for name, count in counts.items()
        ]

    def _read_vocabulary(self) -> tuple[list[str], str]:
        return vqa_answers.read_vocabulary(self.vocabulary), str(self.vocabulary)

    def _build_vocabulary(self) -> tuple[list[str], str]:
        """Answers of both splits; the list is left as JSON in the cache, for other models and other programs."""
        tables = [self.table(split).data for split in self.splits]
        majorities = (answer for table in tables for answer in table.column("majority").to_pylist())
        known = vqa_answers.build_vocabulary(majorities, self.minimum)
        if not known:
            raise DataError(
                f"no answer under {self.path('vqav2')} is the majority {self.minimum} times; lower tasks.vqa.minimum: "
                "--set tasks.vqa.minimum=1"
            )
        files = [path for split in self.splits.values() for path in self.files(split)]
        path = (
            cache_folder()
            / "vocabularies"
            / f"vqa-{fingerprint(files, {'minimum': self.minimum})}.json"
        )
        keep_text(
            path,
            json.dumps({"minimum": self.minimum, "answers": known}, indent=0, ensure_ascii=False),
        )
        return known, str(path)
