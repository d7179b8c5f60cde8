"""The outer loop: grow, fit, consolidate, score all seen, record; from the beginning, or from where it was left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch.optim import Optimizer

from mcit.checkpoint import (
    CheckpointError,
    DamagedError,
    Snapshot,
    list_checkpoints,
    verify_checkpoint,
)
from mcit.config import ConfigError, to_dict, to_yaml
from mcit.files import write_json, write_text
from mcit.method import Method, Stage
from mcit.metrics import average_seen
from mcit.parallel.launch import find_precision_problems
from mcit.parallel.processes import agree
from mcit.passport import make_passport
from mcit.runner.interruption import Interrupted, Interruption
from mcit.runner.keeper import LOST, Keeper, describe_place
from mcit.runner.plan import Plan, build_learner, check_data, describe_data, describe_plan, resolve
from mcit.runner.result import Result, begin_result, pool_scores, read_single, timed
from mcit.runner.run_folder import (
    CHECKPOINTS,
    LOG,
    MADE_AGAIN,
    PASSPORT,
    SCORES,
    RunLog,
    find_damage,
    find_differences,
    is_finished,
    lock_folder,
    note_resumption,
    prepare_folder,
)
from mcit.runner.snapshot import RunState, read_importance, read_method, restore_optimizer
from mcit.runner.stage_cache import StageCache, describe_software
from mcit.runner.tracking import Tracker, tracking
from mcit.training import DivergedError, Score, Start, Trainer, check_weights

__all__ = [
    "Plan",
    "Result",
    "begin_task",
    "build_learner",
    "check_data",
    "is_settled",
    "read_single",
    "resolve",
    "run",
]

Say = Callable[[str], None]


def run(
    plan: Plan,
    output: Path,
    progress: bool = True,
    say: Say = print,
    *,
    resume: bool = False,
    overwrite: bool = False,
    cache: Path | None = None,
    interruption: Interruption | None = None,
    tracker: Tracker | None = None,
) -> Result:
    """Learn the tasks in order; everything that is known so far is on disk after every task.

    With `resume` the run in `output` goes on from its newest whole checkpoint, if there is one, and ends with the
    same bits as if it had never stopped. With `cache`, a folder, stages are shared with other runs that begin alike.
    A `tracker` stands in for the configuration's.
    """
    config, tracker = plan.config, tracker or plan.config.tracker
    problems = find_precision_problems(config.training.mixed_precision)
    if problems:
        raise ConfigError(problems)
    accelerator = Accelerator(
        mixed_precision=config.training.mixed_precision, log_with=tracker, project_dir=output
    )
    main = accelerator.is_main_process
    with lock_folder(output) if main else nullcontext():
        trainer = Trainer(config.training, accelerator, config.seed)
        trainer.begin_stage(0)
        learner = build_learner(plan).to(accelerator.device)
        described = describe_plan(plan)
        together = {
            "processes": accelerator.num_processes,
            "precision": accelerator.mixed_precision,
        }
        identity = {**described["config"], "data": describe_data(plan), **together}
        passport = make_passport(**described) if main else None
        sequence = _Sequence(
            plan,
            trainer,
            RunState(learner, plan.method, accelerator.scaler, accelerator.process_index),
            begin_result(plan, output),
            Keeper(output, config.checkpoint, identity, describe_software(), passport, main=main),
            RunLog(output / LOG if main else None),
            StageCache(cache, plan, trainer, learner) if cache is not None else None,
            interruption or Interruption(),
            say if main else _mute,
            progress and main,
        )
        if main:  # only now that everything is found and built: an earlier run is not given up for one that cannot be
            prepare_folder(output, config, resume, overwrite, sequence.say)
        for line in [line for task in plan.tasks for line in task.notices(learner.processor)]:
            sequence.say(line)
        snapshot = sequence.keeper.find(sequence.say) if resume else None
        if resume and snapshot is None:
            sequence.say(f"no checkpoint in {output} yet: starting from the beginning")
        if main and snapshot is None:
            write_text(output / "config.yaml", to_yaml(config))
            write_json(output / PASSPORT, sequence.keeper.passport)
        names, cost = [task.name for task in plan.tasks], sequence.result.cost
        told = (
            sequence.log,
            accelerator,
            output,
            described["config"],
            names,
            lambda: int(cost["steps"]),
        )
        with tracking(*told) if main else nullcontext():
            return sequence.learn(snapshot)


def is_settled(plan: Plan, output: Path, say: Say = print) -> bool:
    """Whether a run is finished and its files say what its last checkpoint says, so that nothing is left to do.

    If that checkpoint is damaged and the only one, this is said and the files are believed.
    """
    if not is_finished(output):
        return False
    saved = list_checkpoints(output / CHECKPOINTS)
    if not saved:
        return True
    try:
        about, _ = verify_checkpoint(saved[0])
    except CheckpointError as error:
        if isinstance(error, DamagedError) and len(saved) > 1:
            return False  # the one before leads to the same end
        say(f"warning: {error}; {SCORES} cannot be compared with it")
        return True
    # a checkpoint of another run is refused where a run is resumed
    if find_differences(about["identity"], {**about["identity"], **to_dict(plan.config)}):
        return False
    result = begin_result(plan, output)
    result.load_state_dict(about["result"])
    damage = find_damage(output, about, result.to_dict())
    if any(name in MADE_AGAIN for name in damage):
        return False
    for name, problem in damage.items():
        say(f"warning: {output / name} {problem}; {LOST}")
    return True


def begin_task(stage: Stage, method: Method) -> None:
    """Give the learner the task's head, let only that head train, and tell the method."""
    head = stage.task.head
    # a method that learns everything at once has grown all heads at the first task
    if head.name not in stage.learner.heads or stage.learner.outputs(head) < head.outputs:
        stage.learner.grow(head)
    stage.learner.activate(head)
    method.begin_task(stage)


@dataclass
class _Sequence:
    """A run under way."""

    plan: Plan
    trainer: Trainer
    state: RunState
    result: Result
    keeper: Keeper
    log: RunLog
    cache: StageCache | None
    interruption: Interruption
    say: Say
    progress: bool

    def learn(self, snapshot: Snapshot | None) -> Result:
        """Every task that has not been learned yet, from a snapshot on where there is one."""
        first = self._restore(snapshot) if snapshot is not None else 0
        for index in range(first, len(self.plan.tasks)):
            stage = self._stage(index)
            inside = snapshot if snapshot is not None and snapshot.about["stage"] == index else None
            try:
                if inside is not None or not self._reuse_stage(stage):
                    self._learn_task(stage, inside)
            except FloatingPointError as error:
                raise DivergedError(
                    self.keeper.explain(error, self.plan.method, stage.task.recipe)
                ) from error
        self.keeper.finish()
        return self.result

    def _learn_task(self, stage: Stage, snapshot: Snapshot | None) -> None:
        before = self._begin(stage) if snapshot is None else snapshot.about["before"]
        if snapshot is not None and snapshot.about["phase"] == "fitted":
            self.state.put_back_random(snapshot)
        else:
            with self.interruption.held():
                self._fit(stage, before, snapshot)
        scores = self._conclude(stage)
        with self.interruption.held():
            self._record(stage, before, scores)

    def _begin(self, stage: Stage) -> float | None:
        """Prepare the task; gives its score before it is learned, where that is asked for."""
        self.trainer.begin_stage(stage.index)
        begin_task(stage, self.plan.method)
        warning = getattr(self.plan.method, "warning", None)
        if warning:
            self.log({"event": "warning", "task": stage.task.name, "message": warning})
            self.say(f"warning, {stage.task.name}: {warning}")
        return (
            self.trainer.evaluate(stage, stage.task).score
            if self.trainer.config.score_before
            else None
        )

    def _fit(self, stage: Stage, before: float | None, snapshot: Snapshot | None) -> None:
        """Take the task's steps, or find them taken, and save the weights they lead to."""
        if snapshot is None and self._reuse_fit(stage):
            self._save(stage, "fitted", before=before)
            return
        cost, method = self.result.cost, self.plan.method
        already = cost["fit_seconds"]
        with timed(cost, "fit_seconds") as spent:
            start = snapshot and Start(
                snapshot.about["step"], lambda optimizer: self._start(snapshot, optimizer)
            )
            watch = lambda *step: self._watch(stage, before, spent, *step)  # noqa: E731
            steps = self.trainer.fit(stage, method, self.log, watch, start)
        cost["steps"] += steps
        self._save(stage, "fitted", before=before)
        if self.cache is not None and snapshot is None:
            about = {"steps": steps, "seconds": cost["fit_seconds"] - already}
            self.cache.store_fit(stage, self.state.take(method.fit_state(), **about))

    def _watch(
        self, stage: Stage, before: float | None, spent: Any, taken: int, total: int, optimizer: Any
    ) -> None:
        """After every step: save if it is time, stop if that is asked for."""
        stop, due = agree(self.interruption.asked, self.keeper.main and self.keeper.due(taken))
        self.interruption.asked = stop  # by whichever process was signalled
        if taken == total and not self.trainer.config.refresh_batchnorm:
            # what comes next is saved, and stopped after, without the optimizer; not where a pass over the data is next
            return
        if stop or due:
            check_weights(stage.learner, stage.task, taken, total)
            self._save(
                stage, "fit", taken, optimizer, {"fit_seconds": spent()}, steps=total, before=before
            )
        if stop:
            raise Interrupted

    def _conclude(self, stage: Stage) -> list[Score]:
        """What comes after the steps: the method's own work, and the scores of all tasks seen."""
        method, cost = self.plan.method, self.result.cost
        with timed(cost, "end_task_seconds"):
            method.end_task(stage)
        measured = getattr(method, "measured", None)
        if measured is not None:
            self.keeper.keep_importance(measured, stage.index, stage.task.name)
        manager = getattr(method, "manager", None)
        if manager is not None and manager.importance:
            found = manager.diagnose()
            self.result.diagnoses.append(found.describe())
            self.result.stiffness.append(found.figures())
        scores: list[Score] = []
        with timed(cost, "score_seconds"):
            for task in stage.tasks[: stage.index + 1]:
                method.before_scoring(stage, task)
                scores.append(self.trainer.evaluate(stage, task))
            method.after_scoring(stage)
        return scores

    def _record(self, stage: Stage, before: float | None, scores: Sequence[Score]) -> None:
        result = self.result
        pooled, old = pool_scores(self.plan, scores), pool_scores(self.plan, scores[:-1])
        result.matrix = result.matrix.add([s.score for s in scores], pooled, before=before, old=old)
        result.details.append([s.details for s in scores])
        method = self.plan.method
        result.cost["bytes_held"] = method.bytes_held()
        self._tell(stage)
        self._save(stage, "done")
        measured = getattr(method, "measured", None)
        if self.cache is not None:
            self.cache.store(
                stage,
                self.state.take(method.state_dict(), None, measured, result=result.state_dict()),
            )
        if measured is not None:
            method.measured = None  # its memory is not needed any more

    def _tell(self, stage: Stage, **note: Any) -> None:
        """The latest scores, on disk and on the screen."""
        row = list(self.result.matrix.rows[-1])
        average = average_seen(self.result.matrix)[-1]
        known = {"task": stage.task.name, "scores": row, "A_t": average}
        self.log({"event": "task", **known, **self.result.cost, **note})
        if self.keeper.main:
            write_json(self.keeper.output / SCORES, self.result.to_dict())
        listed = "  ".join(
            f"{task.name} {score:.2f}" for task, score in zip(stage.tasks, row, strict=False)
        )
        self.say(f"after {stage.task.name}: {listed}{' (from the stage cache)' if note else ''}")

    def _reuse_stage(self, stage: Stage) -> bool:
        """Take a whole stage from the cache."""
        entry = self.cache.find(stage, self.say) if self.cache is not None else None
        if entry is None:
            return False
        self.trainer.begin_stage(stage.index)
        begin_task(stage, self.plan.method)
        self.state.put_back(entry)
        self.state.put_back_method(entry)
        importance = read_importance(entry)
        if importance is not None:
            self.keeper.keep_importance(importance, stage.index, stage.task.name)
        self.result.load_state_dict(entry.about["result"])
        with self.interruption.held():
            self._tell(stage, reused=True)
            self._save(stage, "done")
        return True

    def _reuse_fit(self, stage: Stage) -> bool:
        """Take a stage's steps from the cache, and the random states they led to."""
        entry = self.cache.find_fit(stage, self.say) if self.cache is not None else None
        if entry is None:
            return False
        self.state.put_back(entry)
        self.plan.method.load_fit_state(read_method(entry))
        self.state.put_back_random(entry)
        cost, steps = self.result.cost, entry.about["steps"]
        cost["steps"] += steps
        for name in (
            "fit_seconds",
            "reused_seconds",
        ):  # what the steps cost when they were taken, so that runs compare
            cost[name] += entry.about["seconds"]
        self.log({"event": "reused", "task": stage.task.name, "steps": steps})
        self.say(f"{stage.task.name}: {steps} steps from the stage cache")
        return True

    def _save(
        self,
        stage: Stage,
        phase: str,
        step: int = 0,
        optimizer: Any = None,
        cost: Any = None,
        **about,
    ) -> None:
        place = {
            "stage": stage.index,
            "task": stage.task.name,
            "phase": phase,
            "step": step,
            **about,
        }
        result = self.result.state_dict()
        result["cost"] = {**result["cost"], **(cost or {})}
        known = {"result": result, **self.log.settle()}
        self.keeper.save(
            self.state.take(self.plan.method.state_dict(), optimizer, **place, **known)
        )

    def _restore(self, snapshot: Snapshot) -> int:
        """Put everything back to where the snapshot was taken; gives the first task that is not finished."""
        about, method = snapshot.about, self.plan.method
        index, done = about["stage"], about["phase"] == "done"
        for earlier in range(index):  # heads and adapters appear as they did; weights follow
            begin_task(self._stage(earlier), method)
        if not done:
            self.state.put_back_method(snapshot)
        self.trainer.begin_stage(index)
        begin_task(self._stage(index), method)
        self.state.put_back(snapshot)
        if done:
            self.state.put_back_method(snapshot)
        self.result.load_state_dict(about["result"])
        following = index + 1 if done else index
        where = describe_place(about, len(self.plan.tasks))
        if self.keeper.main:
            last = following == len(self.plan.tasks)
            self.keeper.renew_files(about, self.result.to_dict(), last, self.say)
            self._note_resumption(where)
        self.log.cut(about["log_bytes"])
        self.log(
            {
                "event": "resumed",
                "task": about["task"],
                "phase": about["phase"],
                "step": about["step"],
            }
        )
        self.say(f"resumed {where}")
        return following

    def _note_resumption(self, where: str) -> None:
        output = self.keeper.output
        self.keeper.passport = note_resumption(self.keeper.passport, where)
        write_json(output / PASSPORT, self.keeper.passport)
        if not (output / "config.yaml").is_file():
            write_text(output / "config.yaml", to_yaml(self.plan.config))

    def _start(self, snapshot: Snapshot, optimizer: Optimizer) -> None:
        restore_optimizer(snapshot, optimizer)
        self.state.put_back_random(snapshot)

    def _stage(self, index: int) -> Stage:
        loader = lambda task, split: self.trainer.loader(self.state.learner, task, split)  # noqa: E731
        return Stage(
            self.state.learner, self.plan.tasks, index, self.plan.config.seed, loader, self.progress
        )


def _mute(line: str) -> None:
    pass
