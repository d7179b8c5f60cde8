"""`mcit bench efcil`: images per second of class-incremental training and scoring, against a pipeline written plainly.

Ours is what a run does: trainer, learner, method and the task's own batches. The reference is what most code does:
Pillow transforms image by image in two loader workers, the penalty as a loss term over all parameters, the network in
PyTorch's default layout. Both train the same ResNet-18 from the same weights, with the recipe of later tasks. Rounds
alternate and the median of their ratios counts, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mcit import models
from mcit.bench.plain import PlainPipeline
from mcit.config import ModelConfig, TrainingConfig, parse
from mcit.data.image_folders import StoredImages
from mcit.method import Method, Stage
from mcit.registry import find_method, find_task
from mcit.reports.formats import print_whole
from mcit.sequence import begin_task
from mcit.task import Task
from mcit.training import Trainer

GOALS = {"16": 1.5, "64": 1.15}  # by width, for training and scoring
PARTS = ("data", "forward", "backward", "penalty", "optimizer", "other")
CLASSES = 10  # of each of two tasks


@dataclass(frozen=True)
class Size:
    """How much is measured: images in a batch, batches in a round, rounds."""

    batch: int
    steps: int
    rounds: int


FULL = {16: Size(128, 8, 5), 64: Size(128, 2, 3)}
QUICK = {16: Size(32, 2, 3), 64: Size(16, 1, 3)}


def measure(quick: bool = False, sizes: dict[int, Size] | None = None) -> dict[str, Any]:
    """All figures by width; `quick` takes small batches and few of them."""
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "quick": quick}
    for width, size in (sizes or (QUICK if quick else FULL)).items():
        for name, value in measure_width(width, size).items():
            result.setdefault(name, {})[str(width)] = value
    return result


def measure_width(width: int, size: Size) -> dict[str, Any]:
    """Speedups, images per second of both sides, and where a training step's time goes."""
    torch.manual_seed(0)
    ours = OurPipeline(width, size)
    reference = PlainPipeline(
        _copy_plainly(ours.stage.learner, width),
        ours.stage.task,
        ours.method.manager,
        size.batch,
        size.steps,
    )
    with reference:
        train = _alternate(ours.train, reference.train, size)
        scoring = _alternate(ours.score, reference.score, size)
    return {
        "train_speedup": train.speedup,
        "eval_speedup": scoring.speedup,
        "train_images_per_second": {"ours": train.ours, "reference": train.reference},
        "eval_images_per_second": {"ours": scoring.ours, "reference": scoring.reference},
        "milliseconds_per_step": {
            side: {part: 1e3 * laps[part] / (size.rounds * size.steps) for part in PARTS}
            for side, laps in (("ours", train.our_laps), ("reference", train.reference_laps))
        },
    }


class OurPipeline:
    """The second task of a class-incremental run of ewc_dr, as `mcit run` trains and scores it."""

    def __init__(self, width: int, size: Size):
        tasks = make_tasks(size)
        self.trainer = Trainer(TrainingConfig(), Accelerator(), seed=1)
        self.trainer.begin_stage(0)
        learner = models.build(ModelConfig(name="resnet18", width=width)).to(
            self.trainer.accelerator.device
        )
        stage = Stage(
            learner, tasks, 0, 1, lambda task, split: self.trainer.loader(learner, task, split)
        )
        self.method: Method = parse(find_method("ewc_dr"), {"strength": 1e4})
        begin_task(stage, self.method)
        shared = {name: p for name, p in learner.named_parameters() if p.requires_grad}
        self.method.manager.consolidate(
            {name: 1e-4 * torch.rand_like(p) for name, p in shared.items()}
        )
        self.stage = replace(stage, index=1)
        begin_task(self.stage, self.method)

    def train(self) -> tuple[float, Counter]:
        """Seconds of an epoch's steps after the first, and of their parts."""
        laps: Counter = Counter()
        moments: list[float] = []

        def note(taken: int, total: int, optimizer: torch.optim.Optimizer) -> None:
            moments.append(time.perf_counter())
            if taken == 1:
                laps.clear()  # the first step is no measure: it makes the buffers of momentum, and it is logged

        with _watch(self.trainer, self.stage, self.method, laps):
            self.trainer.fit(self.stage, self.method, lambda entry: None, watch=note)
        seconds = moments[-1] - moments[0]
        laps["other"] = seconds - laps.total()
        return seconds, laps

    def score(self) -> tuple[float, Counter]:
        """Seconds of scoring the task."""
        start = time.perf_counter()
        self.trainer.evaluate(self.stage, self.stage.task)
        return time.perf_counter() - start, Counter()


def make_tasks(size: Size) -> list[Task]:
    """Two tasks of CIFAR-100's kind on random images; an epoch is one round of steps and the one before."""
    options = {"classes": 2 * CLASSES, "recipe": {"epochs": 1, "batch_size": size.batch}}
    tasks = find_task("cifar100").sequence(f"2x{CLASSES}", options, seed=1)
    counts = {"train": size.batch * (1 + size.steps), "eval": size.batch * size.steps}
    generator = torch.Generator().manual_seed(0)
    order = torch.tensor(tasks[0].part.order).view(2, CLASSES)
    for split, count in counts.items():
        pixels = torch.randint(
            0, 256, (2 * count, 3, 32, 32), dtype=torch.uint8, generator=generator
        )
        labels = torch.cat([classes[torch.arange(count) % CLASSES] for classes in order])
        tasks[0].part.pool[split] = StoredImages(pixels, labels)
    return tasks


def _copy_plainly(learner: nn.Module, width: int) -> nn.Module:
    """The same weights in a network of the default layout."""
    plain = copy.deepcopy(learner)
    plain.encoder = models.build(
        ModelConfig(name="resnet18", width=width, channels_last=False)
    ).encoder
    plain.encoder.load_state_dict(learner.encoder.state_dict())
    return plain


@dataclass(frozen=True)
class _Race:
    speedup: float
    ours: float  # images per second
    reference: float
    our_laps: Counter
    reference_laps: Counter


def _alternate(ours: Callable[[], tuple], reference: Callable[[], tuple], size: Size) -> _Race:
    """The median over rounds, after one that does not count."""
    ours(), reference()
    rounds = [(ours(), reference()) for _ in range(size.rounds)]
    images = size.batch * size.steps
    return _Race(
        statistics.median(theirs / mine for (mine, _), (theirs, _) in rounds),
        images / statistics.median(mine for (mine, _), _ in rounds),
        images / statistics.median(theirs for _, (theirs, _) in rounds),
        sum((laps for (_, laps), _ in rounds), Counter()),
        sum((laps for _, (_, laps) in rounds), Counter()),
    )


@contextmanager
def _watch(trainer: Trainer, stage: Stage, method: Method, laps: Counter) -> Iterator[None]:
    """Add up where the time of `fit` goes: its own parts, timed from outside."""

    def timed(call: Callable, part: str) -> Callable:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            found = call(*arguments, **options)
            laps[part] += time.perf_counter() - start
            return found

        return wrapper

    task, started = stage.task, []
    # Instances shadow their own methods for as long as this lasts. `forward` comes in as hooks, because the
    # Accelerator wraps the method itself.
    changed = [
        (task.part.pool["train"], "fetch", "data"),
        (task, "collate", "data"),
        (method, "before_clip", "penalty"),
        (trainer.accelerator, "backward", "backward"),
    ]
    for owner, name, part in changed:
        object.__setattr__(
            owner, name, timed(getattr(owner, name), part)
        )  # some of them are frozen

    def begin(*_: Any) -> None:
        started.append(time.perf_counter())

    def end(part: str) -> Callable:
        return lambda *_: laps.update({part: time.perf_counter() - started.pop()})

    learner = stage.learner
    handles = [
        learner.register_forward_pre_hook(begin),
        learner.register_forward_hook(end("forward")),
    ]
    handles += [
        register_optimizer_step_pre_hook(begin),
        register_optimizer_step_post_hook(end("optimizer")),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for owner, name, _ in changed:
            object.__delattr__(owner, name)


def print_result(result: dict[str, Any]) -> None:
    """The speedups, each with its goal and whether it was met, and where the time goes."""
    console = Console(highlight=False)
    table = Table(title=f"mcit bench efcil, {result['threads']} threads", title_justify="left")
    for name in ("images per second", "ours", "reference", "speedup", "goal", "met"):
        table.add_column(name, justify="left" if name == "images per second" else "right")
    missed = []
    for kind, label in (("train", "training"), ("eval", "scoring")):
        for width, speedup in result[f"{kind}_speedup"].items():
            rates = result[f"{kind}_images_per_second"][width]
            goal = GOALS.get(width)
            met = "" if goal is None else "yes" if speedup >= goal else "NO"
            missed += [f"{label} at width {width}"] if met == "NO" else []
            cells = [f"{rates[side]:.1f}" for side in ("ours", "reference")]
            limit = "" if goal is None else f"at least {goal:g}"
            table.add_row(
                f"{label}, ResNet-18 of width {width}", *cells, f"{speedup:.2f}", limit, met
            )
    print_whole(table, console)
    print_whole(_tabulate_steps(result["milliseconds_per_step"]), console)
    if missed:
        console.print(f"Goals missed on this run: {', '.join(missed)}.", soft_wrap=True)


def _tabulate_steps(steps: dict[str, dict[str, dict[str, float]]]) -> Table:
    table = Table(title="where a training step goes, ms", title_justify="left")
    for name in ("width", "side", *PARTS, "all"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for width, sides in steps.items():
        for side, parts in sides.items():
            cells = [f"{parts[part]:.1f}" for part in PARTS]
            table.add_row(width, side, *cells, f"{sum(parts.values()):.1f}")
    return table
