"""What a task is: examples and how they are batched, a head, a recipe, a loss, a score and its chance level."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.utils.data import Dataset

from mcit.config import ConfigError, parse

# part of the contract: what `check` raises, so that a task finds it here
from mcit.errors import DataError as DataError

Batch = Mapping[str, Any]
Split = Literal["train", "eval", "test"]


@dataclass(frozen=True)
class DataPart:
    """One source of a task's data, so that a run which finds it changed can say so."""

    name: str  # `annotations`, `images under flickr30k/flickr30k_images`
    content: str  # a digest of what every copy has in common: the bytes, or names and sizes
    times: str = ""  # a digest of the files' times of change, where not every byte is read


def combine_parts(parts: Sequence[DataPart], times: bool = True) -> str | None:
    """Return one digest of all parts, None where there are none; without `times`, it is the same for every copy."""
    if not parts:
        return None
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        noted = part.times if times else ""
        whole.update(f"{part.name}\0{part.content}\0{noted}\n".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


@dataclass(frozen=True)
class Head:
    """What answers a task: tasks that name the same head share it, and it widens when `outputs` grows.

    The encoder gives features [batch, views, width]: one view per image or per choice of text.
    """

    name: str
    outputs: int  # logits per example
    kind: Literal["class", "multi_label", "choice"] = "class"
    layout: Literal["mlp", "linear"] = "mlp"
    views: int = 1  # 2 for an image pair, 4 for four choices


@dataclass(frozen=True)
class Recipe:
    """How a task is learned. It belongs to the task, so that methods are compared like with like.

    With adamw, biases and norms are not decayed; with sgd everything is, as in the EWC-DR release.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    momentum: float = 0.9
    schedule: Literal["linear", "steps", "constant"] = "linear"
    warmup: float = 0.1  # share of all steps, for `linear`
    milestones: tuple[
        int, ...
    ] = ()  # epochs at which `steps` multiplies the learning rate by `factor`
    factor: float = 0.1

    def __post_init__(self) -> None:
        problems = [
            f"recipe.{name} must be {wanted}, found {getattr(self, name)}"
            for name, wanted, fits in (
                ("epochs", "0 or more", self.epochs >= 0),
                ("batch_size", "at least 1", self.batch_size >= 1),
                ("learning_rate", "above 0 and finite", 0 < self.learning_rate < float("inf")),
                ("weight_decay", "0 or more", self.weight_decay >= 0),
                ("betas", "from 0 to below 1", all(0 <= beta < 1 for beta in self.betas)),
                ("eps", "above 0", self.eps > 0),
                ("momentum", "from 0 to below 1", 0 <= self.momentum < 1),
                ("warmup", "a share from 0 to below 1", 0 <= self.warmup < 1),
                ("factor", "above 0", self.factor > 0),
            )
            if not fits
        ]
        if problems:
            raise ConfigError(problems)


class Task(ABC):
    """A task of a sequence. A file in `tasks/` defines exactly one, a dataclass whose fields are its options.

    Its name on the command line is the file's name. The first field is `root`, the folder of the official files
    (None where the data are generated), and `recipe` is one of the fields, so that a configuration can change both.
    """

    name: str
    chance: float  # percent, what guessing scores
    root: Path | None
    recipe: Recipe
    head: Head  # may need the data to be known (an answer vocabulary): read it after `check`
    embedded: ClassVar[bool] = False  # whether the benchmark that ships with mcit has data for it
    eval_batch_size: ClassVar[int] = (
        128  # examples that are scored at a time, unless the configuration says
    )

    @classmethod
    def sequence(cls, split: str | None, options: Mapping[str, Any], seed: int) -> list[Task]:
        """The tasks that `name` or `name:split` in an order stands for; one, unless the task is a data set to split."""
        if split is not None:
            raise ConfigError([f"task {cls.name!r} takes no split, found '{cls.name}:{split}'"])
        return [parse(cls, options, where=f"tasks.{cls.name}")]

    @abstractmethod
    def check(self) -> None:
        """Touch the data: every file that training and scoring will need is there and readable, or a DataError."""

    def fingerprint(self) -> str | None:
        """A digest of the data that are read, of files that are not read whole their names, sizes and times of change;
        None where there is none."""
        return None

    def data_parts(self) -> list[DataPart]:
        """The same by source. A run goes on only where every part is what it was when the run began."""
        whole = self.fingerprint()
        return [] if whole is None else [DataPart("data", whole)]

    def notices(self, processor: Any) -> list[str]:
        """What a user should know about the data before they are used, a line each: records left out, a cache."""
        return []

    def describe_data(self) -> dict[str, Any]:
        """How many records each split has and how many are left out for which reasons, for the passport."""
        return {}

    @abstractmethod
    def examples(self, split: Split) -> Dataset:
        """The examples of a split, decoded lazily, in a fixed order."""

    @abstractmethod
    def collate(self, examples: Sequence[Any], processor: Any) -> Batch:
        """A batch of tensors; runs in loader workers, with the backbone's processor where it has one."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The training loss, a mean over the batch. Later EFCIL tasks look at the new classes only."""

    @abstractmethod
    def target(self, batch: Batch) -> Tensor:
        """What importance is measured against: class ids [batch] over all classes seen, or labels [batch, outputs]."""

    @abstractmethod
    def columns(self, logits: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """What the metric needs to know of each example, first dimension the batch: `predictions`, `references`."""

    @abstractmethod
    def metric(self) -> Any:
        """An `evaluate.Metric` that needs no hub; its result has `score`, in percent, and may have more."""


def is_class_incremental(tasks: Sequence[Task]) -> bool:
    """Whether the tasks are parts of one data set that share a head: such a task says how many classes are `known`."""
    return any(hasattr(task, "known") for task in tasks)
