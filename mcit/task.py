"""The contract of a task: examples and their batches, a head, a recipe, a loss, a score."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from mcit.config.options import option
from mcit.config.parse import parse
from mcit.errors import ConfigError, DataError

Batch = Mapping[str, Any]
# plain: the training examples without augmentation, in file order
Split = Literal["train", "plain", "eval", "test"]


class Track(str, Enum):
    """The kinds of sequences; the value stands in scores.json."""

    # every task has a head of its own
    TASKS = "mcit"
    # tasks are parts of one data set, with one head that widens and no task identity at test time
    CLASSES = "efcil"
    # instructions that are answered in words
    TEXT = "instructions"


def move(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on the device.

    A GPU copies pinned memory while the program goes on, and computes when it is there.
    """
    on_gpu = device.type == "cuda"
    moved = {}
    for key, value in batch.items():
        is_tensor = isinstance(value, Tensor)
        moved[key] = value.to(device, non_blocking=on_gpu) if is_tensor else value
    return moved


def count_bytes(batch: Batch) -> int:
    """Return the bytes of a batch's tensors: what leaves a loader's worker for the device."""
    return sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))


class Examples(Protocol):
    """Examples that are counted and read by their number, such as a `Dataset` with a length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Output(NamedTuple):
    """What a learner computes for a batch."""

    # [batch, width]; several views of an example one after the other
    features: Tensor
    # [batch, outputs] of the head, or of the classes seen so far; of a text head [batch, answer,
    # vocabulary], at the places of the answers' tokens
    logits: Tensor


@dataclass(frozen=True)
class ClassSpan:
    """The classes of a class-incremental task: those from `known` up to, and without, `total`."""

    known: int
    total: int


@dataclass(frozen=True)
class DataPart:
    """One source of a task's data, so that a run which finds it changed can say so."""

    # such as `annotations` or `images under flickr30k/flickr30k_images`
    name: str
    # a digest of what every copy has in common: the bytes, or names and sizes
    content: str
    # a digest of the files' modification times, where not every byte is read
    times: str = ""


def combine_parts(parts: Sequence[DataPart], times: bool = True) -> str | None:
    """Return one digest of all parts, or None if there are none.

    Without `times`, it is the same for every copy of the data.
    """
    if not parts:
        return None
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        noted = part.times if times else ""
        line = f"{part.name}\0{part.content}\0{noted}\n"
        whole.update(line.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


@dataclass(frozen=True)
class Head:
    """The layer that answers a task; tasks that name the same head share it.

    The backbone computes features [batch, views, width]: one view per image or per choice of text.
    A shared head widens when `outputs` grows. A head of kind `text` is the vocabulary of a
    generative model: it has no outputs of its own, and all tasks in words share it.
    """

    name: str
    # logits per example
    outputs: int
    kind: Literal["class", "multi_label", "choice", "text"] = "class"
    # `projector`: linear, GELU, linear, for features that a loss compares
    layout: Literal["mlp", "linear", "projector"] = "mlp"
    # width of a projector's hidden layer
    hidden: int = 0
    # 2 for an image pair, 4 for four choices
    views: int = 1
    # the most tokens that a text may have
    new_tokens: int = 0


@dataclass(frozen=True)
class Recipe:
    """How a task is learned. It belongs to the task, so that methods are compared like with like.

    With adamw, biases and norms are not decayed; with sgd everything is, as in the EWC-DR release.
    With adam everything is too, and the decay is part of the gradient.
    """

    epochs: int = option(help="passes over the training examples")
    batch_size: int = option(help="examples per optimizer step, over all processes")
    learning_rate: float = option(help="peak learning rate")
    weight_decay: float = option(0.0, help="weight decay of the optimizer")
    optimizer: Literal["adamw", "sgd", "adam"] = option("adamw", help="optimizer")
    betas: tuple[float, float] = option((0.9, 0.98), help="betas of adamw and adam")
    eps: float = option(1e-8, help="epsilon of adamw and adam")
    momentum: float = option(0.9, help="momentum of sgd")
    schedule: Literal["linear", "cosine", "steps", "constant"] = option(
        "linear", help="how the learning rate changes"
    )
    warmup: float = option(
        0.1, help="fraction of all steps in which the rate rises, for `linear` and `cosine`"
    )
    milestones: tuple[int, ...] = option(
        (), help="epochs at which `steps` multiplies the rate by `factor`"
    )
    factor: float = option(0.1, help="factor of the schedule `steps`")

    def __post_init__(self) -> None:
        requirements = (
            ("epochs", "0 or more", self.epochs >= 0),
            ("batch_size", "at least 1", self.batch_size >= 1),
            ("learning_rate", "above 0 and finite", 0 < self.learning_rate < float("inf")),
            ("weight_decay", "0 or more", self.weight_decay >= 0),
            ("betas", "at least 0 and below 1", all(0 <= beta < 1 for beta in self.betas)),
            ("eps", "above 0", self.eps > 0),
            ("momentum", "at least 0 and below 1", 0 <= self.momentum < 1),
            ("warmup", "a fraction of at least 0 and below 1", 0 <= self.warmup < 1),
            ("factor", "above 0", self.factor > 0),
        )
        problems = [
            f"recipe.{name} must be {wanted}, found {getattr(self, name)}"
            for name, wanted, holds in requirements
            if not holds
        ]
        if problems:
            raise ConfigError(problems)


class Task(ABC):
    """A task of a sequence; a file in `tasks/` defines one, a dataclass of its options.

    Its name on the command line is the file's name. The first field is `root`, the folder of the
    official files (None if the data are generated), and `recipe` is one of the fields, so that a
    configuration can change both.
    """

    # every task is a dataclass
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: str
    root: Path | None
    recipe: Recipe
    track: ClassVar[Track] = Track.TASKS
    # what an example shows, which the network must be able to read
    reads: ClassVar[frozenset[str]] = frozenset({"images", "texts"})
    # whether the benchmark that ships with mcit has data for it
    embedded: ClassVar[bool] = False
    # whether making a batch draws random numbers, as augmentation does
    draws: ClassVar[bool] = True
    # whether `mcit doctor` looks at the data without being asked; not if they are another task's
    on_its_own: ClassVar[bool] = True
    # default number of examples that are scored at a time
    eval_batch_size: ClassVar[int] = 128
    # the name in an order that stands for several tasks, such as parts of one data set
    dataset: ClassVar[str | None] = None

    @classmethod
    def sequence(cls, split: str | None, options: Mapping[str, Any], seed: int) -> list[Task]:
        """Return the tasks that `name` or `name:split` in an order stands for.

        It is one task, unless the task is a data set to split.
        """
        if split is not None:
            raise ConfigError([f"task {cls.name!r} takes no split, found '{cls.name}:{split}'"])
        return [parse(cls, options, where=f"tasks.{cls.name}")]

    @property
    def in_order(self) -> str:
        """Return how an order names the task."""
        return self.name

    @property
    @abstractmethod
    def chance(self) -> float:
        """Return what guessing scores, in percent."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """Return the head; it may depend on the data, such as an answer vocabulary.

        Call `check` first.
        """

    @property
    def extra_head(self) -> Head | None:
        """Return a head whose outputs stand beside the task's own while it is learned.

        Both are under one softmax; when the task has been learned, the extra head is dropped.
        """
        return None

    def expand(self, batch: Batch) -> Batch:
        """Return the batch to learn from, on the device; a recipe may add rotated images.

        The rows of an example stand one after the other, as many for every example.
        """
        return batch

    def path(self, *names: str) -> Path:
        """Return a path below the root."""
        if self.root is None:
            raise DataError(
                f"task {self.name!r} needs the folder of its data, and none is given: "
                "set --data-root"
            )
        return Path(self.root).joinpath(*names)

    @property
    def span(self) -> ClassSpan | None:
        """Return the classes of a class-incremental task, None for any other."""
        return None

    def all_seen(self) -> Task | None:
        """Return all classes up to this task's as one task; None if each has its own head."""
        return None

    def with_examples(self, kept: Sequence[tuple[Task, Sequence[int]]]) -> Task | None:
        """Return the task with training examples of earlier tasks after its own.

        kept: earlier tasks, and the places of examples in their training split. The loss is over
        all classes seen. None if each task has a head of its own.
        """
        return None

    def network_defaults(self) -> Mapping[str, Any]:
        """Return what suits the data of a network that starts from random weights: stem, width."""
        return {}

    @abstractmethod
    def check(self) -> None:
        """Raise a DataError unless every file that is needed is there and readable."""

    def fingerprint(self) -> str | None:
        """Return a digest of the data, None if there is none.

        Of files that are not read whole it covers names, sizes and modification times.
        """
        return None

    def data_parts(self) -> list[DataPart]:
        """Return the data by source; a run resumes only if every part is what it was."""
        whole = self.fingerprint()
        return [] if whole is None else [DataPart("data", whole)]

    def fit_to(self, processor: Any) -> None:  # noqa: B027
        """Look at the examples with the network's processor, before they are counted or used.

        Raise a DataError for examples that the network cannot read, or leave them out.
        """

    def data_notes(self, processor: Any) -> list[str]:
        """Return lines to read before the data are used: records left out, a cache."""
        return []

    def describe_data(self) -> dict[str, Any]:
        """Return how many records each split has and how many are left out for which reasons."""
        return {}

    @abstractmethod
    def examples(self, split: Split) -> Examples:
        """Return the examples of a split, decoded lazily, in a fixed order."""

    @abstractmethod
    def collate(self, examples: Any, processor: Any) -> Batch:
        """Return a batch of tensors; runs in loader workers, with the backbone's processor."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, a mean over the batch.

        Later class-incremental tasks look at the new classes only.
        """

    @abstractmethod
    def target(self, batch: Batch) -> Tensor:
        """Return class ids [batch] over all classes seen, or soft labels [batch, outputs].

        For text they are token ids [batch, answer], -100 where there is none. Importance is
        measured against them. Of an expanded batch, ids count the outputs of the extra head too,
        which follow those of the head.
        """

    @abstractmethod
    def metric_inputs(self, predicted: Any, batch: Batch) -> Mapping[str, Any]:
        """Return what the metric needs of each example: `predictions`, `references` and the like.

        predicted: what `learner.predict` or a classifier returned, logits [batch, outputs] or
        texts.
        """

    @abstractmethod
    def metric(self) -> Any:
        """Return an `evaluate.Metric` that needs no hub; its result has `score`, in percent."""

    @property
    def further_scores(self) -> Sequence[str]:
        """Return further results of the metric, in percent, that get matrices of their own."""
        return ()

    def read_inputs(self, images: Sequence[Any], texts: Sequence[Any], processor: Any) -> Batch:
        """Return a batch without labels, of images and texts that are not in the data."""
        raise ConfigError([f"task {self.name!r} cannot read inputs of your own"])

    def output_names(self) -> Sequence[str] | None:
        """Return what the outputs of the head stand for, None if they are only numbers."""
        return None

    def name_answers(self, predicted: Any) -> list[Any]:
        """Return predictions for a reader: the names or numbers of the likeliest outputs."""
        best = predicted.argmax(dim=-1).tolist()
        names = self.output_names()
        if names is None:
            return best
        return [names[place] for place in best]
