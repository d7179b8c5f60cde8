"""The rival of `mcit bench efcil`: class-incremental training as it is usually written."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mcit.consolidation import ConsolidationManager
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.runner.result import Tally
from mcit.task import Split, Task

WORKERS = 2
AHEAD = 2 * WORKERS  # batches that a DataLoader prepares in advance


class PlainImages(Dataset):
    """Images that are transformed one by one with Pillow, as torchvision does it."""

    def __init__(self, pixels: Tensor, labels: Tensor, task: ClassIncrementalTask, training: bool):
        self.pixels = pixels.permute(0, 2, 3, 1).numpy()  # [images, height, width, 3]
        self.labels, self.training = labels.tolist(), training
        self.mean, self.std = (
            torch.tensor(values).view(3, 1, 1) for values in (task.mean, task.std)
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.pixels[index])
        image = self.augment(image) if self.training else image
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return (tensor - self.mean) / self.std, self.labels[index]

    def augment(self, image: Image.Image) -> Image.Image:
        """A crop of the padded image, a flip by chance, another brightness."""
        padded = ImageOps.expand(image, 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = padded.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return ImageEnhance.Brightness(image).enhance(random.uniform(1 - 63 / 255, 1 + 63 / 255))


class PlainPipeline:
    """Trains and scores a copy of the learner, held by the same importance and anchor."""

    def __init__(
        self,
        learner: nn.Module,
        task: ClassIncrementalTask,
        manager: ConsolidationManager,
        batch: int,
        steps: int,
    ):
        self.learner, self.task, self.steps = learner, task, steps
        self.strength = manager.strength
        self.importance = {name: value.clone() for name, value in manager.importance.items()}
        self.anchor = {name: value.clone() for name, value in manager.anchor.items()}
        self.optimizer = _make_optimizer(learner, task)
        self.loaders = {"train": self._load("train", batch), "eval": self._load("eval", batch)}

    def _load(self, split: Split, batch: int) -> DataLoader:
        examples = self.task.examples(split)
        # in memory, as the bench made them
        pixels = cast(Tensor, examples.images.load_rows(examples.rows))
        images = PlainImages(pixels, examples.labels, self.task, split == "train")
        rounds = _Batches(len(images), batch, 1 + self.steps + AHEAD)
        return DataLoader(
            images, batch_sampler=rounds, num_workers=WORKERS, persistent_workers=True
        )

    def __enter__(self) -> PlainPipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.loaders.clear()  # ends the workers

    def train(self) -> tuple[float, Tally]:
        """Seconds of the round's steps, and of their parts; the workers are as far ahead at its end
        as at its start."""
        laps = Tally()
        self.learner.train()
        batches = iter(self.loaders["train"])
        self._step(batches, Tally())
        start = time.perf_counter()
        for _ in range(self.steps):
            self._step(batches, laps)
        seconds = time.perf_counter() - start
        laps["other"] = seconds - sum(laps.values())
        _drain(batches)
        return seconds, laps

    def _step(self, batches: Iterator, laps: Tally) -> None:
        lap = _Lap(laps)
        images, labels = next(batches)
        lap("data")
        logits = self.learner({"pixel_values": images}, self.task.head).logits
        lap("forward")
        known = self.task.span.known
        loss = F.cross_entropy(logits[:, known:], labels - known)
        lap("other")
        loss = loss + self.penalty()
        lap("penalty")
        self.optimizer.zero_grad()
        loss.backward()
        lap("backward")
        self.optimizer.step()
        lap("optimizer")
        loss.item(), logits.argmax(dim=1).eq(labels).sum().item()  # for the progress bar

    def penalty(self) -> Tensor:
        """The usual loop: a loss term over all parameters; a grown head has more rows."""
        loss = torch.zeros(())
        for name, parameter in self.learner.named_parameters():
            if name in self.importance:
                held = self.importance[name]
                loss = (
                    loss + torch.sum(held * (parameter[: len(held)] - self.anchor[name]) ** 2) / 2
                )
        return self.strength * loss

    @torch.no_grad()
    def score(self) -> tuple[float, Tally]:
        """Seconds of scoring as many batches."""
        self.learner.eval()
        batches = iter(self.loaders["eval"])
        self._count(batches)
        start = time.perf_counter()
        right = sum(self._count(batches) for _ in range(self.steps))
        seconds = time.perf_counter() - start
        _drain(batches)
        return seconds, Tally(right=right)

    def _count(self, batches: Iterator) -> int:
        images, labels = next(batches)
        logits = self.learner({"pixel_values": images}, self.task.head).logits
        return int(logits.argmax(dim=1).eq(labels).sum())


def _make_optimizer(learner: nn.Module, task: Task) -> torch.optim.Optimizer:
    recipe = task.recipe
    return torch.optim.SGD(
        learner.parameters(),
        recipe.learning_rate,
        recipe.momentum,
        weight_decay=recipe.weight_decay,
    )


class _Batches:
    """So many batches of shuffled indices, beginning again where the images end."""

    def __init__(self, images: int, batch: int, count: int):
        self.images, self.batch, self.count = images, batch, count

    def __iter__(self) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(self.count):
            if len(order) < self.batch:
                order += torch.randperm(self.images).tolist()
            yield [order.pop() for _ in range(self.batch)]

    def __len__(self) -> int:
        return self.count


class _Lap:
    """Adds the time since the last call to a part."""

    def __init__(self, laps: Tally):
        self.laps, self.last = laps, time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.laps[part] += now - self.last
        self.last = now


def _drain(batches: Iterator[Any]) -> None:
    """The workers rest while the other side is measured."""
    for _ in batches:
        pass
