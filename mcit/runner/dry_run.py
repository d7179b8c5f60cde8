"""A run without the running: everything is resolved, one batch of each task goes through, the cost is estimated."""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.table import Table

from mcit.method import Stage
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
        row, seconds = _try_task(stage, trainer)
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
        f"minutes of fitting and scoring on this machine; {_memory_peak():.1f} GiB of memory at the peak so far, and "
        f"a method that holds weights adds {8 * trained / 2**30:.2f} GiB",
        soft_wrap=True,
    )
    console.print("nothing was trained and nothing was written")


def _try_task(stage: Stage, trainer: Trainer) -> tuple[list[str], float]:
    task, recipe = stage.task, stage.task.recipe
    trainer.try_batch(stage, task)  # the first one also warms up
    start = time.perf_counter()
    loss, rows = trainer.try_batch(stage, task)
    seconds = time.perf_counter() - start
    train, held_out = len(task.examples("train")), len(task.examples("eval"))
    steps = recipe.epochs * math.ceil(train / recipe.batch_size)
    scoring = sum(len(seen.examples("eval")) for seen in stage.tasks[: stage.index + 1]) / rows * seconds / 3
    cells: list[Any] = [task.name, train, held_out, recipe.epochs, recipe.batch_size, steps]
    row = [*map(str, cells), f"{recipe.learning_rate:g}", f"{loss:.3f}", f"{seconds:.3f}"]
    return row, steps * seconds + scoring


def _memory_peak() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
