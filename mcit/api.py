"""The Python entry points: run a sequence, and load a finished run for prediction.

```python
result = mcit.run(order="vqa,nlvr2", method="ewc_dr")
print(result.metrics["A_last"])

trained = mcit.load_run(result.output)
trained.predict("vqa", images=[image], texts=["what color is the circle?"])
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mcit.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from mcit.config.files import find_early_problems, load_config, read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError, DataError, FolderError
from mcit.parallel.launch import join_processes
from mcit.runner.plan import Plan
from mcit.runner.preparing import prepare_plan
from mcit.runner.result import Result
from mcit.runner.run_folder import CHECKPOINTS, CONFIG, choose_output, find_newest
from mcit.sequence import run as run_sequence
from mcit.session import Session
from mcit.spelling import suggest
from mcit.task import Task, move
from mcit.training.trainer import Score, predict


def run(
    order: str | Sequence[str],
    method: str = "finetune",
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stage_cache: str | Path | None = None,
    progress: bool = True,
    say: Callable[[str], None] = print,
    **options: Any,
) -> Result:
    """Learn a sequence of tasks and return the result, as `mcit run` does.

    order: tasks, such as "vqa,nlvr2" or "shapes:5x4". settings: values by dotted key, such as
    {"method.strength": 100}. options: further keys of a configuration: seed, data_root, preset, ...
    The run's folder is `output`, or a new one in runs/; see `result.output`.
    """
    given = {"order": order, "method": method, **options}
    if not isinstance(order, str):
        given["order"] = list(order)
    if output is not None:
        given["output"] = str(output)
    assignments = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    loaded = load_config(config, given, assignments)
    problems = find_early_problems(loaded)
    if problems:
        raise ConfigError(problems)
    join_processes()
    plan = prepare_plan(loaded, say)
    folder, found = choose_output(plan, overwrite, resume)
    return run_sequence(
        plan,
        folder,
        resume=found,
        overwrite=overwrite,
        cache=None if stage_cache is None else Path(stage_cache),
        progress=progress,
        say=say,
    )


class LoadedRun:
    """The trained learner of a run, at its newest checkpoint."""

    def __init__(self, plan: Plan, checkpoint: Checkpoint):
        self.plan = plan
        self.session = Session(plan)
        self.stage = self.session.restore(checkpoint)
        self.learned = plan.tasks[: self.stage.index + 1]
        self.learner = self.session.learner.eval()

    @property
    def tasks(self) -> list[str]:
        """Return the names of the tasks learned so far."""
        return [task.name for task in self.learned]

    def find_task(self, name: str) -> Task:
        """Return one of the tasks learned so far."""
        learned = {task.name: task for task in self.learned}
        if name not in learned:
            listed = ", ".join(learned)
            near = suggest(name, learned)
            raise DataError(f"unknown task {name!r}{near} (learned so far: {listed})")
        return learned[name]

    def evaluate(self, task: str) -> Score:
        """Return the score of a task on its evaluation split."""
        found = self.find_task(task)
        self.session.method.before_scoring(self.stage, found)
        scorer = self.session.own_scorer(self.stage)
        return self.session.trainer.evaluate(self.stage, found, scorer)

    @torch.no_grad()
    def predict(self, task: str, *, images: Sequence[Any], texts: Sequence[Any] = ()) -> list[Any]:
        """Return the answers of a task about images, with texts if the task has them.

        images: Pillow images, one per example, or tuples of them for tasks about several.
        texts: a question or statement per example, or a tuple of a question and its choices.
        """
        found = self.find_task(task)
        self.session.method.before_scoring(self.stage, found)
        batch = found.read_inputs(images, texts, self.learner.processor)
        batch = move(batch, self.session.accelerator.device)
        self.learner.eval()
        scorer = self.session.own_scorer(self.stage)
        with self.session.accelerator.autocast():
            predicted = predict(self.learner, found, batch, scorer)
        # later tasks may have widened the head
        sharing = [task for task in self.learned if task.head.name == found.head.name]
        return sharing[-1].name_answers(predicted)


def load_run(folder: str | Path) -> LoadedRun:
    """Return the trained learner of a run's folder, for prediction."""
    folder = Path(folder)
    _check_folder(folder)
    checkpoint = read_newest(folder)
    return LoadedRun(read_plan(folder), checkpoint)


def read_plan(folder: Path) -> Plan:
    """Return the plan of a run's folder, its data checked."""
    _check_folder(folder)
    join_processes()
    config = parse(RunConfig, read_yaml(folder / CONFIG))
    return prepare_plan(config, _say_nothing)


def read_newest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint of a run's folder."""
    path = find_newest(folder)
    if path is None:
        raise CheckpointError(
            f"{folder} has no {CHECKPOINTS}/, so only its scores are left; run it again: a "
            "finished run keeps its last checkpoint"
        )
    return read_checkpoint(path)


def _check_folder(folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise FolderError(f"{folder} has no {CONFIG}; give the folder of a run")


def _say_nothing(line: str) -> None:
    pass
