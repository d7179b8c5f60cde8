"""`mcit bench efcil`: class-incremental training and scoring against a plain pipeline.

Ours is what a run does: trainer, learner, method and the task's own batches. The reference is what
most code does: Pillow transforms image by image in two loader workers, the penalty as a loss term
over all parameters, the network in PyTorch's default layout. Both train the same ResNet-18 from the
same weights, with the recipe of later tasks. Where the processor multiplies in bfloat16, ours is
measured in that precision too, against the same reference in single precision. Rounds alternate and
the median of their ratios counts, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mcit.bench.measuring import Goal, is_met
from mcit.bench.plain import PlainPipeline
from mcit.config.schema import ModelConfig, RunConfig, TrainingConfig
from mcit.data.class_incremental import ClassIncrementalTask, ImagePool
from mcit.data.image_folders import StoredImages
from mcit.method import Method, Stage
from mcit.methods.ewc_dr import EwcDr
from mcit.models.learner import Learner
from mcit.models.resnet import build_resnet
from mcit.parallel.launch import AUTO, choose_precision
from mcit.registry import find_task
from mcit.reports.formats import print_whole
from mcit.runner.plan import Plan
from mcit.runner.result import Tally
from mcit.session import Session
from mcit.training.trainer import Trainer

# by width, for training and scoring in either precision
GOALS: dict[str, Goal] = {"16": ("at least", 2.0), "64": ("at least", 2.0)}
PARTS = ("data", "forward", "backward", "penalty", "optimizer", "other")
# of each of two tasks
CLASSES = 10
# ours; the reference has single precision always
Precision = Literal["no", "bf16"]
KINDS = {"train": "training", "eval": "scoring"}
# what is measured in each precision, by width
MEASURED = (
    "train_speedup",
    "eval_speedup",
    "train_images_per_second",
    "eval_images_per_second",
    "milliseconds_per_step",
)
# how the names of what is measured end, and how the labels do
PRECISIONS = {"": "", "_bf16": ", bf16"}


@dataclass(frozen=True)
class Size:
    """How much is measured: images in a batch, batches in a round, rounds."""

    batch: int
    steps: int
    rounds: int


# returns the seconds of a round, and of its parts
Round = Callable[[], tuple[float, Tally]]
FULL = {16: Size(128, 8, 5), 64: Size(128, 2, 3)}
QUICK = {16: Size(32, 2, 3), 64: Size(16, 1, 3)}


def measure(quick: bool = False, sizes: dict[int, Size] | None = None) -> dict[str, Any]:
    """Return all results by width; `quick` takes small batches and few of them.

    Names that end in `_bf16` are without a width where the processor would emulate bfloat16.
    """
    sizes = sizes or (QUICK if quick else FULL)
    has_bf16 = choose_precision(AUTO) == "bf16"
    # a process has one precision at a time: the first races end before the others begin
    single = race_widths(sizes, "no")
    short = race_widths(sizes if has_bf16 else {}, "bf16")
    return {
        "threads": torch.get_num_threads(),
        "quick": quick,
        **single,
        **{f"{name}_bf16": by_width for name, by_width in short.items()},
    }


def race_widths(sizes: Mapping[int, Size], precision: Precision) -> dict[str, dict[str, Any]]:
    """Return what is measured in a precision, by name and width."""
    found: dict[str, dict[str, Any]] = {name: {} for name in MEASURED}
    for width, size in sizes.items():
        for name, value in race_width(width, size, precision).items():
            found[name][str(width)] = value
    return found


def race_width(width: int, size: Size, precision: Precision) -> dict[str, Any]:
    """Return speedups, images per second of both sides, and where a training step's time goes."""
    torch.manual_seed(0)
    ours = OurPipeline(width, size, precision)
    reference = PlainPipeline(
        _copy_plainly(ours.stage.learner, width),
        ours.task,
        ours.method.active_manager,
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

    def __init__(self, width: int, size: Size, precision: Precision = "no"):
        config = RunConfig(
            model=ModelConfig(name="resnet18", width=width),
            training=TrainingConfig(mixed_precision=precision),
        )
        tasks = make_tasks(size)
        self.task = tasks[1]
        self.method = EwcDr(strength=1e4)
        plan = Plan(config, tasks, self.method, tasks[0].track, embedded=False)
        session = Session(plan)
        self.trainer = session.trainer
        first = session.stage(0)
        session.begin(first)
        importance = {}
        for name, parameter in session.learner.named_parameters():
            if parameter.requires_grad:
                importance[name] = 1e-4 * torch.rand_like(parameter)
        self.method.active_manager.consolidate(importance)
        self.stage = session.stage(1)
        session.begin(self.stage)

    def train(self) -> tuple[float, Tally]:
        """Seconds of an epoch's steps after the first, and of their parts."""
        laps = Tally()
        moments: list[float] = []

        def note(taken: int, total: int, optimizer: torch.optim.Optimizer) -> None:
            moments.append(time.perf_counter())
            if taken == 1:
                # the first step is no measure: it makes the buffers of momentum, and it is logged
                laps.clear()

        with _watch(self.trainer, self.stage, self.method, laps):
            self.trainer.fit(self.stage, self.method, log=_ignore, on_step=note)
        seconds = moments[-1] - moments[0]
        laps["other"] = seconds - sum(laps.values())
        return seconds, laps

    def score(self) -> tuple[float, Tally]:
        """Seconds of scoring the task."""
        start = time.perf_counter()
        self.trainer.evaluate(self.stage, self.stage.task)
        return time.perf_counter() - start, Tally()


def make_tasks(size: Size) -> list[ClassIncrementalTask]:
    """Two tasks like CIFAR-100's on random images; an epoch is one round of steps and one more."""
    options = {"classes": 2 * CLASSES, "recipe": {"epochs": 1, "batch_size": size.batch}}
    counts = {"train": size.batch * (1 + size.steps), "eval": size.batch * size.steps}
    generator = torch.Generator().manual_seed(0)
    cls: Any = find_task("cifar100")
    order = torch.tensor(cls(classes=2 * CLASSES).part.order).view(2, CLASSES)
    images = {}
    for split, count in counts.items():
        shape = (2 * count, 3, 32, 32)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        labels = torch.cat([classes[torch.arange(count) % CLASSES] for classes in order])
        images[split] = StoredImages(pixels, labels)
    return cls.sequence(f"2x{CLASSES}", options, seed=1, pool=ImagePool(**images))


def _ignore(entry: Mapping[str, Any]) -> None:
    pass


def _copy_plainly(learner: Learner, width: int) -> Learner:
    """The same weights in a network of the default layout."""
    plain = copy.deepcopy(learner)
    plain.encoder = build_resnet(width, "cifar", channels_last=False)
    plain.encoder.load_state_dict(learner.encoder.state_dict())
    return plain


@dataclass(frozen=True)
class _Race:
    speedup: float
    ours: float  # images per second
    reference: float
    our_laps: Tally
    reference_laps: Tally


def _alternate(ours: Round, reference: Round, size: Size) -> _Race:
    """The median over rounds, after one that does not count."""
    ours(), reference()
    rounds = [(ours(), reference()) for _ in range(size.rounds)]
    images = size.batch * size.steps
    return _Race(
        statistics.median(theirs / mine for (mine, _), (theirs, _) in rounds),
        images / statistics.median(mine for (mine, _), _ in rounds),
        images / statistics.median(theirs for _, (theirs, _) in rounds),
        _add_up([laps for (_, laps), _ in rounds]),
        _add_up([laps for _, (_, laps) in rounds]),
    )


def _add_up(rounds: list[Tally]) -> Tally:
    total = Tally()
    for laps in rounds:
        for part, seconds in laps.items():
            total[part] += seconds
    return total


@contextmanager
def _watch(trainer: Trainer, stage: Stage, method: Method, laps: Tally) -> Iterator[None]:
    """Add up where the time of `fit` goes: its own parts, timed from outside."""

    def timed(call: Callable, part: str) -> Callable:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            found = call(*arguments, **options)
            laps[part] += time.perf_counter() - start
            return found

        return wrapper

    task, started = stage.task, []
    # Instances shadow their own methods for as long as this lasts. `forward` comes in as hooks,
    # because the Accelerator wraps the method itself.
    changed = [
        (task, "augment", "data"),
        (task, "collate", "data"),
        (method, "on_gradients_ready", "penalty"),
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
    for compared in list_compared(result):
        rates = (f"{compared.ours:.1f}", f"{compared.reference:.1f}")
        verdict = _judge(compared.speedup, compared.goal)
        table.add_row(compared.label, *rates, f"{compared.speedup:.2f}", *verdict)
        if "NO" in verdict:
            missed.append(compared.label)
    print_whole(table, console)
    table = Table(title="where a training step goes, ms", title_justify="left")
    for name in ("width", "side", *PARTS, "all"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for width, side, milliseconds in list_steps(result):
        table.add_row(width, side, *(f"{each:.1f}" for each in milliseconds))
    print_whole(table, console)
    if missed:
        console.print(f"Goals missed on this run: {'; '.join(missed)}.", soft_wrap=True)


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what was measured, the speedup and its goal, if it has one."""
    for compared in list_compared(result):
        yield compared.label, compared.speedup, compared.goal


@dataclass(frozen=True)
class Compared:
    """A speedup, with images per second of both sides."""

    label: str
    ours: float
    reference: float
    speedup: float
    goal: Goal | None


def list_compared(result: dict[str, Any]) -> Iterator[Compared]:
    """Yield all speedups: training before scoring, single precision before bf16."""
    for kind, label in KINDS.items():
        for suffix, remark in PRECISIONS.items():
            rates = result[f"{kind}_images_per_second{suffix}"]
            for width, speedup in result[f"{kind}_speedup{suffix}"].items():
                yield Compared(
                    f"{label}, ResNet-18 of width {width}{remark}",
                    rates[width]["ours"],
                    rates[width]["reference"],
                    speedup,
                    GOALS.get(width),
                )


def list_steps(result: dict[str, Any]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield width, side and milliseconds of a training step: of each part, and of all."""
    for suffix, remark in PRECISIONS.items():
        for width, sides in result[f"milliseconds_per_step{suffix}"].items():
            for side, parts in sides.items():
                # the reference of bf16 is the one before, measured once more
                if side == "ours" or not remark:
                    milliseconds = [parts[part] for part in PARTS]
                    yield width, f"{side}{remark}", [*milliseconds, sum(milliseconds)]


def _judge(value: float, goal: Goal | None) -> tuple[str, str]:
    """Return a goal in words, and whether it was met."""
    if goal is None:
        return "", ""
    direction, limit = goal
    return f"{direction} {limit:g}", "yes" if is_met(value, goal) else "NO"
