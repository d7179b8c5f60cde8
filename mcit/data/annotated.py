"""What the tasks that are read from annotation files and image folders have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pyarrow.compute as arrow_compute
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from mcit.data.arrow import fingerprint, load_table, read_about
from mcit.data.bad_records import BadRecords, Policy
from mcit.data.files import describe_absence
from mcit.data.image_cache import ImageCache, PreparedPicture
from mcit.data.images import ImageFolder, Picture
from mcit.data.lazy_examples import LazyExamples, Row
from mcit.data.records import BadRecord, DataProblems, Record, problems_of, read_records
from mcit.data.scores import Accuracy
from mcit.data.verification import find_bad_rows, verify_cache
from mcit.task import Batch, DataError, DataPart, Split, Task, combine_parts

Shown = Image.Image | PreparedPicture  # what a processor's `read_images` takes
_DECODED = 5  # images that `check` opens per split: the first, the last, some in between


class AnnotatedTask(Task):
    """A task whose records are parsed once into an Arrow table and whose images are opened as they are needed.

    Unless it says otherwise it is a choice among classes: cross-entropy, scored by accuracy.
    """

    parser: ClassVar[int] = 1  # counts the changes of what `read` makes of a record
    splits: ClassVar[Mapping[str, str]]  # the split's name in the official files
    sizes: ClassVar[Mapping[str, int]]  # how many records the official files of a split have
    features: ClassVar[Mapping[str, Any]]  # of a row; `id` names an example, `record` is added
    source: ClassVar[str]  # where the official files come from
    page: ClassVar[str]  # where they are downloaded
    archives: ClassVar[
        Mapping[str, str]
    ] = {}  # what they come packed in, and the folder that it fills
    on_bad_record: Policy = "fail"
    image_columns: tuple[str, ...] = ("image",)  # those that hold keys of the image folder
    image_key: ClassVar[Callable[[str], Any]]  # what a file of that folder is looked up by

    @abstractmethod
    def files(self, split: str) -> tuple[Path, ...]:
        """The annotation files of an official split; the last one holds the records."""

    @abstractmethod
    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        """What makes a row of a record, None of one that does not count, a BadRecord of one that is wrong."""

    @abstractmethod
    def image_place(self, split: str) -> tuple[str, ...]:
        """The folder below the root that the images of an official split are in, by its parts."""

    @abstractmethod
    def example(self, row: Row, shown: Sequence[Shown]) -> Row:
        """The example of a row and of the pictures it shows."""

    def records(self, split: str, bad: BadRecords) -> Iterator[Record]:
        return read_records(self.files(split)[-1], on_bad=bad.add)

    def pictures(self, row: Row, images: ImageFolder) -> tuple[Picture, ...]:
        """What a row shows, not decoded; needs the row's `picture_columns` only."""
        return tuple(images.picture(row[column]) for column in self.image_columns)

    @property
    def picture_columns(self) -> tuple[str, ...]:
        """The columns of a row that decide its pictures."""
        return self.image_columns

    def options(self) -> Mapping[str, Any]:
        """Options that change the table."""
        return {}

    def path(self, *names: str) -> Path:
        if self.root is None:
            raise DataError(
                f"task {self.name!r} needs the folder of its data, and none is given: set --data-root"
            )
        return Path(self.root).joinpath(*names)

    def folder(self, split: str) -> ImageFolder:
        """The images of an official split, listed."""
        place = self.image_place(split)
        return ImageFolder.listed(
            self.path(*place), self.image_key, self.source, prefix="/".join(place)
        )

    def remarks(self) -> list[str]:
        """What else there is to say of data that are all there; a DataError ends in its remedy."""
        return []

    def table(self, split: Split) -> datasets.Dataset:
        """The rows of a split, memory mapped; parsed first if these files have not been parsed before."""
        official = self._official(split)
        files = self.files(official)
        absent = [
            f"{path} {describe_absence(path)}; {self.source}"
            for path in files
            if not path.is_file()
        ]
        if absent:
            raise DataProblems(absent)
        features = datasets.Features({"record": datasets.Value("int64"), **self.features})
        options = {"task": self.name, "split": official, "parser": self.parser, **self.options()}
        if self.on_bad_record != "fail":
            options["on_bad_record"] = self.on_bad_record
        about: dict[str, Any] = {"dropped": 0}
        rows = partial(self._rows, official, about)
        return load_table(f"{self.name}-{official}", files, options, features, rows, about)

    def fingerprint(self) -> str | None:
        return combine_parts(self.data_parts())

    def data_parts(self) -> list[DataPart]:
        """Every byte of the annotations; of the images that they name, which take too long to read, what a listing
        tells. Looked at once by this object."""
        return self._known_parts

    @cached_property
    def _known_parts(self) -> list[DataPart]:
        files = [path for split in ("train", "eval") for path in self.files(self._official(split))]
        used = {
            split: self._usable(split)[0] for split in ("train", "eval")
        }  # with images left out, other examples
        left = {split: rows for split, rows in used.items() if rows is not None}
        parts = [DataPart("annotations", fingerprint(files, left))]
        keys: dict[str, set[Any]] = {}
        folders: dict[str, ImageFolder] = {}
        for split in ("train", "eval"):
            images = self.folder(self._official(split))
            folders[images.prefix] = images
            held = keys.setdefault(images.prefix, set())
            for column in self.image_columns:
                held.update(arrow_compute.unique(self.table(split).data.column(column)).to_pylist())
        for place, images in folders.items():
            stamp = images.stamp(keys[place])
            parts.append(DataPart(f"images under {place}", stamp.content, stamp.times))
        return parts

    def dropped(self, split: Split) -> int:
        """How many records of a split do not count, such as those whose annotators did not agree."""
        return read_about(self.table(split))["dropped"]

    def skipped_records(self, split: Split) -> BadRecords:
        """The wrong records of a split that are left out."""
        about = read_about(self.table(split))
        return BadRecords.from_dict(about["skipped"]) if "skipped" in about else BadRecords()

    def skipped(self, split: Split) -> BadRecords:
        """The same with the records that are left out because of their images."""
        return self.skipped_records(split).merge(self._usable(split)[1])

    def count_records(self, split: Split) -> int:
        """How many records the file of a split has, the dropped and the wrong ones included."""
        about = read_about(self.table(split))
        return about["rows"] + about["dropped"] + about.get("skipped", {}).get("records", 0)

    def examples(self, split: Split) -> Dataset:
        table, images = self.table(split), self.folder(self._official(split))
        rows, _ = self._usable(split)
        if rows is not None:
            table = table.select(rows)
        return LazyExamples(
            self, table, images, ImageCache.find(self.path()), self.files(self._official(split))[-1]
        )

    def open(
        self, row: Row, images: ImageFolder, cache: ImageCache | None = None, where: str = ""
    ) -> Row:
        """The example of a row, its images decoded; with a cache, they are left to the processor."""
        pictures = self.pictures(row, images)
        return self.example(
            row, [p.open() if cache is None else PreparedPicture(p, cache, where) for p in pictures]
        )

    def check(self) -> None:
        problems: list[str] = []
        for split in ("train", "eval"):
            try:
                table = self.table(split)
                images = self.folder(self._official(split))
                rows, _ = self._usable(split)
            except DataError as error:
                problems += problems_of(error)
            else:
                file = self.files(self._official(split))[-1]
                if rows is None:
                    problems += self._find_absent(table, images, file)
                else:
                    # what is absent is left out; `data` of a selection would still be that of the whole table
                    table = table.select(rows)
                problems += self._open_some(table, images, file)
        if problems:
            raise DataProblems(dict.fromkeys(problems))  # two splits may lack the same folder

    def notices(self, processor: Any) -> list[str]:
        lines = []
        for split in ("train", "eval"):
            bad = self.skipped(split)
            if len(bad):
                lines.append(
                    f"{self.name}, {self._official(split)}: {bad.describe(self.count_records(split))}"
                )
        cache = ImageCache.find(self.path())
        if cache is not None:
            lines.append(f"{self.name}: {cache.describe(getattr(processor, 'resizing', None))}")
        return lines

    def describe_data(self) -> dict[str, Any]:
        return {
            split: {
                "records": self.count_records(split),
                "dropped": self.dropped(split),
                "skipped": self.skipped(split).to_dict(),
            }
            for split in ("train", "eval")
        }

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
            raise DataError(
                f"task {self.name!r} has no labelled {split!r} split (splits: {', '.join(self.splits)})"
            )
        return self.splits[split]

    @cached_property
    def _known_usable(self) -> dict[str, tuple[list[int] | None, BadRecords]]:
        return {}

    def _usable(self, split: Split) -> tuple[list[int] | None, BadRecords]:
        """The rows whose pictures can be opened, None for all, and what is wrong with the others.

        Where wrong records are an error, an image is opened no sooner than it is needed. Where they are left out, every
        image is opened once beforehand: which examples there are must not be found out while they are learned.
        """
        if self.on_bad_record == "fail":
            return None, BadRecords()
        if split not in self._known_usable:
            file, table = self.files(self._official(split))[-1], self.table(split)
            found = find_bad_rows(self, table, self.folder(self._official(split)))
            bad = BadRecords()
            for row, error in found.items():
                bad.add(BadRecord(f"{file}, record {table[row]['record']}: {error}", error.reason))
            rows = [row for row in range(len(table)) if row not in found] if found else None
            if rows == []:
                raise DataError(
                    f"no record of {file} has an image that can be opened: {bad.describe(len(table))}"
                )
            self._known_usable[split] = rows, bad
        return self._known_usable[split]

    def _rows(self, split: str, about: dict[str, Any]) -> Iterator[Row]:
        """Rows of the records that are right; what is wrong is an error at the end that lists it, or is counted."""
        bad, first_record = BadRecords(self.on_bad_record), {}
        read = self.reader(split, bad)
        quiet = (
            True if parent_process() else None
        )  # of several processes that parse at once, none draws a bar
        records = self.records(split, bad)
        for record in tqdm(
            records,
            f"read {self.name} {split}",
            unit=" records",
            leave=False,
            disable=quiet,
            delay=1,
        ):
            try:
                row = read(record)
                if row is None:
                    about["dropped"] += 1
                    continue
                number = first_record.setdefault(row["id"], record.number)
                if number != record.number:
                    raise record.error(
                        f"the id {row['id']!r} is already that of record {number}", "duplicate id"
                    )
            except BadRecord as error:
                bad.add(error)
            else:
                yield {"record": record.number, **row}
        bad.raise_if_any()
        if not first_record:
            lead = f"; {bad.describe(len(bad))}" if len(bad) else ""
            raise DataError(f"{self.files(split)[-1]} holds no examples{lead}; {self.source}")
        if self.on_bad_record == "skip":
            about["skipped"] = bad.to_dict()

    def _find_absent(self, table: datasets.Dataset, images: ImageFolder, file: Path) -> list[str]:
        """What to say of images that records name and that are not there."""
        problems = []
        for column in self.image_columns:
            names = table.data.column(column)
            absent = [
                name for name in arrow_compute.unique(names).to_pylist() if name not in images.index
            ]
            if absent:
                record = table[arrow_compute.index(names, absent[0]).as_py()]["record"]
                more = f", and {len(absent) - 1} more that records name" if len(absent) > 1 else ""
                lacks = f"{images.path} lacks {column} {absent[0]!r}{more}; {self.source}"
                problems.append(f"{file}, record {record}: {lacks}")
        return problems

    def _open_some(self, table: datasets.Dataset, images: ImageFolder, file: Path) -> list[str]:
        """What to say of a few images once they are opened, and compared with the cache."""
        problems = []
        cache = ImageCache.find(self.path())
        for place in np.unique(np.linspace(0, len(table) - 1, _DECODED).astype(int)).tolist():
            row = table[place]
            if all(row[column] in images.index for column in self.image_columns):
                try:
                    self.open(row, images)
                    if cache is not None:
                        verify_cache(cache, self.pictures(row, images))
                except DataError as error:
                    problems.append(f"{file}, record {row['record']}: {error}")
        return problems


def stack_labels(examples: Any, name: str = "label") -> Tensor:
    """Class ids of a batch of examples."""
    return torch.tensor([example[name] for example in examples], dtype=torch.long)  # [batch]
