"""`mcit run --dry-run`: every hook is called on a few batches, and the cost is estimated.

What comes first also warms up, so that it does not stand for what follows: the first step of a task
is left out of the estimate, and the first batch of a pass over data is in it once.

If the weights of a generative model are not on this machine, none are fetched: the cost is
estimated from its configuration (mcit/models/estimate.py).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.optim import Optimizer

from mcit import models
from mcit.memory import begin_peak, read_peak, read_peak_of_life
from mcit.method import Stage
from mcit.models.backbone import describe_parameters
from mcit.models.estimate import Footprint, Speed, build_empty, has_weights
from mcit.models.generative import DTYPES, GenerativeLearner
from mcit.parallel.fsdp import wants_sharding
from mcit.parallel.global_batch import process_rank
from mcit.parallel.loading import load_examples
from mcit.reports.formats import format_seconds, print_whole
from mcit.runner.plan import Plan
from mcit.session import Session
from mcit.task import Task, Track, count_bytes

# steps that are taken of each task; the first one also warms up
STEPS = 3
# batches of every pass over data
BATCHES = 2
# examples whose tokens are counted if there are no weights to take steps with
SAMPLED = 16
COLUMNS = (
    "task",
    "train",
    "eval",
    "epochs",
    "batch",
    "steps",
    "learning rate",
    "MB/batch",
    "loss",
    "s/step",
    "minutes",
)
# GiB at the peak of each kind of work
PEAKS = ("step GiB", "end GiB", "scoring GiB")


@dataclass(frozen=True)
class Estimate:
    """What a few batches say of a task: bytes, the last loss, and seconds of each kind of work."""

    task: Task
    train: int
    evaluation: int
    steps: int
    # of the tensors of a batch, which leave the loader's workers for the device
    batch_bytes: int
    loss: float
    step_seconds: float
    total_seconds: float
    # bytes at the peak of the steps, of the end of the task and of scoring; None if unknown
    peaks: tuple[int | None, ...]
    # bytes of the file of the task's importance
    importance: int

    def cells(self) -> list[str]:
        recipe = self.task.recipe
        numbers = (self.train, self.evaluation, recipe.epochs, recipe.batch_size, self.steps)
        return [
            self.task.name,
            *(str(number) for number in numbers),
            f"{recipe.learning_rate:g}",
            f"{self.batch_bytes / 1e6:.3g}",
            f"{self.loss:.3f}",
            f"{self.step_seconds:.3f}",
            f"{self.total_seconds / 60:.1f}",
            *(_to_gib(peak) for peak in self.peaks if peak is not None),
        ]


class _Clock:
    """Notes the moment after every step, and the loss."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]
        self.loss = math.nan

    def after_step(self, taken: int, total: int, optimizer: Optimizer) -> None:
        self.times.append(time.perf_counter())

    def log(self, entry: dict) -> None:
        self.loss = entry["loss"]

    def seconds(self) -> float:
        """Return the seconds of a step, the first one left out if there are others."""
        spans = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        if not spans:
            return 0.0
        counted = spans[1:] or spans
        return sum(counted) / len(counted)


class PassClock:
    """Times passes over data: the first batch of each, and by themselves those that follow."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        # seconds and examples of batches that follow a first one
        self.seconds = 0.0
        self.examples = 0
        # examples of first batches
        self.first = 0
        self._last = self.begun

    def after_batch(self, number: int, examples: int) -> None:
        """A batch of a pass was read and worked on."""
        now = time.perf_counter()
        if number:
            self.seconds += now - self._last
            self.examples += examples
        else:
            self.first += examples
        self._last = now

    def estimate(self, examples: int) -> float:
        """Return how long the work since the beginning takes with so many examples."""
        total = time.perf_counter() - self.begun
        tried = self.first + self.examples
        if not tried:
            return total
        if not self.examples:
            # the data have one batch
            return total * max(1.0, examples / tried)
        others = max(0, examples - self.first)
        return total - self.seconds + others * self.seconds / self.examples


def rehearse(plan: Plan, main_process: bool) -> None:
    """Go through the tasks with a network and a method that are thrown away, and print an estimate.

    A few steps of each task are taken, its end and its scoring are tried on two batches, so that no
    hook is called and no memory asked for the first time hours later. All processes of a run must
    call it.
    """
    if plan.track is Track.TEXT and not has_weights(models.find_place(plan.config.model)):
        if main_process:
            _print_without_weights(plan)
        return
    thrown_away = replace(
        plan, method=copy.deepcopy(plan.method), answering=copy.deepcopy(plan.answering)
    )
    session = Session(thrown_away, batches=BATCHES)
    estimates = []
    for index in range(len(plan.tasks)):
        stage = session.stage(index)
        session.begin(stage)
        estimates.append(_try_task(session, stage))
    if main_process:
        _print_estimates(session, estimates)
        print("a few steps and the end of every task were tried; nothing was kept or written")


def _try_task(session: Session, stage: Stage) -> Estimate:
    """Return an estimate from a few steps, the method's work on a few batches, and its scores."""
    task = stage.task
    clock = _Clock()
    begin_peak()
    session.fit(stage, log=clock.log, on_step=clock.after_step, limit=STEPS)
    peaks = [read_peak()]
    train = len(task.examples("train"))
    batch_size = task.recipe.batch_size
    steps = task.recipe.epochs * math.ceil(train / batch_size)
    begin_peak()
    concluding, importance = _try_end(session, stage)
    peaks.append(read_peak())
    begin_peak()
    scoring = _time_scoring(session, stage)
    peaks.append(read_peak())
    refreshing = 0.0
    if session.trainer.config.refresh_batchnorm:
        # forward passes over the training split only
        refreshing = math.ceil(train / batch_size) * clock.seconds() / 3
    return Estimate(
        task=task,
        train=train,
        evaluation=len(task.examples("eval")),
        steps=steps,
        batch_bytes=_measure_batch(stage),
        loss=clock.loss,
        step_seconds=clock.seconds(),
        total_seconds=steps * clock.seconds() + concluding + scoring + refreshing,
        peaks=tuple(peaks),
        importance=importance,
    )


def _measure_batch(stage: Stage) -> int:
    """Return the bytes of a training batch of the task, all processes' rows together."""
    loader = stage.load(stage.task, "train")
    return count_bytes(loader.collate(load_examples(loader.dataset, loader.batches[0])))


def _try_end(session: Session, stage: Stage) -> tuple[float, int]:
    """Return the seconds that the end of a task takes, about, and the bytes of its importance."""
    clock = PassClock()
    session.trainer.watch = clock.after_batch
    outcome = session.conclude(stage)
    session.trainer.watch = None
    read = session.method.examples_read(stage)
    if session.answering.needs:
        # features of all training examples
        read += len(stage.task.examples("train"))
    values = {} if outcome.importance is None else outcome.importance.values
    return clock.estimate(read), sum(tensor.nbytes for tensor in values.values())


def _time_scoring(session: Session, stage: Stage) -> float:
    """Return about how many seconds scoring takes at this stage: that of all tasks seen."""
    total = 0.0
    for task in stage.tasks[: stage.index + 1]:
        clock = PassClock()
        session.trainer.watch = clock.after_batch
        session.try_scoring(stage, task, BATCHES)
        session.trainer.watch = None
        total += clock.estimate(len(task.examples(session.trainer.config.split)))
    session.method.after_scoring(stage)
    return total


def _print_estimates(session: Session, estimates: Sequence[Estimate]) -> None:
    plan = session.plan
    config = plan.config
    console = Console(highlight=False)
    for task in plan.tasks:
        for line in task.data_notes(session.learner.processor):
            console.print(line, soft_wrap=True, markup=False)
    title = Text(f"{config.method.name} on {config.model.name}")
    table = Table(title=title, title_justify="left")
    known = None not in estimates[0].peaks
    for name in (*COLUMNS, *(PEAKS if known else ())):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    for estimate in estimates:
        table.add_row(*(Text(cell) for cell in estimate.cells()))
    print_whole(table, console)
    console.print(f"method: {plan.describe_method()}", soft_wrap=True, markup=False)
    total = format_seconds(sum(estimate.total_seconds for estimate in estimates))
    counts = describe_parameters(session.learner)
    optimizer = 4 if plan.tasks[-1].recipe.optimizer == "sgd" else 8
    memory = [
        f"{_find_highest(estimates)} GiB at the peak of these batches",
        f"{optimizer * counts['trained'] / 2**30:.2f} GiB of it for the optimizer",
    ]
    held = session.plan.bytes_held()
    if held:
        memory.append(f"{held / 2**30:.2f} GiB held by the method")
    console.print(
        f"{counts['weights'] / 1e6:.2f}M parameters, {counts['trained'] / 1e6:.2f}M trained in the "
        f"last task; about {total} of fitting, importance and scoring on this machine; "
        f"memory: {', '.join(memory)}",
        soft_wrap=True,
    )
    files = [estimate.importance for estimate in estimates if estimate.importance]
    if files and config.checkpoint.importance:
        console.print(
            f"disk: {_to_gib(sum(files))} GiB for the importance of {len(files)} tasks, a file "
            "each (checkpoint.importance=false keeps none)",
            soft_wrap=True,
        )


def _print_without_weights(plan: Plan) -> None:
    """Print what a run would take, from the model's configuration and a few examples."""
    config = plan.config
    processes = process_rank()[1]
    learner = build_empty(config.model)
    footprint = Footprint.of(learner, config.model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    speed = Speed.measure(device, DTYPES[config.model.dtype])
    console = Console(highlight=False)
    for line in learner.encoder.describe_adapters():
        console.print(line, soft_wrap=True, markup=False)
    title = Text(f"{config.method.name} on {config.model.name}, from its configuration alone")
    table = Table(title=title, title_justify="left")
    for name in ("task", "train", "eval", "epochs", "batch", "tokens", "steps", "s/step", "hours"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    hours = 0.0
    activations = 0
    for index, task in enumerate(plan.tasks):
        task.fit_to(learner.processor)
        tokens, answer = _measure_rows(task, learner)
        size = math.ceil(task.recipe.batch_size / config.training.accumulate / processes)
        activations = max(activations, footprint.activation_bytes(size, tokens, answer))
        train = len(task.examples("train"))
        scored = len(task.examples(config.training.split))
        steps = task.recipe.epochs * math.ceil(train / task.recipe.batch_size)
        operations = footprint.step_operations(task.recipe.batch_size, tokens)
        step_seconds = speed.train(operations) / processes
        batch = config.training.eval_batch_size or task.eval_batch_size
        # each process scores batches of that size
        batches = math.ceil(scored / batch / processes)
        scoring = batches * speed.generate(footprint, batch, tokens, task.head.new_tokens)
        # a task is scored before the first task, after its own and after every later one
        times = 1 + len(plan.tasks) - index
        spent = (steps * step_seconds + times * scoring) / 3600
        hours += spent
        numbers = (train, scored, task.recipe.epochs, task.recipe.batch_size, tokens, steps)
        cells = [task.name, *(str(number) for number in numbers)]
        table.add_row(*(Text(cell) for cell in (*cells, f"{step_seconds:.3g}", f"{spent:.3g}")))
    print_whole(table, console)
    parts = footprint.held_bytes(
        plan.tasks[-1].recipe.optimizer,
        plan.method.bytes_per_weight,
        parts=processes if wants_sharding() else 1,
        adapted=config.model.lora.rank > 0,
    )
    parts["activations"] = activations
    total = sum(parts.values()) / 2**30
    listed = ", ".join(f"{bytes_ / 2**30:.2f} for {name}" for name, bytes_ in parts.items())
    each = "" if processes == 1 else f" of each of {processes} processes"
    console.print(
        f"{footprint.weights / 1e6:.2f}M parameters, {footprint.trained / 1e6:.2f}M trained",
        f"memory{each}: about {total:.2f} GiB ({listed})",
        f"time: about {hours:.3g} hours of fitting and scoring on this machine's {device.type}, "
        f"which multiplies matrices at {speed.operations / 1e12:.3g} TFLOP/s",
        "the weights are not on this machine: nothing was loaded, downloaded or written",
        sep="\n",
        soft_wrap=True,
    )


def _measure_rows(task: Task, learner: GenerativeLearner) -> tuple[int, int]:
    """Return the tokens of the longest of a few rows of a task, and of the longest answer."""
    examples = task.examples("train")
    places = range(0, len(examples), max(1, len(examples) // SAMPLED))
    batch = task.collate([examples[place] for place in places], learner.processor)
    return batch["input_ids"].shape[1], batch["labels"].shape[1]


def _find_highest(estimates: Sequence[Estimate]) -> str:
    """Return the highest peak of all tasks, in GiB."""
    peaks = [peak for estimate in estimates for peak in estimate.peaks if peak is not None]
    return _to_gib(max(peaks) if peaks else read_peak_of_life())


def _to_gib(count: int) -> str:
    return f"{count / 2**30:.2f}"
