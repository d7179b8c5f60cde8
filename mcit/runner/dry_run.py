"""A run without the running: everything is resolved, a batch of each task goes through, and the cost is estimated."""

from __future__ import annotations

import copy
import math
import resource
import sys
import time
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils.data import DataLoader

from mcit.method import Method, Stage
from mcit.methods._consolidating import Consolidating
from mcit.parallel.shares import budget
from mcit.reports.answer import format_seconds
from mcit.reports.tables import print_whole
from mcit.sequence import Plan, begin_task, build_learner
from mcit.task import Task
from mcit.training import Trainer


def show(plan: Plan) -> None:
    """Print the plan with an estimate of time and memory, from one real batch of each task."""
    config = plan.config
    trainer = Trainer(
        config.training, Accelerator(mixed_precision=config.training.mixed_precision), config.seed
    )
    trainer.begin_stage(0)
    learner = build_learner(plan).to(trainer.accelerator.device)
    table = Table(title=Text(f"{config.method.name} on {config.model.name}"), title_justify="left")
    for name in (
        "task",
        "train",
        "eval",
        "epochs",
        "batch",
        "steps",
        "learning rate",
        "loss",
        "s/step",
        "minutes",
    ):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    total = 0.0
    method = copy.deepcopy(plan.method)
    for index, task in enumerate(plan.tasks):
        stage = Stage(
            learner,
            plan.tasks,
            index,
            config.seed,
            lambda task, split: trainer.loader(learner, task, split),
        )
        begin_task(stage, method)
        row, seconds = _try_task(stage, trainer, method)
        total += seconds
        table.add_row(*map(Text, row), f"{seconds / 60:.1f}")
    console = Console(highlight=False)
    for line in [line for task in plan.tasks for line in task.notices(learner.processor)]:
        console.print(line, soft_wrap=True, markup=False)
    print_whole(table, console)
    weights = sum(p.numel() for p in learner.parameters())
    trained = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    console.print(f"method: {plan.method.describe()}", soft_wrap=True, markup=False)
    console.print(
        f"{weights / 1e6:.2f}M parameters, {trained / 1e6:.2f}M trained in the last task; about "
        f"{format_seconds(total)} of fitting, importance and scoring on this machine; memory: {_memory_peak():.2f} GiB "
        f"at the peak of these batches, and {', '.join(_memory_besides(plan, trained))}",
        soft_wrap=True,
    )


def rehearse(plan: Plan) -> None:
    """Go through the tasks with a network and a method that are thrown away, so that no hook is called for the first
    time hours later: one step of each task, its end with one batch of its data, and what precedes and follows scoring.

    All processes of a run must call it.
    """
    config, method = plan.config, copy.deepcopy(plan.method)
    trainer = Trainer(
        config.training, Accelerator(mixed_precision=config.training.mixed_precision), config.seed
    )
    trainer.begin_stage(0)
    learner = build_learner(plan).to(trainer.accelerator.device)

    def load_little(task: Task, split: str) -> DataLoader:
        return trainer.loader(learner, task, split, batches=1)

    for index in range(len(plan.tasks)):
        stage = Stage(learner, plan.tasks, index, config.seed, load_little)
        trainer.begin_stage(index)
        begin_task(stage, method)
        trainer.fit(stage, method, log=None, limit=1)
        method.end_task(stage)
        for task in plan.tasks[: index + 1]:
            method.before_scoring(stage, task)
        method.after_scoring(stage)


def _try_task(stage: Stage, trainer: Trainer, method: Method) -> tuple[list[str], float]:
    task, recipe = stage.task, stage.task.recipe
    trainer.try_batch(stage, task)  # the first one also warms up
    start = time.perf_counter()
    loss, rows = trainer.try_batch(stage, task)
    seconds = time.perf_counter() - start
    train, held_out = len(task.examples("train")), len(task.examples("eval"))
    steps = recipe.epochs * math.ceil(train / recipe.batch_size)
    scoring = (
        sum(len(seen.examples("eval")) for seen in stage.tasks[: stage.index + 1])
        / rows
        * seconds
        / 3
    )
    measured = budget(method.estimator.samples, train) if stage.later and _measures(method) else 0
    if trainer.config.refresh_batchnorm:
        measured += train / 3  # forward passes only, as in scoring
    cells: list[Any] = [task.name, train, held_out, recipe.epochs, recipe.batch_size, steps]
    row = [*map(str, cells), f"{recipe.learning_rate:g}", f"{loss:.3f}", f"{seconds:.3f}"]
    return row, (steps + measured / rows) * seconds + scoring


def _measures(method: Method) -> bool:
    """Whether the method takes a pass over a task's examples once they are learned."""
    return isinstance(method, Consolidating) and type(method).measure is Consolidating.measure


def _memory_besides(plan: Plan, trained: int) -> list[str]:
    """What a run holds that a single batch does not show."""
    moments = 8 if plan.tasks[-1].recipe.optimizer == "adamw" else 4
    found = {"the optimizer": moments * trained}
    if isinstance(plan.method, Consolidating):
        found["importance and anchor"] = 8 * trained
    return [f"{size / 2**30:.2f} GiB for {what}" for what, size in found.items()]


def _memory_peak() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
