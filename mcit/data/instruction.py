"""Tasks that are answered in words, and files of instructions in LLaVA's format.

    train   {"id", "image", "conversations": [{"from": "human", "value": "<image>\\nWhat is it?"},
                                              {"from": "gpt", "value": "A dog"}]}
    test    {"question_id", "image", "text": "What is it?", "answer": "A dog"}

`image` is a path below the image folder, a list of them, or absent. Of a conversation the first
question and its answer are taken. A file is one JSON array or has one record per line, and either
form may be learned from or scored: what the benchmarks CoIN, UCIT and MLLM-CL distribute.

LLaVA: Liu, Li, Wu and Lee, Visual instruction tuning, NeurIPS 2023,
https://arxiv.org/abs/2304.08485

Loss     cross-entropy, the mean over all tokens of the batch's answers, end marks included; of a
         batch that is learned in parts, the mean over each part, weighed by its examples
Score    a text metric (mcit/data/text_scores.py), raw; `normalized` and `obedience` beside it
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mcit.config.options import Kind, option
from mcit.config.parse import parse
from mcit.data.annotated import AnnotatedTask, Row, Shown
from mcit.data.images import ImageFolder, Picture, stays_inside
from mcit.data.problems import BadRecord, BadRecords, DataProblems, Policy
from mcit.data.records import Record, shorten
from mcit.data.text_scores import text_metric
from mcit.errors import ConfigError, DataError
from mcit.parallel.global_batch import mean_over_rows
from mcit.registry import find_task
from mcit.task import Batch, DataPart, Head, Recipe, Split, Task, Track, combine_parts

# stands for an image in a question
MARK = "<image>"
ASKING = ("human", "user")
ANSWERING = ("gpt", "assistant")
NO_ANSWER = "no answer"
# of the shared head
HEAD = "text"
# what the public code of CoIN and UCIT has in common, for LoRA
RECIPE = Recipe(
    epochs=1, batch_size=16, learning_rate=2e-4, betas=(0.9, 0.999), schedule="linear", warmup=0.03
)
# labels that do not count, as in transformers
IGNORED = -100


@dataclass(frozen=True)
class TextTask(Task):
    """A task whose examples are {"images", "prompt", "answers"}; the first answer is learned.

    `place`, if an example has it, says where it comes from.
    """

    root: Path | None = option(None, help="folder of the official data", kind=Kind.PLACE)
    on_bad_record: Policy = option(
        "fail", help="stop at a bad record, or leave bad records out and count them"
    )
    recipe: Recipe = RECIPE
    new_tokens: int = option(16, help="the largest number of tokens that an answer may have")
    scored_by: str = option(
        "exact", help="the text metric: exact, vqa, letter, box, caption or contained"
    )

    track = Track.TEXT
    draws = False
    eval_batch_size = 32

    @property
    def head(self) -> Head:
        return Head(HEAD, outputs=0, kind="text", new_tokens=self.new_tokens)

    @property
    def further_scores(self) -> Sequence[str]:
        return ("normalized", "obedience")

    def collate(self, examples: Sequence[Row], processor: Any) -> Batch:
        rows = processor.read(
            [example["prompt"] for example in examples],
            [example["answers"][0] for example in examples],
            [example["images"] for example in examples],
            [example.get("place", self.name) for example in examples],
        )
        return {**rows, "references": [example["answers"] for example in examples]}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        labels = batch["labels"]
        total = F.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return mean_over_rows(total, (labels != IGNORED).sum())

    def target(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def metric_inputs(self, predicted: Any, batch: Batch) -> Mapping[str, Any]:
        return {"predictions": list(predicted), "references": batch["references"]}

    def metric(self) -> Any:
        return text_metric(self.scored_by, **self.metric_options())

    def metric_options(self) -> Mapping[str, Any]:
        """Return options of the text metric, such as the answers to choose from."""
        return {}

    def name_answers(self, predicted: Any) -> list[Any]:
        return list(predicted)

    def read_inputs(self, images: Sequence[Any], texts: Sequence[Any], processor: Any) -> Batch:
        if len(images) != len(texts):
            needed = f"{len(images)} images of {self.name!r} need {len(images)} texts"
            raise ConfigError([f"{needed}, found {len(texts)}"])
        shown: list[list[Any]] = []
        for given in images:
            if given is None:
                shown.append([])
            else:
                shown.append([given] if isinstance(given, Image.Image) else list(given))
        # an answer that nobody looks at
        return processor.read([str(text) for text in texts], [""] * len(texts), shown)


class FilesBelow(Mapping[str, str]):
    """The files below a folder by their paths, looked up one by one and never listed."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __getitem__(self, name: str) -> str:
        if not stays_inside(name) or not os.path.isfile(f"{self.folder}/{name}"):
            raise KeyError(name)
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class InstructionTask(TextTask, AnnotatedTask):
    """Instructions in LLaVA's format; a subclass says which files, and where their images are."""

    columns: ClassVar = {
        "id": "string",
        # the record's own id, which need not be the only one of its kind
        "key": "string",
        "images": ["string"],
        "prompt": "string",
        "answers": ["string"],
    }
    splits: ClassVar = {"train": "train", "eval": "test"}
    sizes: ClassVar = {}
    image_columns = ("images",)

    @staticmethod
    def image_key(name: str) -> Any:
        return name

    def image_folder(self, split: str) -> ImageFolder:
        place = self.image_place(split)
        folder = self.path(*place)
        if not folder.is_dir():
            raise DataError(f"no image folder {folder}; {self.source}")
        return ImageFolder(folder, FilesBelow(folder), "/".join(place))

    def pictures(self, row: Row, images: ImageFolder) -> tuple[Picture, ...]:
        return tuple(images.picture(name) for name in row["images"])

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        return self.read_record

    def read_record(self, record: Record) -> Row | None:
        """Return the row of a record, in either form."""
        images = _read_images(record)
        if "conversations" in record.fields:
            prompt, answers = _read_conversation(record)
        else:
            prompt = record.get("text", "question", "prompt", kind=str)
            answers = self.read_answers(record)
        marks = prompt.count(MARK)
        if marks not in (0, len(images)):
            found = f"{marks} {MARK} marks and {len(images)} images"
            raise record.error(f"a question needs one mark for each image, found {found}")
        prompt = prompt.replace(MARK, "").strip()
        if not prompt:
            raise record.error("has an empty question")
        answers = [answer.strip() for answer in answers]
        if not answers or not all(answers):
            raise record.error("has an empty answer", NO_ANSWER)
        return {
            "id": str(record.number),
            "key": _read_key(record),
            "images": images,
            "prompt": prompt,
            "answers": answers,
        }

    def read_answers(self, record: Record) -> list[str]:
        """Return the accepted answers of a record of the test form; the first is learned from."""
        for name in ("answer", "answers", "answer_bbox"):
            if name not in record.fields:
                continue
            value = record.fields[name]
            given = value if isinstance(value, list) and name == "answers" else [value]
            if not given:
                break
            return [_to_text(record, name, each) for each in given]
        wanted = "conversations, answer, answers, answer_bbox"
        fields = ", ".join(list(record.fields)[:8])
        raise record.error(f"has no answer (none of {wanted}; fields: {fields})", NO_ANSWER)

    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        return {
            "images": list(shown),
            "prompt": row["prompt"],
            "answers": list(row["answers"]),
            "place": f"{self.name}, record {row['record']}",
        }

    def data_notes(self, processor: Any) -> list[str]:
        notes = super().data_notes(processor)
        table = self.split("eval").table
        long = 0
        for answers in table["answers"]:
            # a token has a byte at least
            if len(answers[0].encode()) >= self.new_tokens:
                long += processor.count_answer(answers[0]) > self.new_tokens
        if long:
            notes.append(
                f"{self.name}: {long:,} of {len(table):,} scored answers have more tokens than "
                f"the {self.new_tokens} that are generated: raise new_tokens"
            )
        return notes

    def fit_to(self, processor: Any) -> None:
        problems: list[str] = []
        for name in ("train", "eval"):
            split = self.split(name)
            unfit = {}
            for number, row in enumerate(split.table):
                error = _find_excess(row, processor)
                if error is not None:
                    unfit[number] = error
            if not unfit:
                continue
            if self.on_bad_record == "skip":
                split.leave_out(unfit)
                # the examples are others now
                vars(self).pop("_parts", None)
            for number, error in unfit.items():
                where = f"{split.annotations}, record {split.table[number]['record']}"
                problems.append(f"{where}: {error}")
        if problems and self.on_bad_record == "fail":
            raise DataProblems(problems)


def _find_excess(row: Row, processor: Any) -> BadRecord | None:
    """Return what is wrong with a row that has more tokens than the model has places for."""
    if processor.limit is None:
        return None
    answer = row["answers"][0]
    images = len(row["images"])
    characters = len(row["prompt"].encode()) + len(answer.encode())
    # a token has a byte at least: most rows are known to fit without being tokenized
    shown = images * processor.image_tokens if images else 0
    if characters + shown + processor.frame_tokens < processor.limit:
        return None
    length = processor.count(row["prompt"], answer, images)
    if length <= processor.limit:
        return None
    return BadRecord(processor.describe_excess(length), "answer longer than the context")


def _read_images(record: Record) -> list[str]:
    given = record.fields.get("image")
    if given is None or given == "":
        return []
    names = record.get("image", kind=(str, list))
    names = [names] if isinstance(names, str) else names
    for name in names:
        if not isinstance(name, str) or not stays_inside(name):
            raise record.error(
                f"'image' must be a path inside the image folder, found {shorten(name)}"
            )
    return [str(PurePosixPath(name)) for name in names]


def _read_conversation(record: Record) -> tuple[str, list[str]]:
    """Return the first question of a conversation and its answer."""
    turns = record.items("conversations")
    if not turns:
        raise record.error("has an empty conversation")
    roles = [turn.get("from", "role", kind=str) for turn in turns]
    for role in roles:
        if role not in (*ASKING, *ANSWERING):
            known = ", ".join((*ASKING, *ANSWERING))
            raise record.error(f"a turn must be from one of {known}, found {shorten(role)}")
    if roles[0] not in ASKING:
        raise record.error(f"the first turn must be a question, found one from {roles[0]!r}")
    if len(turns) < 2 or roles[1] not in ANSWERING:
        raise record.error("the first question has no answer", NO_ANSWER)
    texts = [turn.get("value", "content", kind=str) for turn in turns[:2]]
    return texts[0], texts[1:]


def _read_key(record: Record) -> str:
    for name in ("question_id", "id"):
        if name in record.fields:
            return str(record.get(name, kind=(str, int)))
    return str(record.number)


def _to_text(record: Record, name: str, value: Any) -> str:
    if isinstance(value, str):
        return Record(record.path, record.number, {name: value}).get(name, kind=str)
    if isinstance(value, bool) or not isinstance(value, (int, float, list)):
        raise record.error(f"{name!r} must be a text, found {shorten(value)}")
    return str(value)


@dataclass(frozen=True)
class RewordedTask(TextTask):
    """A task of another track, asked and answered in words.

    Data, splits and records are those of the task called `rewords`; a subclass words them.
    """

    train_limit: int | None = option(
        None, help="learn from this many examples, the first ones; none: from all"
    )
    eval_limit: int | None = option(
        None, help="score this many examples, the first ones; none: all"
    )

    on_its_own = False
    rewords: ClassVar[str]

    @cached_property
    def original(self) -> AnnotatedTask:
        """Return the task whose data are used."""
        options = {"root": self.root, "on_bad_record": self.on_bad_record}
        task = parse(find_task(self.rewords), {**options, **self.original_options()})
        if not isinstance(task, AnnotatedTask):
            raise TypeError(f"task {self.rewords!r} is not read from annotation files")
        return task

    def original_options(self) -> Mapping[str, Any]:
        """Return options of the original task."""
        return {}

    @abstractmethod
    def word(self, example: Mapping[str, Any]) -> Row:
        """Return {"images", "prompt", "answers"} of an example of the original task."""

    def check(self) -> None:
        self.original.check()

    def fingerprint(self) -> str | None:
        return combine_parts(self.data_parts())

    def data_parts(self) -> list[DataPart]:
        return self.original.data_parts()

    def data_notes(self, processor: Any) -> list[str]:
        return self.original.data_notes(processor)

    def describe_data(self) -> dict[str, Any]:
        return self.original.describe_data()

    def examples(self, split: Split) -> WordedExamples:
        limit = self.train_limit if split == "train" else self.eval_limit
        return WordedExamples(self, self.original.examples(split), limit)


class WordedExamples(Dataset):
    """The examples of a task, worded when they are read."""

    def __init__(self, task: RewordedTask, examples: Any, limit: int | None = None):
        self.task = task
        self.inner = examples
        self.limit = limit

    def __len__(self) -> int:
        if self.limit is None:
            return len(self.inner)
        return min(self.limit, len(self.inner))

    def __getitem__(self, index: int) -> Row:
        return self.task.word(self.inner[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        return [self.task.word(example) for example in self.inner.__getitems__(indices)]
