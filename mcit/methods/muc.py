"""MUC: several classifiers for each task, which disagree about images from elsewhere (MUC-LwF).

Liu et al., More classifiers, less forgetting: a generic multi-classifier paradigm for incremental
learning, ECCV 2020, https://github.com/liuyudut/MUC

In task t, from 0    loss = (1 - a) CE(new) + a (KD_T(old classes) + KD_T(side)), a = t / (t + 1)
                     KD_T(side): mean over the side classifiers of the task before
After a task         the side classifiers of its classes, on features of the network as it is:
                     sum_i CE_i - sum_{i<j} mean |softmax_i - softmax_j| on images from elsewhere

The images from elsewhere, SVHN in the paper, are any folder of images (`method.outside=FOLDER`) or
the drawings that ship with mcit (`method.outside=shapes`); results depend on them, and tables name
them. Differs from the public code: side classifiers learn from features of images without
augmentation, read once, and rest while the next task is learned; tasks may have different numbers
of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mcit.class_statistics import Features, find_device, read_features
from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.data.class_incremental import LabeledImages
from mcit.data.images import open_image
from mcit.embedded.shapes import draw_shapes
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage
from mcit.methods.lwf import distill
from mcit.models.teacher import Teacher, eval_mode
from mcit.parallel.loading import cut
from mcit.task import Batch, Output, Task, Track, move

SHAPES = "shapes"
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
# how side classifiers are learned, in the public code
RATE, MOMENTUM, DECAY, BATCH = 0.1, 0.9, 5e-4, 128
# fractions of the epochs after which the rate is divided by 10
MILESTONES = (0.5, 0.75, 0.875)


@dataclass
class Muc(Method):
    """Distillation of the head and of side classifiers."""

    name = "muc"
    first_task_is_finetuning = True
    outside: str | None = option(
        None, help="images from elsewhere: a folder, or `shapes` for the drawings that ship"
    )
    classifiers: int = option(3, help="side classifiers of each task")
    epochs: int = option(80, help="epochs in which side classifiers learn")
    temperature: float = option(2.0, help="softens the probabilities that are distilled")
    # [classifiers, new classes, width] and [classifiers, new classes] of the task before
    side: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    old: Teacher | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        for name, count in (("classifiers", self.classifiers), ("epochs", self.epochs)):
            if count < 1:
                problems.append(f"method.{name} must be at least 1, found {count}")
        if not self.temperature > 0:
            problems.append(f"method.temperature must be above 0, found {self.temperature:g}")
        if problems:
            raise ConfigError(problems)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is not Track.CLASSES:
            return [
                "method 'muc' is for class-incremental orders such as shapes:5x4, whose tasks "
                "share one head; for tasks with heads of their own use 'lwf'"
            ]
        if self.outside is None:
            return [
                "method 'muc' needs images from elsewhere: set method.outside to a folder of "
                f"images, or to {SHAPES!r} for the drawings that ship"
            ]
        if self.outside == tasks[0].dataset:
            return [
                f"method.outside is {self.outside!r}, the data set that is being learned: name "
                f"another one"
            ]
        if self.outside != SHAPES and not list_images(Path(self.outside)):
            kinds = ", ".join(SUFFIXES)
            return [f"method.outside: {self.outside!r} is not a folder with images ({kinds})"]
        return []

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.old = Teacher(stage.learner) if stage.index > 0 else None
        return ()

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        learned = task.loss(output.logits, batch)
        span = stage.task.span
        if self.old is None or self.side is None or span is None:
            return learned
        taught = self.old(batch, stage.task.head)
        main = distill(
            output.logits[:, : span.known], taught.logits[:, : span.known], self.temperature
        )
        given = answer_side(self.side, output.features)
        wanted = answer_side(self.side, taught.features)
        side = distill_side(given, wanted, self.temperature)
        share = stage.index / (stage.index + 1)
        return (1 - share) * learned + share * (main + side)

    def end_task(self, stage: Stage) -> Outcome:
        if not stage.later or stage.task.span is None:
            return Outcome()
        inside = read_features(stage.learner, stage.task, stage.load(stage.task, "plain"))
        inside = Features(inside.values, inside.labels - stage.task.span.known)
        generator = torch.Generator().manual_seed(stage.seed + 1009 * stage.index)
        outside = self._read_outside(stage, len(inside.values), generator)
        self.side = self.fit_side(inside, outside, generator)
        return Outcome()

    def fit_side(
        self, inside: Features, outside: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return side classifiers of the task's features against features from elsewhere."""
        width = inside.values.shape[1]
        classes = int(inside.labels.max()) + 1
        weight = torch.randn(self.classifiers, classes, width, generator=generator) / width**0.5
        weight.requires_grad_()
        bias = torch.zeros(self.classifiers, classes, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        for epoch in range(self.epochs):
            passed = sum(epoch >= part * self.epochs for part in MILESTONES)
            optimizer.param_groups[0]["lr"] = RATE * 0.1**passed
            order = torch.randperm(len(inside.values), generator=generator)
            for rows in order.split(BATCH):
                drawn = torch.randint(len(outside), (len(rows),), generator=generator)
                known = answer_side((weight, bias), inside.values[rows])
                unknown = answer_side((weight, bias), outside[drawn])
                loss = compare_side(known, inside.labels[rows], unknown)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return weight.detach(), bias.detach()

    @torch.no_grad()
    def _read_outside(self, stage: Stage, count: int, generator: torch.Generator) -> Tensor:
        """Return features [images, width] of as many images from elsewhere as there are."""
        task, learner = stage.task, stage.learner
        example = cast(LabeledImages, task.examples("plain")[0])
        size = (example.pixels.shape[-1], example.pixels.shape[-2])
        found = []
        with eval_mode(learner):
            for part in cut(self._draw_outside(count, generator), task.recipe.batch_size):
                images = [_open(picture).resize(size) for picture in part]
                batch = task.read_inputs(images, [""] * len(images), learner.processor)
                features = learner(move(batch, find_device(learner)), task.head).features
                found.append(features.float().cpu())
        return torch.cat(found)

    def _draw_outside(self, count: int, generator: torch.Generator) -> list[Path | Tensor]:
        """Return some images from elsewhere, as files or as pixels."""
        available: Sequence[Path | Tensor]
        if self.outside == SHAPES:
            available = draw_shapes("train")[0].unbind()
        else:
            available = list_images(Path(str(self.outside)))
        chosen = torch.randperm(len(available), generator=generator)[:count].tolist()
        return [available[place] for place in chosen]

    def state_dict(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {}
        if self.side is not None:
            state["weight"], state["bias"] = self.side
        if self.old is not None:
            state["old"] = self.old.state_dict()
        return state

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.side = (state["weight"], state["bias"]) if "weight" in state else None
        self.old = None
        if "old" in state:
            self.old = Teacher.from_state_dict(stage.learner, state["old"])

    def describe(self) -> str:
        return (
            f"distillation with {self.classifiers} side classifiers per task (MUC): "
            f"images from elsewhere: {self.outside}"
        )

    def bytes_held(self) -> int:
        held = sum(tensor.nbytes for tensor in self.side or ())
        return held + (0 if self.old is None else self.old.bytes_held())


def list_images(folder: Path) -> list[Path]:
    """Return the images in a folder and those below it, in a fixed order; none if there is none."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def _open(picture: Path | Tensor) -> Image.Image:
    if isinstance(picture, Path):
        return open_image(picture)
    return Image.fromarray(picture.permute(1, 2, 0).numpy())


def answer_side(side: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
    """Return the logits [batch, classifiers, classes] of side classifiers."""
    weight, bias = (tensor.to(features) for tensor in side)
    return torch.einsum("bd,kcd->bkc", features, weight) + bias


def distill_side(given: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return the distillation of logits [batch, classifiers, classes], a mean over classifiers."""
    return distill(given.flatten(0, 1), wanted.flatten(0, 1), temperature)


def compare_side(known: Tensor, labels: Tensor, unknown: Tensor) -> Tensor:
    """Return the loss of side classifiers: right about the task, and at odds elsewhere."""
    right = sum(F.cross_entropy(logits, labels) for logits in known.unbind(dim=1))
    answers = unknown.softmax(dim=2).unbind(dim=1)
    apart = sum((one - other).abs().mean() for one, other in combinations(answers, 2))
    return torch.as_tensor(right - apart)
