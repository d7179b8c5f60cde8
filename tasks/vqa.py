"""VQAv2: an open question about an image, answered from a vocabulary and scored by ten annotators.

Goyal, Khot, Summers-Stay, Batra and Parikh, Making the V in VQA Matter, CVPR 2017,
https://arxiv.org/abs/1612.00837, on COCO's images. Protocol of CLiMB (Srinivasan et al., NeurIPS
2022, https://arxiv.org/abs/2206.09059).

Splits   train is train2014, 443,757 questions; eval is val2014, 214,354
Targets  soft scores over the vocabulary: 0.3, 0.6, 0.9 and 1 for one to four of ten votes
Loss     binary cross-entropy, summed over the answers and averaged over the questions
Score    mean soft score of the likeliest answer; a question without a known answer counts 0
Chance   0

The vocabulary is made of the majority answers of both splits that occur at least 9 times: 3,129 of
the official files. Differs from CLiMB: the annotators' answers are normalized as the official
evaluation does, where CLiMB looks raw strings up (`compat: climb` does so too); images of 2014 and
2017 are found under either name; the vocabulary is ordered by frequency, and its size is compared
with `answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.config.options import Kind, option
from mcit.data import answers as vqa_answers
from mcit.data.annotated import AnnotatedTask, Row, Shown
from mcit.data.images import coco_id
from mcit.data.problems import BadRecord, BadRecords, UnfitSetting
from mcit.data.records import Record, read_records
from mcit.data.scores import SoftAccuracy
from mcit.data.tables import fingerprint, keep_text, open_cache
from mcit.task import Batch, DataPart, Head, Recipe

# answers in the vocabularies of the literature
PUBLISHED = 3129


@dataclass(frozen=True)
class Vqa(AnnotatedTask):
    """Files: questions and annotations in vqav2/, images in ms-coco/images/."""

    recipe: Recipe = Recipe(epochs=10, batch_size=64, learning_rate=1e-4, weight_decay=1e-2)
    minimum: int = option(
        9,
        help="questions whose majority answer an answer must be to enter the vocabulary",
    )
    vocabulary: Path | None = option(
        None, help="JSON file of answers to use instead", kind=Kind.PLACE
    )
    answers: int | None = option(None, help="how many answers the vocabulary must hold")
    compat: Literal["climb"] | None = option(
        None, help="match answers without normalizing them, as CLiMB does"
    )

    name = "vqa"
    embedded = True
    chance = 0.0
    source = (
        "unpack the v2 questions and annotations of visualqa.org in vqav2/ and COCO's images in "
        "ms-coco/images/"
    )
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
    columns: ClassVar = {
        "id": "int64",
        "image": "int64",
        "question": "string",
        "majority": "string",
        "answers": ["string"],
        "scores": ["float64"],
    }

    @cached_property
    def answer_ids(self) -> dict[str, int]:
        """Return each answer of the vocabulary and its place among the outputs."""
        if self.vocabulary is None:
            known = self._build_vocabulary()
        else:
            known = vqa_answers.read_vocabulary(self.vocabulary)
        if self.answers is not None and len(known) != self.answers:
            raise self._explain_size(len(known))
        return {answer: place for place, answer in enumerate(known)}

    @property
    def head(self) -> Head:
        return Head(self.name, outputs=len(self.answer_ids), kind="multi_label", layout="mlp")

    def check(self) -> None:
        super().check()
        _ = self.answer_ids

    def doctor_notes(self) -> list[str]:
        known = len(self.answer_ids)
        if self.vocabulary is not None:
            return [f"{known:,} answers in the vocabulary {self.vocabulary}"]
        notes = [
            f"{known:,} answers in the vocabulary, each the majority {self.minimum} times at least"
        ]
        if known != PUBLISHED:
            notes.append(
                f"published ones have {PUBLISHED:,}: with configs/climb.yaml, add "
                f"--set tasks.vqa.answers={known}"
            )
        return notes

    def data_parts(self) -> list[DataPart]:
        parts = super().data_parts()
        if self.vocabulary is None:
            return parts
        return [*parts, DataPart("vocabulary", fingerprint([self.vocabulary], {}))]

    def files(self, split: str) -> tuple[Path, ...]:
        folder = self.path("vqav2")
        return (
            folder / f"v2_OpenEnded_mscoco_{split}_questions.json",
            folder / f"v2_mscoco_{split}_annotations.json",
        )

    def image_place(self, split: str) -> tuple[str, ...]:
        return "ms-coco", "images"

    def table_options(self) -> Mapping[str, Any]:
        return {"compat": self.compat}

    def records(self, split: str, bad: BadRecords) -> Iterator[Record]:
        return read_records(self.files(split)[1], key="annotations", on_bad=bad.add)

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row]:
        questions: dict[int, tuple[str, int]] = {}
        for record in read_records(self.files(split)[0], key="questions", on_bad=bad.add):
            try:
                number = record.get("question_id", kind=int)
                asked = (record.get("question", kind=str), record.get("image_id", kind=int))
                if questions.setdefault(number, asked) != asked:
                    text = f"question_id {number} has another question before"
                    raise record.error(text, "two questions of one id")
            except BadRecord as error:
                bad.add(error)
        bad.raise_if_any()
        return lambda record: self._read(record, questions)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        answers = dict(zip(row["answers"], row["scores"], strict=True))
        return {"image": shown[0], "text": row["question"], "answers": answers}

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        # [batch, annotators], filled up with -1 and 0
        ids = torch.full((len(examples), vqa_answers.ANNOTATORS), -1)
        scores = torch.zeros(len(examples), vqa_answers.ANNOTATORS)
        # [batch, answers]
        labels = torch.zeros(len(examples), len(self.answer_ids))
        for row, example in enumerate(examples):
            known = [answer for answer in example["answers"] if answer in self.answer_ids]
            for place, answer in enumerate(known):
                number = self.answer_ids[answer]
                score = example["answers"][answer]
                ids[row, place] = number
                scores[row, place] = score
                labels[row, number] = score
        return {
            **processor.read_texts([example["text"] for example in examples]),
            **processor.read_images([example["image"] for example in examples]),
            "labels": labels,
            "answer_ids": ids,
            "answer_scores": scores,
        }

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        # summed over the answers: a mean would shrink the gradient by the size of the vocabulary
        total = F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="sum")
        return total / len(logits)

    def metric_inputs(self, predicted: Tensor, batch: Batch) -> Mapping[str, Any]:
        # scores are tenths; single precision would leave its noise in the result
        scores = batch["answer_scores"].cpu().double().mul(10).round().div(10)
        return {
            "predictions": predicted.argmax(dim=-1),
            "references": batch["answer_ids"],
            "scores": scores,
        }

    def metric(self) -> SoftAccuracy:
        return SoftAccuracy()

    def output_names(self) -> list[str]:
        return list(self.answer_ids)

    def _read(self, record: Record, questions: Mapping[int, tuple[str, int]]) -> Row:
        number = record.get("question_id", kind=int)
        image = record.get("image_id", kind=int)
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
            "majority": vqa_answers.normalize(record.get("multiple_choice_answer", kind=str)),
            "answers": list(scores),
            "scores": list(scores.values()),
        }

    def _build_vocabulary(self) -> list[str]:
        """Return the answers of both splits; they are left in the cache for other programs."""
        splits = [self.split(name) for name in ("train", "eval")]
        majorities: list[str] = []
        for split in splits:
            majorities += split.table.data.column("majority").to_pylist()
        known = vqa_answers.build_vocabulary(majorities, self.minimum)
        if not known:
            raise UnfitSetting(
                f"no answer under {self.path('vqav2')} is the majority {self.minimum} times",
                remedy="lower tasks.vqa.minimum: --set tasks.vqa.minimum=1",
            )
        files = [path for split in splits for path in split.files]
        key = fingerprint(files, {"minimum": self.minimum})
        content = {"minimum": self.minimum, "answers": known}
        text = json.dumps(content, indent=0, ensure_ascii=False)
        keep_text(open_cache("vocabularies") / f"vqa-{key}.json", text)
        return known

    def _explain_size(self, known: int) -> UnfitSetting:
        """Return the error of a vocabulary that has another size than was asked for."""
        asked = f"answers where tasks.vqa.answers asks for {self.answers}"
        accept = f"--set tasks.vqa.answers={known}"
        file = "--set tasks.vqa.vocabulary=FILE"
        if self.vocabulary is not None:
            return UnfitSetting(
                f"{self.vocabulary} has {known} {asked}", f"{accept}, or name another file: {file}"
            )
        if self.path("embedded.json").is_file():
            return UnfitSetting(
                f"the vocabulary has {known} {asked}, because {self.path()} is the embedded "
                "benchmark",
                "set --data-root to the folder of the official data, or stay with the embedded "
                f"ones: {accept}",
            )
        reason = self._describe_part()
        return UnfitSetting(
            f"the vocabulary has {known} {asked}{reason}",
            "set --data-root to the folder of all records, or accept this vocabulary: "
            f"{accept}, or name a list of answers: {file}",
        )

    def _describe_part(self) -> str:
        """Return how much of the official data there is, if that is not all."""
        counts = []
        for name in ("train", "eval"):
            split = self.split(name)
            found = split.count_records()
            if found != self.sizes[split.name]:
                official = self.sizes[split.name]
                counts.append(f"{found:,} of {official:,} records of {split.name}")
        if not counts:
            return ""
        return f", because {self.path()} holds {' and '.join(counts)}"
