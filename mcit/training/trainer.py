"""The inner loop: take a stage's steps, and score a task."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast, gather_object, set_seed
from torch import Tensor, nn
from tqdm.auto import tqdm

from mcit.classifier import Scorer
from mcit.config.schema import TrainingConfig
from mcit.errors import DivergedError
from mcit.gradients.preserve_state import preserve_state
from mcit.method import Method, Stage, Step
from mcit.models.learner import Learner
from mcit.parallel.global_batch import global_batch_rows
from mcit.parallel.loading import SplitLoader, Watch, cut
from mcit.parallel.sharded import average_whole_gradients, reduce_parts, to_local
from mcit.task import Batch, Head, Split, Task, move
from mcit.training.batches import MicroBatch, Schedule, Source, shuffle
from mcit.training.optimization import (
    build_optimizer,
    check_together,
    clip_norm_,
    learning_rate,
    total_norm,
)

REMEDY = "lower the learning rate or the method's strength"
# purposes of seeds; from 2 on they are the orders of a stage's sources, see Schedule
GLOBAL_STATE = 0
ORDER_OF_PASS = 1

Log = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Score:
    """The score of a task, further results of its metric, and how many examples were counted."""

    score: float
    details: dict[str, float]
    examples: int
    # of the same examples by the run's other classifiers
    others: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True)
class ResumePoint:
    """Where a fit continues: steps taken, and how optimizer and random states are restored."""

    step: int
    restore: Callable[[torch.optim.Optimizer], None]


# called after every step with the steps taken, their total and the optimizer
StepCallback = Callable[[int, int, torch.optim.Optimizer], None]


def derive_seed(seed: int, stage: int, epoch: int, purpose: int) -> int:
    """Return a seed of its own for every stage, epoch and purpose of a run."""
    sequence = np.random.SeedSequence([seed, stage, epoch, purpose])
    return int(sequence.generate_state(1)[0])


@dataclass(frozen=True)
class Reader:
    """Reads the splits of tasks at a stage, as `stage.load`."""

    trainer: Trainer
    learner: Learner
    index: int
    # read no more than so many batches, for a dry run
    batches: int | None = None

    def __call__(self, task: Task, split: Split) -> SplitLoader:
        """Return a split in batches; the training split is shuffled.

        Files are often sorted by class, and a gradient that is averaged over a batch, or a budget
        of a few batches, must see what a training batch looks like.
        """
        examples = task.examples(split)
        size = self.trainer.batch_size(task, split)
        order: Sequence[int] = range(len(examples))
        if self.batches is not None:
            count = min(len(order), self.batches * size)
            # from all over the split: the first examples may all be of one class
            order = order[:: len(order) // count][:count]
        if split == "train":
            seed = derive_seed(self.trainer.seed, self.index, 0, ORDER_OF_PASS)
            order = [order[place] for place in shuffle(len(order), seed)]
        return SplitLoader(
            examples,
            cut(order, size),
            functools.partial(task.collate, processor=self.learner.processor),
            workers=self.trainer.config.workers,
            generator=torch.Generator().manual_seed(self.trainer.seed),
            micro_batches=self.trainer.config.accumulate,
            watch=self.trainer.watch,
        )


class Trainer:
    """Fits and scores tasks, the same way for any number of processes."""

    def __init__(
        self,
        config: TrainingConfig,
        accelerator: Accelerator,
        seed: int,
        sharded: bool = False,
    ):
        self.config = config
        # whether the learner's weights are divided among processes
        self.sharded = sharded
        self.accelerator = accelerator
        self.seed = seed
        self.precision = accelerator.mixed_precision
        # told of every batch that is read outside of training steps
        self.watch: Watch | None = None

    def seed_stage(self, index: int) -> None:
        """Seed again, so that what a method draws in one task cannot change the next."""
        set_seed(derive_seed(self.seed, index, 0, GLOBAL_STATE) % 2**32)

    def gradient_precision(self) -> AbstractContextManager:
        """Return the precision in which gradients are formed outside of training steps.

        It is that of training, unless its gradients need a scale that no step is there to adapt.
        """
        if self.accelerator.scaler is not None:
            return nullcontext()
        return self.accelerator.autocast()

    def batch_size(self, task: Task, split: Split) -> int:
        """Return how many examples of a split are read at a time."""
        if split in ("train", "plain"):
            return task.recipe.batch_size
        return self.config.eval_batch_size or task.eval_batch_size

    def fit(
        self,
        stage: Stage,
        method: Method,
        *,
        log: Log | None = None,
        on_step: StepCallback | None = None,
        resume: ResumePoint | None = None,
        limit: int | None = None,
    ) -> int:
        """Train on what the method chooses for this stage and return the number of steps.

        log: receives the statistics of some steps. limit: take so many steps at most, for a dry
        run.
        """
        tasks = method.tasks_to_fit(stage)
        if not tasks:
            return 0
        self._check_precision()
        learner = stage.learner
        schedule = self._schedule(stage, tasks)
        check_together([task.recipe for task in tasks])
        extra_heads = [task.extra_head for task in tasks if task.extra_head is not None]
        for head in extra_heads:
            # a run that resumes here has it
            if not learner.outputs(head):
                learner.grow(head)
        optimizer = build_optimizer(tasks[-1].recipe, learner)
        model, optimizer = self._prepare(learner, optimizer, method, extra_heads)
        learner.train()
        method.begin_fit(stage)
        number = 0
        if resume is not None:
            number = resume.step
            resume.restore(optimizer.optimizer)
        steps = schedule.steps(learner.processor, skip=number)
        bar = tqdm(
            total=schedule.total,
            initial=number,
            desc=f"fit {stage.task.name}",
            unit="step",
            leave=False,
            disable=hide_bar(stage),
        )
        with bar:
            for scheduled in itertools.islice(steps, limit):
                recipe = scheduled.source.task.recipe
                step = Step(
                    number=number,
                    total=schedule.total,
                    learning_rate=learning_rate(recipe, number / schedule.total, scheduled.epoch),
                    recipe=recipe,
                    logged=log is not None and number % self.config.log_every == 0,
                )
                task = scheduled.source.task
                work = _Work(stage, method, model, optimizer, task, step)
                self._take_step(work, scheduled.micro_batches)
                extra = method.extra_batch(stage, step)
                if extra is not None:
                    self._take_extra_step(work, *extra)
                if log is not None and step.logged:
                    self._log_step(log, task, step)
                number += 1
                if on_step is not None:
                    on_step(number, schedule.total, optimizer.optimizer)
                # after the callback, which saves if that is due: a closed terminal takes no bar
                if step.logged:
                    bar.set_postfix({name: f"{v:.4g}" for name, v in step.statistics.items()})
                bar.update()
        # the next stage, importance and scoring work on the learner itself
        if not self.sharded:
            self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        for head in extra_heads:
            learner.drop(head)
        self._synchronize_buffers(learner)
        if self.config.refresh_batchnorm:
            self._refresh_batchnorm(stage, tasks)
        check_weights(learner, stage.task, number, schedule.total)
        return number

    def evaluate(
        self,
        stage: Stage,
        task: Task,
        scorer: Scorer | None = None,
        batches: int | None = None,
    ) -> Score:
        """Return the score of a task on all of its examples, each counted once.

        scorer: answers from features instead of the learner. batches: score so many only.
        """
        return self.evaluate_each(stage, task, {"": scorer}, batches)[""]

    @torch.no_grad()
    def evaluate_each(
        self,
        stage: Stage,
        task: Task,
        scorers: Mapping[str, Scorer | None],
        batches: int | None = None,
    ) -> dict[str, Score]:
        """Return the score by each scorer, None for the learner's own answer, in one pass."""
        self._check_precision()
        learner = stage.learner
        device = self.accelerator.device
        if not self.sharded:
            learner.to(device)
        learner.eval()
        self._synchronize_buffers(learner)
        loader = self._evaluation_loader(learner, task, batches)
        inputs: dict[str, dict[str, list]] = {name: {} for name in scorers}
        title = f"score {task.name}"
        for part in tqdm(loader, title, unit="batch", leave=False, disable=hide_bar(stage)):
            # a process without an example still takes part in gathering weights
            if not part.counted and not self.sharded:
                continue
            batch = move(part.batch, device)
            with self.accelerator.autocast():
                predicted = predict_each(learner, task, batch, scorers)
            if not part.counted:
                continue
            for name, answers in predicted.items():
                for key, values in task.metric_inputs(answers, batch).items():
                    inputs[name].setdefault(key, []).extend(_to_list(values))
        return {name: self._compute_score(task, found) for name, found in inputs.items()}

    def _check_precision(self) -> None:
        """Raise if a later run of this program has another precision: accelerate has one for all.

        Without this the present one would go on in that of the other.
        """
        now = self.accelerator.mixed_precision
        if now != self.precision:
            raise RuntimeError(
                f"this run has precision {self.precision!r}, and another one of the same program "
                f"has set {now!r} since: load or start this one again"
            )

    def _compute_score(self, task: Task, inputs: dict[str, list]) -> Score:
        """Return the score of what all processes have collected for the metric."""
        gathered = [inputs]
        if self.accelerator.num_processes > 1:
            gathered = gather_object([inputs])
        metric = task.metric()
        counted = 0
        for part_inputs in gathered:
            if part_inputs:
                counted += len(part_inputs["predictions"])
                metric.add_batch(**part_inputs)
        details = metric.compute()
        return Score(details.pop("score"), details, counted)

    def _evaluation_loader(self, learner: Learner, task: Task, batches: int | None) -> SplitLoader:
        split = self.config.split
        examples = task.examples(split)
        # every process scores batches of the size asked for
        size = self.batch_size(task, split) * self.accelerator.num_processes
        return SplitLoader(
            examples,
            cut(range(len(examples)), size)[:batches],
            functools.partial(task.collate, processor=learner.processor),
            workers=self.config.workers,
            generator=torch.Generator().manual_seed(self.seed),
            watch=self.watch,
        )

    def _schedule(self, stage: Stage, tasks: Sequence[Task]) -> Schedule:
        sources = [Source(task, task.examples("train"), i) for i, task in enumerate(tasks)]
        return Schedule(
            sources,
            functools.partial(derive_seed, self.seed, stage.index),
            accumulate=self.config.accumulate,
            workers=self.config.workers,
        )

    def _prepare(
        self,
        learner: Learner,
        optimizer: torch.optim.Optimizer,
        method: Method,
        extra_heads: Sequence[Head],
    ) -> tuple[Any, Any]:
        """Return learner and optimizer as accelerate prepares them."""
        if self.sharded:
            # the learner is ready since it was made
            return learner, self.accelerator.prepare_optimizer(optimizer)
        # A step uses one head, and an extra one beside it. If several train (replay, joint),
        # processes must know that some parameters get no gradient.
        beside = {head.name for head in extra_heads}
        trained = [
            name for name, head in learner.heads.items() if _trains(head) and name not in beside
        ]
        self.accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=len(trained) > 1 and not method.uses_every_head
        )
        return self.accelerator.prepare(learner, optimizer)

    def _take_step(self, work: _Work, micro_batches: Any) -> None:
        losses = []
        for micro in micro_batches:
            loss, logits, batch = self._backward(work, micro)
            losses.append(loss)
        step = work.step
        step.statistics["loss"] = float(sum(losses))
        self._check_finite(work.task, step, step.statistics["loss"], "loss")
        if step.logged:
            predicted = work.stage.learner.read_logits(logits, batch)
            step.statistics["score"] = _score_batch(work.task, predicted, batch)
        self._finish_step(work)

    def _backward(self, work: _Work, micro: MicroBatch) -> tuple[Tensor, Tensor, Batch]:
        """Add the gradient of a micro-batch; return its weighted loss, its logits and the batch."""
        stage, method, task = work.stage, work.method, work.task
        batch = move(micro.batch, self.accelerator.device)
        with (
            self._synchronize(work, micro),
            global_batch_rows(micro.rows),
            self.accelerator.autocast(),
        ):
            batch = method.prepare_batch(stage, task, task.expand(batch))
            extra_head = method.extra_head(stage, task)
            heads = [task.head] if extra_head is None else [task.head, extra_head]
            output = work.model(batch, *heads)
            loss = method.loss(stage, task, batch, output)
            extra = method.extra_loss(stage, batch, output)
            if extra is not None:
                loss = loss + extra
            if micro.weight != 1:
                loss = loss * micro.weight
            self.accelerator.backward(loss)
        return loss.detach(), output.logits.detach().float(), batch

    def _synchronize(self, work: _Work, micro: MicroBatch) -> AbstractContextManager:
        """Return a context in which gradients are added up over processes only when it is due.

        Parts of sharded weights get theirs from every micro-batch: whole ones would not fit.
        """
        if micro.last or self.sharded:
            return nullcontext()
        return self.accelerator.no_sync(work.model)

    def _take_extra_step(self, work: _Work, task: Task, batch: Batch) -> None:
        """Take one more step on a batch of another task."""
        step = work.step
        batch = move(batch, self.accelerator.device)
        with self.accelerator.autocast():
            loss = task.loss(work.model(batch, task.head).logits, batch)
        self.accelerator.backward(loss)
        step.statistics["replayed"] = float(loss.detach())
        self._check_finite(task, step, step.statistics["replayed"], "loss")
        self._finish_step(work)

    def _finish_step(self, work: _Work) -> None:
        """Unscale, add the method's gradient, clip and step."""
        stage, step, optimizer = work.stage, work.step, work.optimizer
        self.accelerator.unscale_gradients(optimizer)
        parameters = list(stage.learner.parameters())
        if self.sharded:
            average_whole_gradients(parameters)
        work.method.on_gradients_ready(stage, step)
        if self.config.clip_norm is not None:
            self._check_gradient(work, clip_norm_(parameters, self.config.clip_norm))
        elif step.logged:
            # between logged steps a broken gradient shows in the next loss or in the weights
            self._check_gradient(work, total_norm(parameters))
        for group in optimizer.param_groups:
            group["lr"] = step.learning_rate
        optimizer.step()
        work.method.after_step(stage, step)
        optimizer.zero_grad(set_to_none=True)

    def _check_gradient(self, work: _Work, norm: Tensor) -> None:
        # a loss scaler skips such a step by itself
        if self.accelerator.scaler is None:
            self._check_finite(work.task, work.step, float(norm), "gradient")

    def _check_finite(self, task: Task, step: Step, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise DivergedError(
                f"the {what} is {value} at step {step.number} of {step.total} on {task.name}, "
                f"learning rate {step.learning_rate:.3g}: {REMEDY}"
            )

    def _log_step(self, log: Log, task: Task, step: Step) -> None:
        entry = {
            "event": "step",
            "task": task.name,
            "step": step.number,
            "learning_rate": step.learning_rate,
        }
        log({**entry, **step.statistics})

    def _refresh_batchnorm(self, stage: Stage, tasks: Sequence[Task]) -> None:
        """Update BatchNorm's running statistics by one pass over each task, as it was trained.

        It reads the batches and makes the random draws of an importance pass of unit `batch`, in
        full precision, so that the statistics are those that such a pass leaves behind in the
        EWC-DR release. Everything but the statistics stays as it was, and what a method trains with
        fixed statistics keeps those too.
        """
        learner = stage.learner
        norms = nn.modules.batchnorm._BatchNorm
        moving = [each for each in learner.modules() if isinstance(each, norms) and each.training]
        if not moving:
            return
        with preserve_state(learner, {}, keep_buffers=True), torch.no_grad():
            for task in tasks:
                parts = stage.load(task, "train")
                name = f"refresh {task.name}"
                hidden = hide_bar(stage)
                for part in tqdm(parts, name, unit="batch", leave=False, disable=hidden):
                    with global_batch_rows(part.rows):
                        learner(move(part.batch, self.accelerator.device), task.head)
        self._synchronize_buffers(learner)

    def _synchronize_buffers(self, learner: nn.Module) -> None:
        """Give all processes the main process's BatchNorm statistics: they score the same."""
        if self.accelerator.num_processes > 1:
            for buffer in learner.buffers():
                broadcast(buffer)


@dataclass(frozen=True)
class _Work:
    """What the parts of a step share."""

    stage: Stage
    method: Method
    model: nn.Module
    optimizer: Any
    task: Task
    step: Step


def predict(learner: Learner, task: Task, batch: Batch, scorer: Scorer | None) -> Any:
    """Return what is scored: logits or texts of the learner, or a classifier's scores."""
    return predict_each(learner, task, batch, {"": scorer})[""]


def predict_each(
    learner: Learner, task: Task, batch: Batch, scorers: Mapping[str, Scorer | None]
) -> dict[str, Any]:
    """Return what is scored, by the name of what answers; features are computed once."""
    if all(scorer is None for scorer in scorers.values()):
        answers = learner.predict(batch, task.head)
        return dict.fromkeys(scorers, answers)
    output = learner(batch, task.head)
    features = output.features.float()
    predicted = {}
    for name, scorer in scorers.items():
        if scorer is None:
            predicted[name] = output.logits.float()
            continue
        with torch.autocast(features.device.type, enabled=False):
            predicted[name] = scorer(features)
    return predicted


def check_weights(learner: nn.Module, task: Task, taken: int, total: int) -> None:
    """Raise if the latest steps broke weights or statistics, which no loss has shown yet."""
    tensors: dict[str, Tensor] = {}
    tensors.update((name, p) for name, p in learner.named_parameters() if p.requires_grad)
    tensors.update(learner.named_buffers())
    wrong = []
    for tensor in tensors.values():
        wrong.append((tensor, torch.logical_not(to_local(tensor).isfinite()).any()))
    # of sharded weights all processes raise if one of them has found something in its part
    if not float(reduce_parts(wrong)):
        return
    broken = [name for name, (_, found) in zip(tensors, wrong, strict=True) if found]
    first = broken[0] if broken else "one of which others hold a part"
    rate = task.recipe.learning_rate
    raise DivergedError(
        f"weights are not finite after {taken} of {total} steps on {task.name} "
        f"({len(broken)} tensors, first {first}), learning rate up to {rate:.3g}: {REMEDY}"
    )


def hide_bar(stage: Stage) -> bool | None:
    """Return tqdm's `disable`: None shows a bar on a terminal and none in a file."""
    return None if stage.progress else True


def _score_batch(task: Task, predicted: Any, batch: Batch) -> float:
    """Return the score on a batch that was just learned from, for the progress bar."""
    metric = task.metric()
    inputs = task.metric_inputs(predicted, batch)
    metric.add_batch(**{key: _to_list(values) for key, values in inputs.items()})
    return metric.compute()["score"]


def _to_list(values: Any) -> list:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
