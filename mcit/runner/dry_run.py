"""A run without the running: everything is resolved, one batch of each task goes through, the cost is estimated."""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table

from mcit.method import Method, Stage
from mcit.methods._consolidating import Consolidating
from mcit.parallel.shares import budget
from mcit.reports.tables import print_whole
from mcit.sequence import Plan, begin_task, build_learner
from mcit.training import Trainer


def show(plan: Plan) -> None:
    """Print the plan with an estimate of time and memory, from one real batch of each task."""
    config = plan.config
    trainer = Trainer(config.training, Accelerator(mixed_precision=config.training.mixed_precision), config.seed)
    trainer.begin_stage(0)
    learner = build_learner(plan).to(trainer.accelerator.device)
    table = Table(title=f"{config.method.name} on {config.model.name}", title_justify="left")
    for name in ("task", "train", "eval", "epochs", "batch", "steps", "learning rate", "loss", "s/step", "minutes"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    total = 0.0
    for index, task in enumerate(plan.tasks):
        stage = Stage(learner, plan.tasks, index, config.seed, lambda task, split: trainer.loader(learner, task, split))
        begin_task(stage, plan.method)
        row, seconds = _try_task(stage, trainer, plan.method)
        total += seconds
        table.add_row(*row, f"{seconds / 60:.1f}")
    console = Console(highlight=False)
    for line in [line for task in plan.tasks for line in task.notices(learner.processor)]:
        console.print(line, soft_wrap=True, markup=False)
    print_whole(table, console)
    weights = sum(p.numel() for p in learner.parameters())
    trained = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    console.print(f"method: {plan.method.describe()}", soft_wrap=True)
    console.print(
        f"{weights / 1e6:.2f}M parameters, {trained / 1e6:.2f}M trained in the last task; about {total / 60:.0f} "
        f"minutes of fitting, importance and scoring on this machine; memory: {_memory_peak():.2f} GiB at the peak of "
        f"these batches, and {', '.join(_memory_besides(plan, trained))}",
        soft_wrap=True,
    )
    console.print("nothing was trained and nothing was written")


def _try_task(stage: Stage, trainer: Trainer, method: Method) -> tuple[list[str], float]:
    task, recipe = stage.task, stage.task.recipe
    trainer.try_batch(stage, task)  # the first one also warms up
    start = time.perf_counter()
    loss, rows = trainer.try_batch(stage, task)
    seconds = time.perf_counter() - start
    train, held_out = len(task.examples("train")), len(task.examples("eval"))
    steps = recipe.epochs * math.ceil(train / recipe.batch_size)
    scoring = sum(len(seen.examples("eval")) for seen in stage.tasks[: stage.index + 1]) / rows * seconds / 3
    measured = budget(method.estimator.samples, train) if stage.later and _measures(method) else 0
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
