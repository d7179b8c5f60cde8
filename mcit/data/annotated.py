"""The base of tasks that are read from annotation files and image folders.

A task declares its files, how a record becomes a row and how a row becomes an example.
`AnnotatedSplit` does the rest for one split: the table of rows, the listed images, and which rows
can be used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pyarrow.compute as arrow_compute
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from mcit.config.options import Kind, option
from mcit.data.files import describe_absence
from mcit.data.image_cache import ImageCache, PreparedPicture
from mcit.data.images import ImageFolder, KeptImages, Picture
from mcit.data.problems import BadRecord, BadRecords, DataProblems, Policy, list_problems
from mcit.data.records import Record, read_records
from mcit.data.scores import Accuracy
from mcit.data.tables import fingerprint, load_table, read_about
from mcit.data.verification import remember_bad_pictures
from mcit.errors import ConfigError, DataError
from mcit.task import Batch, DataPart, Split, Task, combine_parts

Row = dict[str, Any]
# an image as a processor's `read_images` takes it
Shown = Image.Image | PreparedPicture
# images that `check` opens per split: the first, the last, some in between
_DECODED = 5
_CHECKED: tuple[Split, ...] = ("train", "eval")


@dataclass(frozen=True)
class AnnotatedTask(Task):
    """A task whose records are parsed once into a table and whose images are opened when needed.

    Unless it says otherwise it is a choice among classes: cross-entropy, scored by accuracy.
    """

    root: Path | None = option(None, help="folder of the official data", kind=Kind.PLACE)
    on_bad_record: Policy = option(
        "fail", help="stop at a bad record, or leave bad records out and count them"
    )

    draws: ClassVar[bool] = False
    # counts the changes of what `reader` makes of a record
    parser: ClassVar[int] = 1
    # the split's name in the official files
    splits: ClassVar[Mapping[str, str]]
    # how many records the official files of a split have
    sizes: ClassVar[Mapping[str, int]]
    # columns of a row: the type, or the type of a list's items; `id` names an example, `record` is
    # added
    columns: ClassVar[Mapping[str, str | list[str]]]
    # where they are downloaded
    page: ClassVar[str]
    # the archives they come in, and the folder that each fills
    archives: ClassVar[Mapping[str, str]] = {}
    # images of an example
    shown_images: ClassVar[int] = 1

    @property
    @abstractmethod
    def source(self) -> str:
        """Return where the official files come from."""

    @property
    def image_columns(self) -> tuple[str, ...]:
        """Return the columns that hold keys of the image folder."""
        return ("image",)

    @staticmethod
    @abstractmethod
    def image_key(name: str) -> Any:
        """Return the key of a file in the image folder."""

    @abstractmethod
    def files(self, split: str) -> tuple[Path, ...]:
        """Return the annotation files of an official split; the last one holds the records."""

    @abstractmethod
    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        """Return a function that makes a row of a record.

        It returns None for a record that does not count, and raises a BadRecord for a wrong one.
        """

    @abstractmethod
    def image_place(self, split: str) -> tuple[str, ...]:
        """Return the image folder of an official split, by its parts below the root."""

    @abstractmethod
    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        """Return the example of a row and of its pictures."""

    def image_folder(self, split: str) -> ImageFolder:
        """Return the image folder of an official split, listed."""
        place = self.image_place(split)
        return ImageFolder.listed(
            self.path(*place), self.image_key, self.source, prefix="/".join(place)
        )

    def records(self, split: str, bad: BadRecords) -> Iterator[Record]:
        """Yield the records of an official split; wrong ones are added to `bad`."""
        return read_records(self.files(split)[-1], on_bad=bad.add)

    def pictures(self, row: Row, images: ImageFolder) -> tuple[Picture, ...]:
        """Return the pictures of a row, not decoded; it needs the row's `picture_columns` only."""
        return tuple(images.picture(row[column]) for column in self.image_columns)

    @property
    def picture_columns(self) -> tuple[str, ...]:
        """Return the columns of a row that decide its pictures."""
        return self.image_columns

    def table_options(self) -> Mapping[str, Any]:
        """Return the options that change the table."""
        return {}

    def doctor_notes(self) -> list[str]:
        """Return what else to say of data that are all there, or raise an UnfitSetting."""
        return []

    def split(self, name: Split) -> AnnotatedSplit:
        """Return a split; these tasks augment nothing, so that `plain` is `train`."""
        official = self.splits.get("train" if name == "plain" else name)
        if official is None:
            listed = ", ".join(self.splits)
            raise DataError(f"task {self.name!r} has no labeled {name!r} split (splits: {listed})")
        return self._splits[official]

    def examples(self, split: Split) -> AnnotatedExamples:
        return self.split(split).examples()

    def check(self) -> None:
        problems: list[str] = []
        for split in _CHECKED:
            try:
                problems += self.split(split).find_problems()
            except DataError as error:
                problems += list_problems(error)
        if problems:
            # two splits may lack the same folder
            raise DataProblems(dict.fromkeys(problems))

    def fingerprint(self) -> str | None:
        return combine_parts(self.data_parts())

    def data_parts(self) -> list[DataPart]:
        """Return the sources: every byte of annotations, and of images names, sizes and times."""
        return self._parts

    def data_notes(self, processor: Any) -> list[str]:
        notes = []
        for split in map(self.split, _CHECKED):
            if len(split.skipped):
                described = split.skipped.describe(split.count_records())
                notes.append(f"{self.name}, {split.name}: {described}")
        cache = ImageCache.find(self.path())
        if cache is not None:
            # a processor that takes images as they are need not say so
            resizing = getattr(processor, "resizing", None)
            notes.append(f"{self.name}: {cache.describe(resizing)}")
        return notes

    def describe_data(self) -> dict[str, Any]:
        described: dict[str, Any] = {}
        for name in _CHECKED:
            split = self.split(name)
            described[name] = {
                "records": split.count_records(),
                "dropped": split.about["dropped"],
                "skipped": split.skipped.to_dict(),
            }
        return described

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch["labels"])

    def target(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def metric_inputs(self, predicted: Tensor, batch: Batch) -> Mapping[str, Any]:
        return {"predictions": predicted.argmax(dim=-1), "references": batch["labels"]}

    def metric(self) -> Any:
        return Accuracy()

    def read_inputs(self, images: Sequence[Any], texts: Sequence[Any], processor: Any) -> Batch:
        if len(images) != len(texts):
            needed = f"{len(images)} images of {self.name!r} need {len(images)} texts"
            raise ConfigError([f"{needed}, found {len(texts)}"])
        shown = []
        for given in images:
            group = [given] if isinstance(given, Image.Image) else list(given)
            if len(group) != self.shown_images:
                found = len(group)
                raise ConfigError(
                    [f"an example of {self.name!r} has {self.shown_images} images, found {found}"]
                )
            shown += group
        return {**self.read_texts(texts, processor), **processor.read_images(shown)}

    def read_texts(self, texts: Sequence[Any], processor: Any) -> Batch:
        """Return texts that are not in the data as tensors."""
        return processor.read_texts(list(texts))

    @cached_property
    def _splits(self) -> Mapping[str, AnnotatedSplit]:
        return {official: AnnotatedSplit(self, official) for official in self.splits.values()}

    @cached_property
    def _parts(self) -> list[DataPart]:
        files: list[Path] = []
        chosen: dict[str, list[int]] = {}
        folders: dict[str, ImageFolder] = {}
        keys: dict[str, set[Any]] = {}
        for name in _CHECKED:
            split = self.split(name)
            files += split.files
            # with images left out there are other examples
            if split.usable_rows is not None:
                chosen[name] = split.usable_rows
            place = split.images.prefix
            folders[place] = split.images
            keys.setdefault(place, set()).update(*split.list_keys().values())
        parts = [DataPart("annotations", fingerprint(files, chosen))]
        for place, images in folders.items():
            stamp = images.stamp(keys[place])
            parts.append(DataPart(f"images under {place}", stamp.content, stamp.times))
        return parts


class AnnotatedSplit:
    """A split of a task; each part of it is read when it is first needed, and once."""

    def __init__(self, task: AnnotatedTask, name: str):
        self.task = task
        # as the official files have it
        self.name = name

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the annotation files."""
        return self.task.files(self.name)

    @property
    def annotations(self) -> Path:
        """Return the file of the records."""
        return self.files[-1]

    @cached_property
    def images(self) -> ImageFolder:
        """Return the image folder."""
        return self.task.image_folder(self.name)

    @cached_property
    def table(self) -> datasets.Dataset:
        """Return all rows, memory mapped; these files are parsed first if they never were."""
        task = self.task
        absent = [path for path in self.files if not path.is_file()]
        if absent:
            raise DataProblems(f"{path} {describe_absence(path)}; {task.source}" for path in absent)
        columns = {"record": "int64", **task.columns}
        options = {"task": task.name, "split": self.name, "parser": task.parser}
        options.update(task.table_options())
        if task.on_bad_record != "fail":
            options["on_bad_record"] = task.on_bad_record
        return load_table(f"{task.name}-{self.name}", self.files, options, columns, self._parse)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Return what was noted when the table was written."""
        return read_about(self.table)

    @property
    def skipped_records(self) -> BadRecords:
        """Return the wrong records that were left out of the table."""
        if "skipped" not in self.about:
            return BadRecords()
        return BadRecords.from_dict(self.about["skipped"])

    @cached_property
    def skipped(self) -> BadRecords:
        """Return the wrong records, and those that are left out because of their images."""
        bad = BadRecords()
        for row, error in self._bad_rows.items():
            record = self.table[row]["record"]
            bad.add(BadRecord(f"{self.annotations}, record {record}: {error}", error.reason))
        return self.skipped_records.merge(bad)

    def count_records(self) -> int:
        """Return how many records the file has, those that do not count and wrong ones included."""
        return self.about["rows"] + self.about["dropped"] + len(self.skipped_records)

    @cached_property
    def usable_rows(self) -> list[int] | None:
        """Return the rows whose pictures can be opened, None for all."""
        if not self._bad_rows:
            return None
        rows = [row for row in range(len(self.table)) if row not in self._bad_rows]
        if not rows:
            described = self.skipped.describe(self.count_records())
            raise DataError(
                f"no record of {self.annotations} has an image that can be opened: {described}"
            )
        return rows

    def usable_table(self) -> datasets.Dataset:
        """Return the rows whose pictures can be opened."""
        if self.usable_rows is None:
            return self.table
        return self.table.select(self.usable_rows)

    @cached_property
    def kept(self) -> KeptImages:
        """Return the small images that were decoded before."""
        return KeptImages()

    def examples(self) -> AnnotatedExamples:
        """Return the usable examples; with an image cache, images are left to the processor."""
        return AnnotatedExamples(self, self.usable_table(), ImageCache.find(self.task.path()))

    def iterate_pictures(self) -> Iterator[tuple[int, tuple[Picture, ...] | BadRecord]]:
        """Yield each row's number with its pictures, or with the reason why it has none."""
        columns = self.table.select_columns(list(self.task.picture_columns))
        for start in range(0, len(columns), 1000):
            rows = _split_columns(columns[start : start + 1000])
            for number, row in enumerate(rows, start):
                try:
                    yield number, self.task.pictures(row, self.images)
                except BadRecord as error:
                    yield number, error

    def list_keys(self) -> dict[str, list[Any]]:
        """Return the keys of images that rows name, each once, by column."""
        keys = {}
        for column in self.task.image_columns:
            values = self.table.data.column(column)
            if isinstance(self.task.columns[column], list):
                values = arrow_compute.list_flatten(values)
            keys[column] = arrow_compute.unique(values).to_pylist()
        return keys

    def find_absent(self) -> dict[str, list[Any]]:
        """Return the keys of images that rows name and that are not there, by column."""
        named = self.list_keys()
        index = self.images.index
        return {column: [key for key in keys if key not in index] for column, keys in named.items()}

    def sample_rows(self, table: datasets.Dataset, count: int) -> list[Row]:
        """Return up to `count` rows, from the first to the last, whose images are there."""
        places = np.unique(np.linspace(0, len(table) - 1, count).astype(int))
        index = self.images.index
        rows = [table[place] for place in places.tolist()]
        return [row for row in rows if all(key in index for key in self._keys_of(row))]

    def _keys_of(self, row: Row) -> list[Any]:
        """Return the keys of all images of a row."""
        keys: list[Any] = []
        for column in self.task.image_columns:
            value = row[column]
            keys += value if isinstance(value, list) else [value]
        return keys

    def leave_out(self, rows: Mapping[int, BadRecord]) -> None:
        """Leave these rows out, besides those whose pictures cannot be opened."""
        self._bad_rows = dict(sorted({**self._bad_rows, **rows}.items()))
        for name in ("usable_rows", "skipped"):
            vars(self).pop(name, None)

    def find_problems(self) -> list[str]:
        """Return what is wrong with images: those that are missing, and a few that are opened."""
        problems = []
        if self.usable_rows is None:
            problems += self._describe_absent()
        cache = ImageCache.find(self.task.path())
        examples = AnnotatedExamples(self, self.usable_table())
        for row in self.sample_rows(examples.table, _DECODED):
            try:
                examples.open(row)
                if cache is not None:
                    cache.verify(self.task.pictures(row, self.images))
            except DataError as error:
                problems.append(str(error))
        return problems

    @cached_property
    def _bad_rows(self) -> dict[int, BadRecord]:
        """Return the rows that are left out because of their pictures, and why.

        If wrong records are an error, an image is opened when it is needed. If they are left out,
        every image is opened once beforehand: which examples there are must not turn out during
        training.
        """
        if self.task.on_bad_record == "fail":
            return {}
        return self.find_bad_rows()

    def find_bad_rows(self) -> dict[int, BadRecord]:
        """Return the rows whose pictures are missing or cannot be opened, and why."""
        pictures: dict[str, Picture] = {}
        rows: dict[str, list[int]] = {}
        bad: dict[int, BadRecord] = {}
        for number, shown in self.iterate_pictures():
            if isinstance(shown, BadRecord):
                bad[number] = shown
                continue
            for picture in shown:
                pictures[picture.name] = picture
                rows.setdefault(picture.name, []).append(number)
        for name, error in remember_bad_pictures(self.task.name, list(pictures.values())).items():
            bad.update(dict.fromkeys(rows[name], error))
        return dict(sorted(bad.items()))

    def _parse(self, about: dict[str, Any]) -> Iterator[Row]:
        """Yield the rows of right records; wrong ones are one error at the end, or are counted."""
        policy = self.task.on_bad_record
        bad = BadRecords(policy)
        first_record: dict[Any, int] = {}
        about["dropped"] = 0
        read = self.task.reader(self.name, bad)
        for record in self._show_progress(self.task.records(self.name, bad)):
            try:
                row = read(record)
                if row is None:
                    about["dropped"] += 1
                    continue
                number = first_record.setdefault(row["id"], record.number)
                if number != record.number:
                    text = f"the id {row['id']!r} is already that of record {number}"
                    raise record.error(text, "duplicate id")
            except BadRecord as error:
                bad.add(error)
            else:
                yield {"record": record.number, **row}
        bad.raise_if_any()
        if not first_record:
            described = f"; {bad.describe(len(bad))}" if len(bad) else ""
            raise DataError(f"{self.annotations} holds no examples{described}; {self.task.source}")
        if policy == "skip":
            about["skipped"] = bad.to_dict()

    def _show_progress(self, records: Iterator[Record]) -> Iterator[Record]:
        # of several processes that parse at once, none draws a bar
        disable = True if parent_process() else None
        title = f"read {self.task.name} {self.name}"
        return tqdm(records, title, unit=" records", leave=False, disable=disable, delay=1)

    def _describe_absent(self) -> list[str]:
        problems = []
        for column, keys in self.find_absent().items():
            if not keys:
                continue
            first = self._find_first(column, keys[0])
            more = f", and {len(keys) - 1} more that records name" if len(keys) > 1 else ""
            problems.append(
                f"{self.annotations}, record {self.table[first]['record']}: {self.images.path} "
                f"lacks {column} {keys[0]!r}{more}; {self.task.source}"
            )
        return problems

    def _find_first(self, column: str, key: Any) -> int:
        """Return the first row that names an image."""
        values = self.table.data.column(column)
        if not isinstance(self.task.columns[column], list):
            return arrow_compute.index(values, key).as_py()
        place = arrow_compute.index(arrow_compute.list_flatten(values), key).as_py()
        return arrow_compute.list_parent_indices(values)[place].as_py()


class AnnotatedExamples(Dataset):
    """Rows of a split whose images are opened when they are needed, in whichever worker.

    With an image cache, images are not decoded here: only the processor knows the size that it
    wants. Small images are decoded once and kept.
    """

    def __init__(
        self, split: AnnotatedSplit, table: datasets.Dataset, cache: ImageCache | None = None
    ):
        self.task = split.task
        self.images = split.images
        self.annotations = split.annotations
        self.table = table
        self.cache = cache
        self.kept = split.kept

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return self.open(self.table[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return a batch in one read of the table, ten times faster than row by row."""
        return [self.open(row) for row in _split_columns(self.table[list(indices)])]

    def open(self, row: Row) -> Row:
        """Return the example of a row, or raise a DataError that names file and record."""
        where = f"{self.annotations}, record {row['record']}"
        try:
            shown: list[Shown] = []
            for picture in self.task.pictures(row, self.images):
                if self.cache is None:
                    shown.append(self.kept.open(picture))
                else:
                    shown.append(PreparedPicture(picture, self.cache, where))
            return self.task.example(row, shown)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None


def stack_labels(examples: Sequence[Row], name: str = "label") -> Tensor:
    """Return the class ids [batch] of examples."""
    return torch.tensor([example[name] for example in examples], dtype=torch.long)


def _split_columns(columns: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Yield the rows of a part of a table."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))
