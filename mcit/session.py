"""A session: accelerator, trainer, learner and method of a plan, put together in one place.

`Session` is what the run, the dry run, the explorer, the stiffness pass and the benchmarks work on.
`RunSession` adds what a run needs around each verb: resume, checkpoints, stage cache, log, tracker
and interruption.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm

from mcit.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedError,
    Phase,
    Position,
    State,
    list_checkpoints,
    read_state,
)
from mcit.classifier import Scorer
from mcit.config.files import to_yaml
from mcit.config.identity import find_differences
from mcit.errors import ConfigError, DivergedError, OutOfMemory
from mcit.files import write_json, write_text
from mcit.importance import Importance
from mcit.method import Method, Outcome, Stage
from mcit.metrics import average_seen
from mcit.models.learner import Learner
from mcit.models.sharding import shard
from mcit.parallel.fsdp import wants_sharding
from mcit.parallel.launch import choose_precision, find_precision_problems, make_accelerator
from mcit.parallel.processes import any_process, gather
from mcit.parallel.sharded import distribute, gather_state
from mcit.provenance import make_provenance
from mcit.runner.checkpointer import Checkpointer
from mcit.runner.interruption import Interrupted, Interruption
from mcit.runner.learner_state import LearnerStore
from mcit.runner.plan import Plan
from mcit.runner.random_state import capture_random, restore_random
from mcit.runner.result import SCORES, Result, Stopwatch
from mcit.runner.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    PROVENANCE,
    REWRITTEN,
    RunLog,
    Say,
    find_damage,
    find_newest,
    is_finished,
    lock_folder,
    prepare_folder,
)
from mcit.runner.stage_cache import StageCache, describe_software
from mcit.runner.tracking import Tracker, Tracking
from mcit.task import Task, Track
from mcit.training.trainer import Reader, ResumePoint, Score, Trainer, check_weights

# steps of a task after which its duration is estimated
TIMED_STEPS = 10


def begin_task(stage: Stage, method: Method) -> Sequence[str]:
    """Prepare learner and method for a task, and return the method's warnings.

    The task's head is added, and only that one trains; a LoRA pair is added if the method wants it.
    """
    head = stage.task.head
    # a method that learns everything at once has grown all heads at the first task
    if stage.learner.lacks(head):
        stage.learner.grow(head)
    stage.learner.activate(head)
    if method.begins_pair(stage):
        stage.learner.begin_pair(f"pair{stage.index + 1}")
    return method.begin_task(stage)


class Session:
    """A learner that is about to learn the tasks of a plan, or has learned some of them.

    batches: read no more than so many batches of a split, for a dry run.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        progress: bool = False,
        batches: int | None = None,
        **accelerator: Any,
    ):
        config = plan.config
        problems = find_precision_problems(config.training.mixed_precision)
        if problems:
            raise ConfigError(problems)
        self.plan = plan
        self.method = plan.method
        self.answering = plan.answering
        self.progress = progress
        self.batches = batches
        precision = choose_precision(config.training.mixed_precision)
        self.accelerator = make_accelerator(precision, **accelerator)
        self.sharded = wants_sharding()
        self.trainer = Trainer(config.training, self.accelerator, config.seed, self.sharded)
        self.trainer.seed_stage(0)
        self.learner = self._build_learner()
        self.store = LearnerStore(self.learner)
        for task in plan.tasks:
            task.fit_to(self.learner.processor)

    def _build_learner(self) -> Learner:
        """Return the learner on the device, or its parts on the devices of all processes."""
        learner = self.plan.build_learner()
        if not self.sharded:
            return learner.to(self.accelerator.device)
        adapted = self.plan.config.model.lora.rank > 0
        shard(learner.encoder, self.accelerator.device, adapted)
        return learner

    def stage(self, index: int) -> Stage:
        """Return the stage of a task."""
        return Stage(
            learner=self.learner,
            tasks=self.plan.tasks,
            index=index,
            seed=self.plan.config.seed,
            load=Reader(self.trainer, self.learner, index, self.batches),
            precision=self.trainer.gradient_precision,
            progress=self.progress,
        )

    def begin(self, stage: Stage) -> Sequence[str]:
        """Seed, prepare the learner for the task, and return the method's warnings."""
        self.trainer.seed_stage(stage.index)
        warnings = begin_task(stage, self.method)
        self.answering.begin_task(stage)
        return warnings

    def fit(self, stage: Stage, **options: Any) -> int:
        """Take the task's steps and return their number; see Trainer.fit for the options."""
        then = options.pop("on_step", None)

        def on_step(taken: int, total: int, optimizer: Optimizer) -> None:
            self.answering.after_step(stage, taken, total)
            if then is not None:
                then(taken, total, optimizer)

        return self.trainer.fit(stage, self.method, on_step=on_step, **options)

    def conclude(self, stage: Stage) -> Outcome:
        """Let the method end the task, compute the classifiers, and return what was found."""
        outcome = self.method.end_task(stage)
        self.answering.end_task(stage)
        if self.answering.statistics is not None:
            self.method.see_statistics(stage, self.answering.statistics)
        return outcome

    def score(self, stage: Stage) -> list[Score]:
        """Return the scores of all tasks seen."""
        scorers = self._scorers(stage)
        scores = []
        for task in stage.tasks[: stage.index + 1]:
            self.method.before_scoring(stage, task)
            found = self.trainer.evaluate_each(stage, task, scorers)
            own = found.pop(self.answering.own)
            scores.append(replace(own, others=found))
        self.method.after_scoring(stage)
        return scores

    def own_scorer(self, stage: Stage) -> Scorer | None:
        """Return what answers for the run; None for the learner's head."""
        return self._scorers(stage)[self.answering.own]

    def _scorers(self, stage: Stage) -> dict[str, Scorer | None]:
        return self.answering.scorers(stage, self.method.classifier(stage))

    def try_scoring(self, stage: Stage, task: Task, batches: int) -> None:
        """Score a task on so many batches, and keep nothing."""
        scorers = self._scorers(stage)
        self.method.before_scoring(stage, task)
        self.trainer.evaluate_each(stage, task, scorers, batches)

    def restore(self, checkpoint: Checkpoint) -> Stage:
        """Bring learner and method to a checkpoint, and return its stage."""
        stage = self.stage(checkpoint.position.stage)
        self.store.restore(checkpoint.learner)
        self.method.restore(stage, checkpoint.method)
        self.answering.restore(stage, checkpoint.answering)
        scaler = self.accelerator.scaler
        if scaler is not None and checkpoint.scaler is not None:
            scaler.load_state_dict(checkpoint.scaler)
        return stage

    def restore_fit(self, entry: Checkpoint) -> None:
        """Bring the learner of a task that was begun to where the task's steps have led to."""
        self.store.restore(entry.learner)
        self.restore_random(entry)

    def restore_random(self, checkpoint: Checkpoint) -> None:
        """Restore the random states of this process."""
        restore_random(checkpoint.random[self.accelerator.process_index])

    def capture(
        self, stage: Stage, phase: Phase, *, step: int = 0, steps: int = 0, **more: Any
    ) -> Checkpoint:
        """Return the state of learner, method and random numbers; more: other fields of it."""
        scaler = self.accelerator.scaler
        return Checkpoint(
            position=Position(stage.index, stage.task.name, phase, step, steps),
            learner=self.store.take(self.accelerator.is_main_process),
            method=self._gather(self.method.state_dict()),
            answering=self.answering.state_dict(),
            random=gather(capture_random()),
            scaler=None if scaler is None else scaler.state_dict(),
            **more,
        )

    def _gather(self, state: State) -> State:
        """Return a state with whole tensors, which the main process writes."""
        if not self.sharded:
            return state
        return gather_state(state, self.accelerator.is_main_process)


class RunSession(Session):
    """A run under way; everything known so far is on disk after every task.

    With `resume`, the run in `output` continues from its newest undamaged checkpoint, if there is
    one, and ends with the same bits as if it had never stopped. With `cache`, a folder, stages are
    shared with other runs that begin the same way. A `tracker` stands in for the configuration's.
    """

    def __init__(
        self,
        plan: Plan,
        output: Path,
        *,
        resume: bool = False,
        overwrite: bool = False,
        cache: Path | None = None,
        interruption: Interruption | None = None,
        tracker: Tracker | None = None,
        progress: bool = True,
        say: Say = print,
    ):
        if cache is not None and wants_sharding():
            raise ConfigError(
                ["a run on sharded weights shares no stages with others: leave --stage-cache out"]
            )
        tracker = tracker or plan.config.tracker
        super().__init__(plan, progress=progress, log_with=tracker, project_dir=output)
        self.main = self.accelerator.is_main_process
        self.progress = progress and self.main
        self.output = output
        self.say = say if self.main else _say_nothing
        self.resume = resume
        self.overwrite = overwrite
        self.interruption = interruption or Interruption()
        self.result = Result.begin(plan, output)
        self.log = RunLog(output / LOG if self.main else None)
        self.tracking = Tracking(self.accelerator, self.result, output, self.log)
        self.checkpointer = Checkpointer(
            output, plan.config.checkpoint, self._identify(), main=self.main
        )
        self.cache = None
        if cache is not None:
            self.cache = StageCache(cache, plan, self.trainer, self.learner)
        # the checkpoint that the present task continues from, if it was interrupted inside
        self.checkpoint: Checkpoint | None = None
        # the score of the present task before it was learned, if that is asked for
        self.before: float | None = None
        self._stack = ExitStack()

    def __enter__(self) -> RunSession:
        with ExitStack() as stack:
            if self.main:
                stack.enter_context(lock_folder(self.output))
                # clear an earlier run only now that this one is known to be buildable
                prepare_folder(self.output, self.plan, self.resume, self.overwrite, self.say)
            for line in self.learner.encoder.describe_adapters():
                self.say(line)
            for task in self.plan.tasks:
                for line in task.data_notes(self.learner.processor):
                    self.say(line)
            self._find_checkpoint()
            if self.main:
                stack.enter_context(self.tracking)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.checkpointer.settle()
        except CheckpointError as failure:
            if error is None:
                raise
            # the run ends with an error of its own
            self.say(f"warning: {failure}")
        finally:
            self._stack.close()

    def stages(self) -> Iterator[Stage]:
        """Yield the stages that are not done; those that the cache has are taken from it."""
        first = 0
        if self.checkpoint is not None:
            first = self._restore_run(self.checkpoint)
        elif self.plan.track is Track.TEXT:
            self._score_untouched()
        for index in range(first, len(self.plan.tasks)):
            stage = self.stage(index)
            if self.checkpoint is None and self._reuse_stage(stage):
                continue
            yield stage
            self.checkpoint = None
        self.checkpointer.finish()

    def begin(self, stage: Stage) -> Sequence[str]:
        if self.checkpoint is not None:
            self.before = self.checkpoint.before
            return ()
        warnings = super().begin(stage)
        self._warn(stage, warnings)
        self.before = None
        if self.trainer.config.score_before:
            self.before = self.trainer.evaluate(stage, stage.task).score
        return warnings

    def fit(self, stage: Stage, **options: Any) -> int:
        with self.interruption.held(), self._explaining(stage, "learning"):
            if self.checkpoint is not None and self.checkpoint.position.phase is Phase.FITTED:
                self.restore_random(self.checkpoint)
                return 0
            if self.checkpoint is None and self._reuse_fit(stage):
                self.save(stage, Phase.FITTED)
                return 0
            return self._fit(stage, **options)

    def conclude(self, stage: Stage) -> Outcome:
        with Stopwatch(self.result.cost, "end_task_seconds"), self._explaining(stage, "measuring"):
            outcome = super().conclude(stage)
        if self.sharded and outcome.importance is not None:
            outcome = replace(outcome, importance=self._gather_importance(outcome.importance))
        for note in outcome.notes:
            self.say(f"{stage.task.name}: {note}")
        self._warn(stage, outcome.warnings)
        if outcome.importance is not None:
            self.tracking.send_importance(outcome.importance)
            name = stage.task.name
            self.checkpointer.save_importance(outcome.importance, stage.index, name)
        return outcome

    def score(self, stage: Stage) -> list[Score]:
        with Stopwatch(self.result.cost, "score_seconds"), self._explaining(stage, "scoring"):
            return super().score(stage)

    def record(self, stage: Stage, scores: Sequence[Score], outcome: Outcome) -> None:
        """Add the scores of a stage to the result, and bring everything onto the disk."""
        with self.interruption.held():
            self.result.add_outcome(outcome)
            self.result.add_scores(scores, self.before)
            self.result.cost["bytes_held"] = self.plan.bytes_held()
            self._publish(stage)
            checkpoint = self.save(stage, Phase.DONE)
            if self.cache is not None:
                self.cache.store(stage, _with_importance(checkpoint, outcome.importance))

    def _gather_importance(self, importance: Importance) -> Importance:
        """Return whole importance in the main process, which writes it, and none in others."""
        values = self._gather(importance.values)
        whole = {name: value for name, value in values.items() if value is not None}
        return replace(importance, values=whole)

    def _identify(self) -> dict[str, Any]:
        """Return what a run and its continuation have in common, and where it comes from."""
        plan = self.plan
        launch = {
            "processes": self.accelerator.num_processes,
            "precision": self.accelerator.mixed_precision,
        }
        if self.sharded:
            # parameters are in another order in the optimizer
            launch["sharded"] = True
        return {
            "experiment": plan.experiment(),
            "data": plan.describe_data(),
            "launch": launch,
            "origin": describe_software(),
            "provenance": make_provenance(**plan.describe()) if self.main else {},
        }

    def _find_checkpoint(self) -> None:
        """Find the checkpoint to resume from, or begin the run's files."""
        if self.resume:
            self.checkpoint = self.checkpointer.find(self.say)
            if self.checkpoint is None:
                self.say(f"no checkpoint in {self.output} yet: starting from the beginning")
        if self.main and self.checkpoint is None:
            write_text(self.output / CONFIG, to_yaml(self.plan.config))
            write_json(self.output / PROVENANCE, self.checkpointer.provenance)

    def _restore_run(self, checkpoint: Checkpoint) -> int:
        """Restore everything that a checkpoint holds; return the first stage that is not done."""
        position = checkpoint.position
        count = len(self.plan.tasks)
        self.trainer.seed_stage(position.stage)
        self.restore(checkpoint)
        self.result.load_state_dict(checkpoint.result)
        if self.main:
            scores = self.result.to_dict()
            config = to_yaml(self.plan.config)
            self.checkpointer.renew_files(checkpoint, scores, config, count, self.say)
        self.log.truncate(checkpoint.log["bytes"])
        entry = {"event": "resumed", "task": position.task, "phase": position.phase.value}
        self.log({**entry, "step": position.step})
        self.say(f"resumed {position.describe(count)}")
        if position.phase is Phase.DONE:
            self.checkpoint = None
        return position.next_stage

    def _fit(self, stage: Stage, **options: Any) -> int:
        """Take the steps, from the beginning or a checkpoint, and save the weights."""
        cost = self.result.cost
        already = cost["fit_seconds"]
        resume = None
        if self.checkpoint is not None:
            restore = partial(self._restore_optimizer, self.checkpoint)
            resume = ResumePoint(self.checkpoint.position.step, restore)
        with Stopwatch(cost, "fit_seconds") as watch:
            steps = super().fit(
                stage,
                log=self.log,
                on_step=_StepWatcher(self, stage, watch),
                resume=resume,
                **options,
            )
        cost["steps"] += steps
        checkpoint = self.save(stage, Phase.FITTED)
        if self.cache is not None and resume is None:
            extra = {"steps": steps, "seconds": cost["fit_seconds"] - already}
            self.cache.store_fit(stage, _with_extra(checkpoint, extra))
        return steps

    def save(
        self,
        stage: Stage,
        phase: Phase,
        *,
        step: int = 0,
        steps: int = 0,
        optimizer: Optimizer | None = None,
        fit_seconds: float | None = None,
    ) -> Checkpoint:
        """Write a checkpoint and return it."""
        result = self.result.state_dict()
        if fit_seconds is not None:
            result["cost"]["fit_seconds"] = fit_seconds
        checkpoint = self.capture(
            stage,
            phase,
            step=step,
            steps=steps,
            # the rest of an optimizer comes from the recipe; the rate is set at every step
            optimizer=None if optimizer is None else self._gather(optimizer.state_dict()["state"]),
            result=result,
            before=None if phase is Phase.DONE else self.before,
            log=self.log.settle(),
        )
        self.checkpointer.save(checkpoint)
        return checkpoint

    def _score_untouched(self) -> None:
        """Score every task before any is learned: what a pretrained model knows already."""
        stage = self.stage(0)
        with Stopwatch(self.result.cost, "score_seconds"):
            scores = [self.trainer.evaluate(stage, task) for task in stage.tasks]
        self.result.add_zero_shot(scores)
        listed = "  ".join(
            f"{task.name} {score.score:.2f}"
            for task, score in zip(stage.tasks, scores, strict=True)
        )
        self.log({"event": "zero-shot", "scores": [score.score for score in scores]})
        self.say(f"zero-shot: {listed}")

    def _publish(self, stage: Stage, reused: bool = False) -> None:
        """Write the latest scores to log and disk, and print them."""
        row = list(self.result.matrix.rows[-1])
        entry = {
            "event": "task",
            "task": stage.task.name,
            "scores": row,
            "A_t": average_seen(self.result.matrix)[-1],
            **self.result.cost,
        }
        if reused:
            entry["reused"] = True
        self.log(entry)
        if self.main:
            write_json(self.output / SCORES, self.result.to_dict())
        pairs = zip(stage.tasks, row, strict=False)
        listed = "  ".join(f"{task.name} {score:.2f}" for task, score in pairs)
        source = " (from the stage cache)" if reused else ""
        self.say(f"after {stage.task.name}: {listed}{source}")

    def _reuse_stage(self, stage: Stage) -> bool:
        """Take a whole stage from the cache; return whether it had it."""
        entry = None if self.cache is None else self.cache.find(stage, self.say)
        if entry is None:
            return False
        self.trainer.seed_stage(stage.index)
        self.restore(entry)
        importance = _read_importance(entry)
        if importance is not None:
            self.checkpointer.save_importance(importance, stage.index, stage.task.name)
        self.result.load_state_dict(entry.result)
        with self.interruption.held():
            self._publish(stage, reused=True)
            self.save(stage, Phase.DONE)
        return True

    def _reuse_fit(self, stage: Stage) -> bool:
        """Take the first task's steps from the cache; return whether it had them."""
        entry = None if self.cache is None else self.cache.find_fit(stage, self.say)
        if entry is None:
            return False
        self.restore_fit(entry)
        steps = entry.extra["steps"]
        cost = self.result.cost
        cost["steps"] += steps
        # what the steps cost when they were taken, so that runs compare
        cost["fit_seconds"] += entry.extra["seconds"]
        cost["reused_seconds"] += entry.extra["seconds"]
        self.log({"event": "reused", "task": stage.task.name, "steps": steps})
        self.say(f"{stage.task.name}: {steps} steps from the stage cache")
        return True

    def _restore_optimizer(self, checkpoint: Checkpoint, optimizer: Optimizer) -> None:
        """Restore the optimizer inside a task, then the random states."""
        saved = checkpoint.optimizer or {}
        if self.sharded:
            saved = self._divide(optimizer, saved)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
        for parameter, moments in optimizer.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # in the weight's own memory layout
                    empty = torch.empty_like(parameter, dtype=value.dtype)
                    moments[name] = empty.copy_(value)
        self.restore_random(checkpoint)

    def _divide(self, optimizer: Optimizer, state: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a saved state by number of parameter, with moments sharded as the weights are."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        divided = {}
        for number, moments in state.items():
            parameter = parameters[number]
            divided[number] = dict(moments)
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    divided[number][name] = distribute(value, parameter)
        return divided

    def _warn(self, stage: Stage, warnings: Sequence[str]) -> None:
        for warning in warnings:
            self.log({"event": "warning", "task": stage.task.name, "message": warning})
            self.say(f"warning, {stage.task.name}: {warning}")

    @contextmanager
    def _explaining(self, stage: Stage, doing: str) -> Iterator[None]:
        """Add to errors of numbers and of memory what can be done about them."""
        try:
            yield
        except FloatingPointError as error:
            lines = [str(error)]
            if not self.sharded:
                # of sharded weights all processes would have to look, and one may be here alone
                lines += self.method.explain_divergence(stage.task.recipe)
            lines.append(self._describe_newest())
            raise DivergedError("\n  ".join(lines)) from error
        except (MemoryError, RuntimeError) as error:
            # accelerate knows how each device says it
            if not isinstance(error, MemoryError) and not should_reduce_batch_size(error):
                raise
            first = str(error).partition("\n")[0]
            lines = [f"out of memory while {doing} {stage.task.name}: {first}"]
            lines.append(self._describe_newest())
            lines.append(self._suggest_less(stage, doing))
            raise OutOfMemory("\n  ".join(lines)) from error

    def _describe_newest(self) -> str:
        newest = find_newest(self.output)
        if newest is None:
            return "no checkpoint had been saved"
        return f"the last good checkpoint is {newest}"

    def _suggest_less(self, stage: Stage, doing: str) -> str:
        """Return how the run can continue with less memory."""
        training = self.plan.config.training
        if doing == "scoring":
            size = self.trainer.batch_size(stage.task, training.split)
            change = f"training.eval_batch_size={max(1, size // 2)}"
        elif self.plan.track is Track.CLASSES:
            return (
                "BatchNorm sees whole batches, so that this run cannot continue with smaller ones: "
                "start another with a smaller batch_size"
            )
        else:
            change = f"training.accumulate={2 * training.accumulate}"
        return f"continue with less: mcit run --resume --output {self.output} --set {change}"


class _StepWatcher:
    """After every step: save if that is due, stop if that was asked for; estimate the time once."""

    def __init__(self, session: RunSession, stage: Stage, watch: Stopwatch):
        self.session = session
        self.stage = stage
        self.watch = watch
        self.seen = 0
        self.begun = 0.0

    def __call__(self, taken: int, total: int, optimizer: Optimizer) -> None:
        session = self.session
        self._announce(taken, total)
        due = session.main and session.checkpointer.is_due(taken)
        stop, due = any_process(session.interruption.asked, due)
        # whichever process was signaled
        session.interruption.asked = stop
        if taken == total and not session.trainer.config.refresh_batchnorm:
            # the end of the steps is saved, and stopped after, without the optimizer
            return
        if stop or due:
            check_weights(session.learner, self.stage.task, taken, total)
            session.save(
                self.stage,
                Phase.FIT,
                step=taken,
                steps=total,
                optimizer=optimizer,
                fit_seconds=self.watch.total(),
            )
        if stop:
            # what is said to be saved is on the disk
            session.checkpointer.settle()
            raise Interrupted

    def _announce(self, taken: int, total: int) -> None:
        """Say how many steps the task has and how long they take, when enough were timed."""
        self.seen += 1
        if self.seen == 1:
            # the first step also warms up
            self.begun = time.perf_counter()
        if self.seen != TIMED_STEPS:
            return
        step_seconds = (time.perf_counter() - self.begun) / (TIMED_STEPS - 1)
        left = _describe_seconds(step_seconds * (total - taken))
        number = f"task {self.stage.index + 1} of {len(self.stage.tasks)}"
        # a progress bar is taken away while the line is printed
        with tqdm.external_write_mode():
            self.session.say(f"{self.stage.task.name}, {number}: {total} steps, about {left}")


def _describe_seconds(seconds: float) -> str:
    """Return a rough duration for a reader who waits."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _with_extra(checkpoint: Checkpoint, extra: dict[str, Any]) -> Checkpoint:
    return replace(checkpoint, extra=extra)


def _with_importance(checkpoint: Checkpoint, importance: Importance | None) -> Checkpoint:
    """Return a cache entry that also holds what the method measured."""
    if importance is None:
        return checkpoint
    return _with_extra(checkpoint, {"importance": importance.state_dict()})


def _read_importance(entry: Checkpoint) -> Importance | None:
    state = entry.extra.get("importance")
    return None if state is None else Importance.from_state_dict(state)


def _say_nothing(line: str) -> None:
    pass


def is_settled(plan: Plan, output: Path, say: Say = print) -> bool:
    """Whether nothing is left to do: finished, with files that agree with the last checkpoint.

    If that checkpoint is damaged and the only one, say so and believe the files.
    """
    if not is_finished(output):
        return False
    saved = list_checkpoints(output / CHECKPOINTS)
    if not saved:
        return True
    try:
        checkpoint = read_state(saved[0])
    except CheckpointError as error:
        if isinstance(error, DamagedError) and len(saved) > 1:
            # the one before leads to the same end
            return False
        say(f"warning: {error}; {SCORES} cannot be compared with it")
        return True
    if find_differences(checkpoint.experiment, plan.experiment()):
        # a checkpoint of another run is refused where a run is resumed
        return False
    result = Result.begin(plan, output)
    result.load_state_dict(checkpoint.result)
    damage = find_damage(output, checkpoint, result.to_dict())
    if any(name in REWRITTEN for name in damage):
        return False
    for name, problem in damage.items():
        say(
            f"warning: {output / name} {problem}; its contents are lost, and only a new run "
            "makes them again"
        )
    return True
