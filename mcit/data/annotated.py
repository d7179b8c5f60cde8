"""What the tasks that are read from annotation files and image folders have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pyarrow.compute as arrow_compute
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from mcit.data.arrow import fingerprint, load_table, read_about
from mcit.data.images import ImageFolder
from mcit.data.records import DataProblems, Record, problems_of, read_records
from mcit.data.scores import Accuracy
from mcit.task import Batch, DataError, Split, Task

Row = dict[str, Any]
_DECODED = 5  # images that `check` opens per split: the first, the last, some in between


class AnnotatedTask(Task):
    """A task whose records are parsed once into an Arrow table and whose images are opened as they are needed.

    Unless it says otherwise it is a choice among classes: cross-entropy, scored by accuracy.
    """

    parser: ClassVar[int] = 1  # counts the changes of what `read` makes of a record
    splits: ClassVar[Mapping[str, str]]  # the split's name in the official files
    features: ClassVar[Mapping[str, Any]]  # of a row; `id` names an example, `record` is added
    source: ClassVar[str]  # where the official files come from
    image_columns: tuple[str, ...] = ("image",)  # those that hold keys of the image folder

    @abstractmethod
    def files(self, split: str) -> tuple[Path, ...]:
        """The annotation files of an official split; the last one holds the records."""

    @abstractmethod
    def reader(self, split: str) -> Callable[[Record], Row | None]:
        """What makes a row of a record, None of one that does not count, a DataError of one that is wrong."""

    @abstractmethod
    def folder(self, split: str) -> ImageFolder:
        """The images of an official split, listed."""

    @abstractmethod
    def open(self, row: Row, images: ImageFolder) -> Row:
        """The example of a row, its images decoded."""

    def records(self, split: str) -> Iterator[Record]:
        return read_records(self.files(split)[-1])

    def options(self) -> Mapping[str, Any]:
        """Options that change the table."""
        return {}

    def path(self, *names: str) -> Path:
        if self.root is None:
            raise DataError(f"task {self.name!r} needs the folder of its data, and none is given: set --data-root")
        return Path(self.root).joinpath(*names)

    def table(self, split: Split) -> datasets.Dataset:
        """The rows of a split, memory mapped; parsed first if these files have not been parsed before."""
        official = self._official(split)
        files = self.files(official)
        absent = [f"{path} is missing; {self.source}" for path in files if not path.is_file()]
        if absent:
            raise DataProblems(absent)
        features = datasets.Features({"record": datasets.Value("int64"), **self.features})
        options = {"task": self.name, "split": official, "parser": self.parser, **self.options()}
        about = {"dropped": 0}
        rows = partial(self._rows, official, about)
        return load_table(f"{self.name}-{official}", files, options, features, rows, about)

    def fingerprint(self) -> str:
        return fingerprint([path for split in ("train", "eval") for path in self.files(self._official(split))], {})

    def dropped(self, split: Split) -> int:
        """How many records of a split do not count, such as those whose annotators did not agree."""
        return read_about(self.table(split))["dropped"]

    def examples(self, split: Split) -> Dataset:
        return LazyExamples(self, self.table(split), self.folder(self._official(split)))

    def check(self) -> None:
        problems: list[str] = []
        for split in ("train", "eval"):
            try:
                table = self.table(split)
                images = self.folder(self._official(split))
            except DataError as error:
                problems += problems_of(error)
            else:
                problems += self._check_images(table, images, self.files(self._official(split))[-1])
        if problems:
            raise DataProblems(dict.fromkeys(problems))  # two splits may lack the same folder

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(logits, batch["labels"])

    def target(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def columns(self, logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return {"predictions": logits.argmax(dim=-1), "references": batch["labels"]}

    def metric(self) -> Any:
        return Accuracy()

    def _official(self, split: Split) -> str:
        if split not in self.splits:
            raise DataError(f"task {self.name!r} has no labelled {split!r} split (splits: {', '.join(self.splits)})")
        return self.splits[split]

    def _rows(self, split: str, about: dict[str, int]) -> Iterator[Row]:
        """Rows of the records that are right; if any is wrong, one error at the end that lists them."""
        problems, first_record = [], {}
        read = self.reader(split)
        for record in self.records(split):
            try:
                row = read(record)
                if row is None:
                    about["dropped"] += 1
                    continue
                number = first_record.setdefault(row["id"], record.number)
                if number != record.number:
                    raise record.error(f"the id {row['id']!r} is already that of record {number}")
            except DataError as error:
                problems.append(str(error))
            else:
                yield {"record": record.number, **row}
        if problems:
            raise DataProblems(problems)
        if not first_record:
            raise DataError(f"{self.files(split)[-1]} holds no examples; {self.source}")

    def _check_images(self, table: datasets.Dataset, images: ImageFolder, file: Path) -> list[str]:
        problems = []
        for column in self.image_columns:
            names = table.data.column(column)
            absent = [name for name in arrow_compute.unique(names).to_pylist() if name not in images.index]
            if absent:
                record = table[arrow_compute.index(names, absent[0]).as_py()]["record"]
                more = f", and {len(absent) - 1} more that records name" if len(absent) > 1 else ""
                lacks = f"{images.path} lacks {column} {absent[0]!r}{more}; {self.source}"
                problems.append(f"{file}, record {record}: {lacks}")
        for place in np.unique(np.linspace(0, len(table) - 1, _DECODED).astype(int)).tolist():
            row = table[place]
            if all(row[column] in images.index for column in self.image_columns):
                try:
                    self.open(row, images)
                except DataError as error:
                    problems.append(f"{file}, record {row['record']}: {error}")
        return problems


class LazyExamples(Dataset):
    """Rows of a table whose images are opened when an example is asked for, in whichever worker asks."""

    def __init__(self, task: AnnotatedTask, table: datasets.Dataset, images: ImageFolder):
        self.task, self.table, self.images = task, table, images

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return self.task.open(self.table[index], self.images)

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """A batch in one read of the table, ten times faster than row by row."""
        columns = self.table[list(indices)]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [self.task.open(row, self.images) for row in rows]


def stack_labels(examples: Any, name: str = "label") -> Tensor:
    """Class ids of a batch of examples."""
    return torch.tensor([example[name] for example in examples], dtype=torch.long)  # [batch]
