"""Class-incremental tasks: a data set's classes in parts, one head that widens, no task identity at test time."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from mcit.config import ConfigError, parse, to_dict
from mcit.data.augment import normalize
from mcit.data.bad_records import BadRecords, OnBad, Policy, refuse
from mcit.data.image_folders import Images
from mcit.data.scores import Accuracy
from mcit.data.splits import is_equal, order_classes, parse_split
from mcit.task import Batch, DataError, DataPart, Head, Recipe, Split, Task, combine_parts

# The EWC-DR release's schedules; its paper prints other milestones.
_RELEASE = Recipe(
    epochs=200,
    batch_size=128,
    learning_rate=0.1,
    weight_decay=5e-4,
    optimizer="sgd",
    momentum=0.9,
    schedule="steps",
    milestones=(60, 120, 170),
)
FIRST_RECIPE = _RELEASE
LATER_RECIPE = replace(_RELEASE, epochs=180, weight_decay=2e-4, milestones=(70, 120, 150))


@dataclass(frozen=True, eq=False)
class Part:
    """Which classes a task is about, and the images that all tasks of its sequence share."""

    order: Sequence[int]  # the data set's label of the i-th class to be learned
    known: int  # classes learned before
    total: int  # classes known afterwards
    equal: bool = True  # whether all tasks of the sequence have as many classes
    pool: dict[str, Images] = field(default_factory=dict, repr=False)  # by split, read once
    skipped: dict[str, BadRecords] = field(
        default_factory=dict, repr=False
    )  # by split, what was left out of it


class LabelledImages(NamedTuple):
    """One example, or a batch of them fetched at once."""

    pixels: Tensor  # uint8 [3, height, width], or [batch, 3, height, width]
    labels: Tensor  # long [], or [batch]
    training: bool


@dataclass(frozen=True)
class ClassIncrementalTask(Task):
    """Some classes of a data set. Labels count the classes in the order of learning, 0..total-1.

    Training looks at the logits of the new classes only; importance and scores at all classes seen.
    Made as it is, it is the whole data set in one task; `sequence` makes its parts.
    """

    root: Path | None = None
    recipe: Recipe | None = None  # the release's, unless given
    classes: int | None = None  # learn only the first so many of the class order
    class_order_seed: int | None = 1993  # None: the run's seed
    first_epochs: int = FIRST_RECIPE.epochs
    later_epochs: int = LATER_RECIPE.epochs
    schedule_scale: float = 1.0  # multiplies the epochs; milestones stay at their fractions
    on_bad_record: Policy = "fail"
    part: Part | None = field(default=None, repr=False, compare=False)  # set by `sequence`

    dataset: ClassVar[str]
    class_count: ClassVar[int]
    sizes: ClassVar[
        Mapping[str, int]
    ] = {}  # images of the official `train` and `eval`; none where they are generated
    home: ClassVar[str] = ""  # the folder below the root that they are usually in
    page: ClassVar[str] = ""  # where they are downloaded
    archives: ClassVar[
        Mapping[str, str]
    ] = {}  # what they come packed in, and the folder that it fills
    first_recipe: ClassVar[Recipe] = FIRST_RECIPE
    later_recipe: ClassVar[Recipe] = LATER_RECIPE
    # faster on CPUs than 128, and the same bits: what passes between layers stays in the cache
    eval_batch_size: ClassVar[int] = 64
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    @classmethod
    def sequence(cls, split: str | None, options: Mapping[str, Any], seed: int) -> list[Task]:
        """The tasks of `dataset:split`; `recipe` among the options changes what it names in every task's recipe."""
        where = f"tasks.{cls.dataset}"
        if "part" in options:
            raise ConfigError(
                [f"'{where}.part' is no option: the split decides it, as in {cls.dataset}:{split}"]
            )
        whole = parse(
            cls, {key: value for key, value in options.items() if key != "recipe"}, where=where
        )
        if whole.class_order_seed is None:
            whole = replace(whole, class_order_seed=seed, part=None, recipe=None)
        tasks, known = [], 0
        sizes = parse_split(split, len(whole.part.order), cls.dataset)
        for size in sizes:
            part = replace(whole.part, known=known, total=known + size, equal=is_equal(sizes))
            task = replace(whole, part=part, recipe=None)
            tasks.append(
                replace(
                    task, recipe=task._change_recipe(options.get("recipe", {}), f"{where}.recipe")
                )
            )
            known += size
        return tasks

    def __post_init__(self) -> None:
        self._check_options()
        if self.part is None:
            order = order_classes(
                self.class_count, 1993 if self.class_order_seed is None else self.class_order_seed
            )
            count = self.classes or self.class_count
            object.__setattr__(self, "part", Part(order[:count], known=0, total=count))
        if self.recipe is None:
            epochs = self.later_epochs if self.known else self.first_epochs
            recipe = stretch_recipe(self._full_recipe(), _round(epochs * self.schedule_scale))
            object.__setattr__(self, "recipe", recipe)

    def _check_options(self) -> None:
        problems = []
        if self.classes is not None and not 1 <= self.classes <= self.class_count:
            problems.append(
                f"'classes' must be 1..{self.class_count} of {self.dataset}, found {self.classes}"
            )
        if self.class_order_seed is not None and not 0 <= self.class_order_seed < 2**32:
            problems.append(f"'class_order_seed' must be 0..2^32-1, found {self.class_order_seed}")
        for name in ("first_epochs", "later_epochs", "schedule_scale"):
            if getattr(self, name) <= 0:
                problems.append(f"'{name}' must be positive, found {getattr(self, name)}")
        if problems:
            raise ConfigError(problems)

    def _full_recipe(self) -> Recipe:
        return self.later_recipe if self.known else self.first_recipe

    def _change_recipe(self, changes: Any, where: str) -> Recipe:
        if isinstance(changes, Recipe):
            return changes
        if not isinstance(changes, Mapping):
            raise ConfigError(
                [f"'{where}' must be a section of names and values, found {changes!r}"]
            )
        changed = parse(Recipe, {**to_dict(self.recipe), **changes}, where=where)
        if "milestones" in changes:
            return changed
        return replace(
            changed, milestones=stretch_recipe(self._full_recipe(), changed.epochs).milestones
        )

    @property
    def known(self) -> int:
        """How many classes were learned before this task."""
        return self.part.known

    @property
    def total(self) -> int:
        """How many classes are known after this task."""
        return self.part.total

    @property
    def name(self) -> str:
        return f"{self.dataset}[{self.known}-{self.total - 1}]"

    @property
    def chance(self) -> float:
        """What guessing among all classes seen when the task is learned scores; later there are more to guess among."""
        return 100 / self.total

    @property
    def head(self) -> Head:
        return Head("classes", outputs=self.total, kind="class", layout="linear")

    @property
    def stem(self) -> str:
        """The network's first layer that the release gives this data set and this kind of split."""
        return "cifar"

    def all_seen(self) -> ClassIncrementalTask:
        """All classes seen so far as one task: its eval score is A_t, and training it is joint training."""
        return replace(self, part=replace(self.part, known=0), recipe=None)

    @abstractmethod
    def read_images(self, split: str, kept: Sequence[int]) -> Images:
        """The images of `train` or `eval` whose label is in `kept`, with the data set's own labels."""

    def count_labels(self, split: str) -> Counter[int]:
        """How many images of `train` or `eval` each of the data set's labels has, unopened; some may have none."""
        raise NotImplementedError(f"{self.dataset} has no files to count")

    def on_bad(self, split: str) -> OnBad:
        """What becomes of a wrong record that is found while the images of a split are read."""
        if self.on_bad_record == "fail":
            return refuse
        self.part.skipped[split] = BadRecords()
        return self.part.skipped[split].add

    @abstractmethod
    def augment(self, pixels: Tensor) -> Tensor:
        """Training images, changed at random; values 0..255 whatever the type."""

    def frame(self, pixels: Tensor) -> Tensor:
        """Test images, cut to what is looked at."""
        return pixels

    def check(self) -> None:
        for split in ("train", "eval"):
            examples = self.examples(split)
            counts = examples.labels.bincount(minlength=self.total)[self.known :]
            if (counts == 0).any():
                label = self.part.order[self.known + int(counts.argmin())]
                raise DataError(
                    f"{self.dataset} in {self.root} has no {split} image of the class with label {label}"
                )
            first = [
                int((examples.labels == label).nonzero()[0])
                for label in range(self.known, self.total)
            ]
            for index in first:  # decodes what is still in files
                examples[index]

    def notices(self, processor: Any) -> list[str]:
        lines = []
        for split, bad in self.part.skipped.items():
            if len(bad) and self.known == 0:  # once for all tasks of the sequence
                total = len(self.part.pool[split].labels) + len(bad)
                lines.append(f"{self.dataset}, {split}: {bad.describe(total)}")
        return lines

    def describe_data(self) -> dict[str, Any]:
        """Of the whole data set: its tasks share what was read and what was left out of it."""
        nothing = BadRecords()
        return {
            split: {
                "records": len(images.labels),
                "skipped": self.part.skipped.get(split, nothing).to_dict(),
            }
            for split, images in self.part.pool.items()
        }

    def examples(self, split: Split) -> ClassExamples:
        """This task's classes only; `eval` and `test` are the same images, since the protocol holds none out."""
        split = "train" if split == "train" else "eval"
        if split not in self.part.pool:
            self.part.pool[split] = self.read_images(split, list(self.part.order))
        images = self.part.pool[split]
        position = torch.full((self.class_count,), -1)
        position[torch.tensor(self.part.order)] = torch.arange(len(self.part.order))
        labels = position[images.labels]
        rows = ((labels >= self.known) & (labels < self.total)).nonzero().squeeze(1)
        return ClassExamples(images, rows, labels[rows], training=split == "train")

    def fingerprint(self) -> str | None:
        return combine_parts(self.data_parts())

    def data_parts(self) -> list[DataPart]:
        """All images of the sequence, which its tasks share, and the classes up to those of this one."""
        order = hashlib.sha256(repr(list(self.part.order[: self.total])).encode())
        parts = [DataPart("class order", order.hexdigest()[:32])]
        for split in ("train", "eval"):
            # reads them, if that has not been done
            self.examples(split)
            images = self.part.pool[split]
            parts.append(DataPart(f"{split} images", images.digest[:32], images.times))
        return parts

    def collate(
        self, examples: LabelledImages | Sequence[LabelledImages], processor: Any = None
    ) -> Batch:
        """`pixel_values` and `labels`; training images are augmented, from the global torch generator."""
        if not isinstance(examples, LabelledImages):
            pixels = torch.stack([example.pixels for example in examples])
            labels = torch.stack([example.labels for example in examples])
            examples = LabelledImages(pixels, labels, examples[0].training)
        pixels = self.augment(examples.pixels) if examples.training else self.frame(examples.pixels)
        return {"pixel_values": normalize(pixels, self.mean, self.std), "labels": examples.labels}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(
            logits[:, self.known : self.total], batch["labels"] - self.known
        )

    def target(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def columns(self, logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return {"predictions": logits.argmax(dim=1), "references": batch["labels"]}

    def metric(self) -> Accuracy:
        return Accuracy()


class ClassExamples(Dataset):
    """Rows of a set of images with their labels in the order of learning; a batch is fetched in one go."""

    def __init__(self, images: Images, rows: Tensor, labels: Tensor, training: bool):
        self.images, self.rows, self.labels, self.training = images, rows, labels, training

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> LabelledImages:
        pixels, labels, training = self.__getitems__([index])
        return LabelledImages(pixels[0], labels[0], training)

    def __getitems__(self, indices: Sequence[int]) -> LabelledImages:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        pixels = self.images.fetch(self.rows[chosen], self.training)
        return LabelledImages(pixels, self.labels[chosen], self.training)


def stretch_recipe(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe in so many epochs, its milestones at the same fractions, each at the nearest epoch but never at 0."""
    epochs = max(1, epochs)
    milestones = tuple(
        max(1, _round(milestone * epochs / recipe.epochs)) for milestone in recipe.milestones
    )
    return replace(recipe, epochs=epochs, milestones=milestones)


def _round(value: float) -> int:
    return int(value + 0.5)
