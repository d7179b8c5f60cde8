"""Class-incremental tasks: a data set's classes in parts, and one head that widens.

The protocol and the recipes are those of the EWC-DR release (Elastic Weight Consolidation Done
Right for Continual Learning, CVPR 2026, https://github.com/scarlet0703/EWC-DR), which follows PyCIL
(Zhou et al., 2023, https://arxiv.org/abs/2112.12533).

Training  cross-entropy over the new classes only; importance and scores look at all classes seen
Order     numpy's legacy permutation of the classes, seed 1993
Score     accuracy over all classes seen, on the test images: the protocol holds none out
Chance    100 / classes seen

Differs from the release: its paper prints other milestones than its code has, and the code's are
taken; the run's seed decides weights and batches, where the release always seeds with 1.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mcit.config.options import Kind, option
from mcit.config.parse import parse, to_dict
from mcit.data.augment import image_to_tensor, normalize
from mcit.data.image_folders import Images
from mcit.data.policies import POLICIES, cut_out_squares
from mcit.data.problems import BadRecords, OnBad, Policy, refuse
from mcit.data.rotations import TURNED, label_rotations, rotate_batch, rotation_head
from mcit.data.scores import Accuracy
from mcit.data.splits import order_classes, parse_split
from mcit.errors import ConfigError, DataError
from mcit.task import Batch, ClassSpan, DataPart, Head, Recipe, Split, Task, Track, combine_parts

CLASS_ORDER_SEED = 1993
FIRST_RECIPE = Recipe(
    epochs=200,
    batch_size=128,
    learning_rate=0.1,
    weight_decay=5e-4,
    optimizer="sgd",
    momentum=0.9,
    schedule="steps",
    milestones=(60, 120, 170),
)
LATER_RECIPE = replace(FIRST_RECIPE, epochs=180, weight_decay=2e-4, milestones=(70, 120, 150))
_SPLITS = ("train", "eval")


class ImagePool:
    """The images of a data set, read once and shared by all tasks of a sequence.

    Images that are at hand can be given by split: `ImagePool(train=..., eval=...)`.
    """

    def __init__(self, **images: Images):
        self._images: dict[str, Images] = dict(images)
        self._skipped: dict[str, BadRecords] = {}

    def load(self, split: str, read: Callable[[OnBad], Images], policy: Policy) -> Images:
        """Return the images of `train` or `eval`; `read` is called if they are not there yet."""
        if split not in self._images:
            bad = BadRecords()
            self._images[split] = read(refuse if policy == "fail" else bad.add)
            self._skipped[split] = bad
        return self._images[split]

    def skipped(self, split: str) -> BadRecords:
        """Return the wrong records that were left out when a split was read."""
        return self._skipped.get(split, BadRecords())


@dataclass(frozen=True, eq=False)
class Part:
    """Which classes a task is about, and where its images are."""

    # the data set's label of the i-th class to be learned
    order: Sequence[int]
    span: ClassSpan
    # whether all tasks of the sequence have as many classes
    is_equal: bool = True
    pool: ImagePool = field(default_factory=ImagePool)
    # earlier tasks, and the places of training examples of theirs that are learned along
    kept: Sequence[tuple[Task, Sequence[int]]] = ()


# stands for all classes, in the order that the task's options say
_WHOLE = Part((), ClassSpan(0, 0))


class LabeledImages(NamedTuple):
    """One example, or a batch of them that was loaded at once."""

    # values 0..255, [3, height, width] or [batch, 3, height, width]
    pixels: Tensor
    # long [], or [batch]
    labels: Tensor


@dataclass(frozen=True)
class ClassIncrementalTask(Task):
    """Some classes of a data set. Labels count the classes in the order of learning.

    Made as it is, it is the whole data set in one task; `sequence` makes its parts.
    """

    root: Path | None = option(None, help="folder of the official data", kind=Kind.PLACE)
    # None stands for the recipe that suits the part, until the task is made
    recipe: Recipe | None = option(  # type: ignore[assignment]
        None, help="changes to the recipes of the first and of the later tasks"
    )
    classes: int | None = option(None, help="learn only this many classes, the first of the order")
    class_order_seed: int | None = option(
        CLASS_ORDER_SEED, help="seed of the order of the classes; null: the run's seed"
    )
    first_epochs: int = option(FIRST_RECIPE.epochs, help="epochs of the first task")
    later_epochs: int = option(LATER_RECIPE.epochs, help="epochs of every later task")
    schedule_scale: float = option(
        1.0, help="multiplies the epochs; milestones stay at their fractions"
    )
    later_rate: float = option(
        1.0,
        help="learning rate of every later task, as a multiple of the recipe's",
        newer=True,
    )
    augmentation: Literal["plain", "auto", "trivial"] = option(
        "plain",
        help=(
            "what is done to training images in addition to the data set's own augmentation: "
            "AutoAugment's policy for CIFAR, or TrivialAugmentWide"
        ),
        newer=True,
    )
    cutout: int = option(
        0,
        help="side of a square that is blackened in training images, in pixels; 0 for none",
        newer=True,
    )
    rotations: bool = option(
        False,
        help=(
            "learn rotated images of the first task as classes of their own, with a head that is "
            "dropped afterwards"
        ),
        newer=True,
    )
    on_bad_record: Policy = option(
        "fail", help="stop at a bad record, or leave bad records out and count them"
    )
    # set by `sequence`; the order, the class options and the data say what it holds
    part: Part = field(
        default=_WHOLE, repr=False, compare=False, metadata={"kind": Kind.PLACE, "internal": True}
    )

    track = Track.CLASSES
    reads = frozenset({"images"})
    # faster on CPUs than 128, and the same bits: what passes between layers stays in the cache
    eval_batch_size = 64
    dataset: ClassVar[str]
    class_count: ClassVar[int]
    # by the data set's own label; none if it has only ids
    class_names: ClassVar[Sequence[str]] = ()
    # images of the official `train` and `eval`; none if they are generated
    sizes: ClassVar[Mapping[str, int]] = {}
    # the folder below the root that they are usually in
    home: ClassVar[str] = ""
    # where they are downloaded; nothing if they are generated
    page: ClassVar[str] = ""
    # the archives they come in, and the folder that each fills
    archives: ClassVar[Mapping[str, str]] = {}
    first_recipe: ClassVar[Recipe] = FIRST_RECIPE
    later_recipe: ClassVar[Recipe] = LATER_RECIPE
    # the network's first layer, if all tasks have as many classes and if the first has more
    equal_stem: ClassVar[str] = "cifar"
    big_start_stem: ClassVar[str] = "cifar"
    # channels of the network's first stage
    width: ClassVar[int] = 64
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    @classmethod
    def sequence(
        cls,
        split: str | None,
        options: Mapping[str, Any],
        seed: int,
        pool: ImagePool | None = None,
    ) -> list[Task]:
        """Return the tasks of `dataset:split`; they take images from `pool` if it has them.

        `recipe` among the options changes what it names in every task's recipe.
        """
        where = f"tasks.{cls.dataset}"
        if "part" in options:
            example = f"{cls.dataset}:{split}"
            raise ConfigError(
                [f"'{where}.part' is not an option: the split decides it, as in {example}"]
            )
        own = {key: value for key, value in options.items() if key != "recipe"}
        whole = parse(cls, own, where=where)
        if whole.class_order_seed is None:
            whole = replace(whole, class_order_seed=seed, part=_WHOLE, recipe=None)
        order = whole.part.order
        sizes = parse_split(split, len(order), cls.dataset)
        pool = pool or ImagePool()
        tasks: list[Task] = []
        known = 0
        for size in sizes:
            span = ClassSpan(known, known + size)
            part = Part(order, span, is_equal=len(set(sizes)) == 1, pool=pool)
            task = replace(whole, part=part, recipe=None)
            recipe = task._change_recipe(options.get("recipe", {}), f"{where}.recipe")
            tasks.append(replace(task, recipe=recipe))
            known += size
        return tasks

    def __post_init__(self) -> None:
        self._check_options()
        if self.part is _WHOLE:
            seed = CLASS_ORDER_SEED if self.class_order_seed is None else self.class_order_seed
            order = order_classes(self.class_count, seed)[: self.classes]
            object.__setattr__(self, "part", Part(order, ClassSpan(0, len(order))))
        name = f"{self.dataset}[{self.span.known}-{self.span.total - 1}]"
        object.__setattr__(self, "name", name)
        if self.recipe is None:
            epochs = self.later_epochs if self.span.known else self.first_epochs
            scaled = _round_half_up(epochs * self.schedule_scale)
            recipe = stretch_recipe(self._full_recipe(), scaled)
            object.__setattr__(self, "recipe", self._scale_rate(recipe))

    def _check_options(self) -> None:
        problems = []
        if self.classes is not None and not 1 <= self.classes <= self.class_count:
            problems.append(
                f"'classes' must be 1..{self.class_count} of {self.dataset}, found {self.classes}"
            )
        if self.class_order_seed is not None and not 0 <= self.class_order_seed < 2**32:
            problems.append(f"'class_order_seed' must be 0..2^32-1, found {self.class_order_seed}")
        for name in ("first_epochs", "later_epochs", "schedule_scale", "later_rate"):
            if getattr(self, name) <= 0:
                problems.append(f"'{name}' must be positive, found {getattr(self, name)}")
        if self.cutout < 0:
            problems.append(f"'cutout' must be a number of pixels, at least 0, found {self.cutout}")
        if problems:
            raise ConfigError(problems)

    def _full_recipe(self) -> Recipe:
        return self.later_recipe if self.span.known else self.first_recipe

    def _change_recipe(self, changes: Any, where: str) -> Recipe:
        """Return the recipe with changes; milestones that are not given stay at their fractions."""
        if isinstance(changes, Recipe):
            return changes
        if not isinstance(changes, Mapping):
            raise ConfigError(
                [f"'{where}' must be a section of names and values, found {changes!r}"]
            )
        recipe = parse(Recipe, {**to_dict(self.recipe), **changes}, where=where)
        if "learning_rate" in changes:
            recipe = self._scale_rate(recipe)
        if "milestones" in changes:
            return recipe
        stretched = stretch_recipe(self._full_recipe(), recipe.epochs)
        return replace(recipe, milestones=stretched.milestones)

    def _scale_rate(self, recipe: Recipe) -> Recipe:
        """Return a recipe of all tasks as this one has it: later ones may have another rate."""
        if not self.span.known:
            return recipe
        return replace(recipe, learning_rate=recipe.learning_rate * self.later_rate)

    @abstractmethod
    def read_images(self, split: str, kept: Sequence[int], on_bad: OnBad) -> Images:
        """Return the images of `train` or `eval` with the data set's own labels, those in `kept`.

        A wrong record goes to `on_bad`, which raises it or leaves it out.
        """

    @abstractmethod
    def augment(self, images: Any) -> Tensor:
        """Return training images, changed at random; values 0..255.

        images: what `load_rows` of the task's images returns, pixels uint8 [batch, 3, height,
        width] if they are stored.
        """

    def transform_training(self, images: Any) -> Tensor:
        """Return training images, changed as the data set and the recipe say; values 0..255."""
        changed = self.augment(images)
        if self.augmentation != "plain":
            changed = POLICIES[self.augmentation](changed.to(torch.uint8))
        if self.cutout:
            changed = cut_out_squares(changed, self.cutout)
        return changed

    def eval_transform(self, images: Any) -> Tensor:
        """Return images as they are scored, cut to what is looked at; values 0..255."""
        return images

    def count_labels(self, split: str) -> Counter[int]:
        """Return how many images of `train` or `eval` each of the data set's labels has."""
        raise NotImplementedError(f"{self.dataset} has no files to count")

    @property
    def span(self) -> ClassSpan:
        return self.part.span

    @property
    def chance(self) -> float:
        """Return what guessing among all classes seen scores when the task is learned."""
        return 100 / self.span.total

    @property
    def head(self) -> Head:
        return Head("classes", outputs=self.span.total, kind="class", layout="linear")

    @property
    def extra_head(self) -> Head | None:
        if self.rotations and not self.span.known:
            return rotation_head(self.span.total)
        return None

    def expand(self, batch: Batch) -> Batch:
        return batch if self.extra_head is None else rotate_batch(batch)

    def network_defaults(self) -> Mapping[str, Any]:
        stem = self.equal_stem if self.part.is_equal else self.big_start_stem
        return {"stem": stem, "width": self.width}

    def all_seen(self) -> ClassIncrementalTask:
        """Return all classes seen so far as one task; its eval score is A_t."""
        part = replace(self.part, span=ClassSpan(0, self.span.total))
        return replace(self, part=part, recipe=None)

    def check(self) -> None:
        for split in ("plain", "eval"):
            examples = self.examples(split)
            for label in range(self.span.known, self.span.total):
                rows = (examples.labels == label).nonzero()
                if not len(rows):
                    original = self.part.order[label]
                    part = "train" if split == "plain" else split
                    raise DataError(
                        f"{self.dataset} in {self.root} has no {part} image of the class with "
                        f"label {original}"
                    )
                # decodes an image that is still in a file
                examples[int(rows[0])]

    def data_notes(self, processor: Any) -> list[str]:
        # once for all tasks of the sequence
        if self.span.known:
            return []
        notes = []
        for split in _SPLITS:
            total = len(self._load_images(split).labels)
            bad = self.part.pool.skipped(split)
            if len(bad):
                notes.append(f"{self.dataset}, {split}: {bad.describe(total + len(bad))}")
        return notes

    def describe_data(self) -> dict[str, Any]:
        """Return the records of the whole data set, which the tasks share."""
        described = {}
        for split in _SPLITS:
            count = len(self._load_images(split).labels)
            skipped = self.part.pool.skipped(split).to_dict()
            described[split] = {"records": count, "skipped": skipped}
        return described

    def examples(self, split: Split) -> ClassExamples:
        """Return this task's classes; `eval` and `test` are the same images."""
        images = self._load_images("train" if split in ("train", "plain") else "eval")
        # where each of the data set's labels stands in the order of learning
        position = torch.full((self.class_count,), -1)
        position[torch.tensor(self.part.order)] = torch.arange(len(self.part.order))
        labels = position[images.labels]
        is_ours = (labels >= self.span.known) & (labels < self.span.total)
        rows = is_ours.nonzero().squeeze(1)
        transform = self.transform_training if split == "train" else self.eval_transform
        own = ClassExamples(images, rows, labels[rows], transform)
        return own if split in ("eval", "test") else self._join_kept(own)

    def with_examples(self, kept: Sequence[tuple[Task, Sequence[int]]]) -> ClassIncrementalTask:
        return replace(self, part=replace(self.part, kept=tuple(kept)))

    def _join_kept(self, own: ClassExamples) -> ClassExamples:
        """Return this task's training examples, followed by those of earlier tasks."""
        rows = [own.rows]
        labels = [own.labels]
        found: dict[str, ClassExamples] = {}
        for task, places in self.part.kept:
            if task.name not in found:
                found[task.name] = cast(ClassExamples, task.examples("plain"))
            chosen = torch.tensor(places, dtype=torch.long)
            rows.append(found[task.name].rows[chosen])
            labels.append(found[task.name].labels[chosen])
        if len(rows) == 1:
            return own
        return ClassExamples(own.images, torch.cat(rows), torch.cat(labels), own.transform)

    def _load_images(self, split: str) -> Images:
        def read(on_bad: OnBad) -> Images:
            return self.read_images(split, list(self.part.order), on_bad)

        return self.part.pool.load(split, read, self.on_bad_record)

    def fingerprint(self) -> str | None:
        return combine_parts(self.data_parts())

    def data_parts(self) -> list[DataPart]:
        """Return the images, which all tasks share, and the classes up to this task's."""
        order = list(self.part.order[: self.span.total])
        digest = hashlib.sha256(repr(order).encode()).hexdigest()
        parts = [DataPart("class order", digest[:32])]
        for split in _SPLITS:
            images = self._load_images(split)
            parts.append(DataPart(f"{split} images", images.digest[:32], images.times))
        return parts

    def collate(
        self, examples: LabeledImages | Sequence[LabeledImages], processor: Any = None
    ) -> Batch:
        if not isinstance(examples, LabeledImages):
            pixels = torch.stack([example.pixels for example in examples])
            labels = torch.stack([example.labels for example in examples])
            examples = LabeledImages(pixels, labels)
        return {**self._read_pixels(examples.pixels, processor), "labels": examples.labels}

    def _read_pixels(self, pixels: Tensor, processor: Any) -> Batch:
        """Return images as the network takes them; a pretrained one has its own size and scale."""
        if processor is None:
            return {"pixel_values": normalize(pixels, self.mean, self.std)}
        resized = processor.resize(pixels)
        return {"pixel_values": normalize(resized, processor.mean, processor.std)}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if TURNED in batch:
            return F.cross_entropy(logits, self.target(batch))
        # with examples of earlier classes, all answers are compared
        known = 0 if self.part.kept else self.span.known
        return F.cross_entropy(logits[:, known : self.span.total], batch["labels"] - known)

    def target(self, batch: Batch) -> Tensor:
        if TURNED not in batch:
            return batch["labels"]
        return label_rotations(batch["labels"], batch[TURNED], self.span.total)

    def metric_inputs(self, predicted: Tensor, batch: Batch) -> Mapping[str, Any]:
        return {"predictions": predicted.argmax(dim=1), "references": self.target(batch)}

    def metric(self) -> Accuracy:
        return Accuracy()

    def read_inputs(self, images: Sequence[Any], texts: Sequence[Any], processor: Any) -> Batch:
        converted = [image.convert("RGB") for image in images]
        return self._read_pixels(self.transform_images(converted), processor)

    def transform_images(self, images: Sequence[Image.Image]) -> Tensor:
        """Return images that are not in the data as they are scored; values 0..255."""
        sizes = sorted({f"{image.width}x{image.height}" for image in images})
        if len(sizes) > 1:
            raise ConfigError([f"images must be of one size, found {', '.join(sizes)}"])
        return self.eval_transform(torch.stack([image_to_tensor(image) for image in images]))

    def output_names(self) -> Sequence[str] | None:
        if not self.class_names:
            return None
        return [self.class_names[label] for label in self.part.order[: self.span.total]]


class ClassExamples(Dataset):
    """Rows of images with their labels in the order of learning; a batch is loaded in one go.

    What a transform draws at random comes from the global torch generator, when examples are
    loaded.
    """

    def __init__(
        self, images: Images, rows: Tensor, labels: Tensor, transform: Callable[[Any], Tensor]
    ):
        self.images = images
        self.rows = rows
        self.labels = labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> LabeledImages:
        pixels, labels = self.__getitems__([index])
        return LabeledImages(pixels[0], labels[0])

    def __getitems__(self, indices: Sequence[int]) -> LabeledImages:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        images = self.images.load_rows(self.rows[chosen])
        return LabeledImages(self.transform(images), self.labels[chosen])


def stretch_recipe(recipe: Recipe, epochs: int) -> Recipe:
    """Return the recipe in so many epochs, its milestones at the nearest epochs, but never at 0."""
    epochs = max(1, epochs)
    milestones = []
    for milestone in recipe.milestones:
        nearest = _round_half_up(milestone * epochs / recipe.epochs)
        milestones.append(max(1, nearest))
    return replace(recipe, epochs=epochs, milestones=tuple(milestones))


def _round_half_up(value: float) -> int:
    return int(value + 0.5)
