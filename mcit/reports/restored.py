"""The network of a run, as its newest checkpoint has it, with the tasks it learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from torch import nn

from mcit.checkpoint import CheckpointError, Snapshot, read_checkpoint
from mcit.config import suggest
from mcit.errors import DataError
from mcit.method import Stage
from mcit.runner.plan import Plan, build_learner
from mcit.runner.run_folder import CHECKPOINTS, find_newest
from mcit.runner.snapshot import RunState
from mcit.sequence import begin_task
from mcit.task import Task
from mcit.training import Trainer


@dataclass(frozen=True)
class Restored:
    """A learner with the weights of a checkpoint, and the stage it was at."""

    plan: Plan
    stage: Stage
    task: str  # the last one that it learned

    def find_task(self, name: str) -> Task:
        """One of the tasks learned so far, by its name."""
        learned = {task.name: task for task in self.stage.tasks[: self.stage.index + 1]}
        if name not in learned:
            raise DataError(
                f"unknown task {name!r}{suggest(name, learned)} (learned so far: {', '.join(learned)})"
            )
        return learned[name]

    def prepare(self, task: Task) -> nn.Module:
        """The learner as the method would have it for scoring that task."""
        self.plan.method.before_scoring(self.stage, task)
        return self.stage.learner


def read_newest(folder: Path) -> Snapshot:
    """The newest checkpoint of a run's folder."""
    path = find_newest(folder)
    if path is None:
        raise CheckpointError(
            f"{folder} has no {CHECKPOINTS}/, so that its network is gone and only its scores are left; run it again: "
            "a finished run keeps its last checkpoint"
        )
    return read_checkpoint(path)


def restore(plan: Plan, snapshot: Snapshot) -> Restored:
    """Build the network of a plan and give it the snapshot's weights; nothing is trained, nothing is written."""
    config, index = plan.config, snapshot.about["stage"]
    trainer = Trainer(
        config.training, Accelerator(mixed_precision=config.training.mixed_precision), config.seed
    )
    trainer.begin_stage(index)
    learner = build_learner(plan).to(trainer.accelerator.device)

    def make_stage(number: int) -> Stage:
        return Stage(
            learner,
            plan.tasks,
            number,
            config.seed,
            lambda task, split: trainer.loader(learner, task, split),
        )

    for number in range(index + 1):  # heads and adapters appear as they did
        begin_task(make_stage(number), plan.method)
    state = RunState(learner, plan.method)
    state.put_back(snapshot)
    state.put_back_method(snapshot)
    return Restored(plan, make_stage(index), snapshot.about["task"])
