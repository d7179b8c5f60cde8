"""The inner loop: fit and evaluate. The one file that knows the Accelerator."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast, gather_object, set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset
from tqdm.auto import tqdm

from mcit.config import TrainingConfig
from mcit.errors import McitError
from mcit.gradients.as_it_was import as_it_was
from mcit.method import Method, Stage, Step
from mcit.parallel.global_batch import holding
from mcit.parallel.shares import Share, share_batches
from mcit.runner.batches import Batches, Source
from mcit.runner.optimization import build_optimizer, check_together, learning_rate
from mcit.task import Batch, Task

REMEDY = "lower the learning rate or the method's strength"


class DivergedError(McitError, FloatingPointError):
    """A loss or gradient that is no number; the message says where and what to try."""


@dataclass(frozen=True)
class Score:
    """What a task scored, what else its metric says, and how many examples were counted."""

    score: float
    details: dict[str, float]
    examples: int


@dataclass(frozen=True)
class Start:
    """Where a fit goes on: how many steps were taken, and what brings optimizer and random states to that place."""

    step: int
    restore: Callable[[torch.optim.Optimizer], None]


Watch = Callable[
    [int, int, torch.optim.Optimizer], None
]  # told after every step: steps taken, of how many


class Trainer:
    """Fits and evaluates the tasks of a stage, the same way for any number of processes."""

    def __init__(self, config: TrainingConfig, accelerator: Accelerator, seed: int):
        self.config, self.accelerator, self.seed = config, accelerator, seed
        self.index = 0

    def begin_stage(self, index: int) -> None:
        """Seed anew, so that what a method draws in one task cannot change the next."""
        self.index = index
        set_seed(self._derive(0, 0) % 2**32)

    def loader(
        self, learner: nn.Module, task: Task, split: str, batches: int | None = None
    ) -> DataLoader:
        """A split, whole or as many examples of it as fill so many batches.

        `measure_importance` shares it out among processes by itself. The training split is shuffled: files are often
        sorted by class, and a gradient that is averaged over a batch, or a budget of a few batches, must see what a
        training batch looks like.
        """
        examples = task.examples(split)
        if batches is not None:
            count = min(len(examples), batches * self._size(task, split))
            # from all over the split: the first examples may all be of one class
            examples = Subset(examples, range(0, len(examples), len(examples) // count)[:count])
        order = self._order(examples, 0, 1) if split == "train" else None
        return self._make_loader(learner, task, split, self._size(task, split), order, examples)

    def fit(
        self,
        stage: Stage,
        method: Method,
        log: Callable[[Mapping[str, Any]], None] | None,
        watch: Watch | None = None,
        start: Start | None = None,
        limit: int | None = None,
    ) -> int:
        """Train on what the method chooses for this stage, from the beginning or from `start`; gives all its steps.

        log: is told the figures of some steps. limit: how many steps are taken at most, for a dry run.
        """
        tasks = method.tasks_to_fit(stage)
        if not tasks:
            return 0
        batches = self._batches(tasks)
        learner, total = stage.learner, batches.total
        check_together([task.recipe for task in tasks])
        optimizer = build_optimizer(tasks[-1].recipe, learner)
        # a step uses one head; where several train (replay, joint), processes must be told that some got no gradient
        unused = (
            sum(any(p.requires_grad for p in head.parameters()) for head in learner.heads.values())
            > 1
        )
        self.accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=unused)
        model, optimizer = self.accelerator.prepare(learner, optimizer)
        learner.train()
        number = 0 if start is None else start.step
        name, hidden = f"fit {stage.task.name}", _hidden(stage)
        bar = tqdm(total=total, initial=number, desc=name, unit="step", leave=False, disable=hidden)
        if start is not None:
            start.restore(optimizer.optimizer)
        with bar:
            for source, epoch, micros in itertools.islice(
                batches.steps(learner.processor, skip=number), limit
            ):
                logged = log is not None and number % self.config.log_every == 0
                step = Step(number, total, 0.0, source.task.recipe, logged)
                step.learning_rate = learning_rate(source.task.recipe, number / total, epoch)
                self._take_step(stage, method, model, optimizer, source.task, micros, step)
                extra = method.extra_batch(stage, step)
                if extra is not None:
                    self._take_extra_step(stage, method, model, optimizer, *extra, step)
                if step.logged:
                    known = {
                        "task": source.task.name,
                        "step": number,
                        "learning_rate": step.learning_rate,
                    }
                    log({"event": "step", **known, **step.figures})
                number += 1
                if watch is not None:
                    watch(number, total, optimizer.optimizer)
                # after the watch, which saves where that is due: a terminal that is gone takes no bar
                if step.logged:
                    bar.set_postfix({name: f"{value:.4g}" for name, value in step.figures.items()})
                bar.update()
        # the next stage, importance and scoring work on the learner itself
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        self._share_buffers(learner)
        if self.config.refresh_batchnorm:
            self._refresh_batchnorm(stage, tasks)
        check_weights(learner, stage.task, number, total)
        return number

    @torch.no_grad()
    def evaluate(self, stage: Stage, task: Task) -> Score:
        """The score of a task on all of its examples, each counted once."""
        learner, accelerator, split = stage.learner, self.accelerator, self.config.split
        learner.to(accelerator.device).eval()
        self._share_buffers(learner)
        examples = task.examples(split)
        share = range(accelerator.process_index, len(examples), accelerator.num_processes)
        loader = self._make_loader(learner, task, split, self._size(task, split), share, examples)
        columns: dict[str, list] = {}
        for batch in tqdm(
            loader, f"score {task.name}", unit="batch", leave=False, disable=_hidden(stage)
        ):
            batch = _move(batch, accelerator.device)
            with accelerator.autocast():
                logits = learner(batch, task.head)
            for name, values in task.columns(logits.float(), batch).items():
                columns.setdefault(name, []).extend(values.tolist())
        gathered = gather_object([columns]) if accelerator.num_processes > 1 else [columns]
        metric, counted = task.metric(), 0
        for part in gathered:
            if part:
                counted += len(part["predictions"])
                metric.add_batch(**part)
        result = metric.compute()
        return Score(result.pop("score"), result, counted)

    def try_batch(self, stage: Stage, task: Task) -> tuple[float, int]:
        """One forward and backward pass on the task's first batch, for a dry run: its loss and its rows."""
        loader = self._make_loader(stage.learner, task, "train", self._size(task, "train"))
        batch = _move(next(iter(loader)), self.accelerator.device)
        with self.accelerator.autocast():
            loss = task.loss(stage.learner(batch, task.head), batch)
        loss.backward()
        stage.learner.zero_grad(set_to_none=True)
        return float(loss.detach()), len(batch["labels"])

    def _take_step(
        self, stage, method: Method, model, optimizer, task: Task, micros, step: Step
    ) -> None:
        losses = []
        for micro, batch in micros:
            batch = _move(batch, self.accelerator.device)
            synchronise = nullcontext() if micro.last else self.accelerator.no_sync(model)
            with synchronise, holding(micro.rows), self.accelerator.autocast():
                logits = model(batch, task.head)
                loss = task.loss(logits, batch)
                extra = method.extra_loss(stage, batch, logits)
                loss = loss if extra is None else loss + extra
                loss = loss if micro.weight == 1 else loss * micro.weight
                self.accelerator.backward(loss)
            losses.append(loss.detach())
        step.figures["loss"] = float(sum(losses))
        self._check_finite(task, step, step.figures["loss"], "loss")
        if step.logged:
            step.figures["score"] = _score_batch(task, logits.detach().float(), batch)
        self._finish_step(stage, method, optimizer, task, step)

    def _take_extra_step(
        self, stage, method: Method, model, optimizer, task: Task, batch: Batch, step: Step
    ) -> None:
        batch = _move(batch, self.accelerator.device)
        with self.accelerator.autocast():
            loss = task.loss(model(batch, task.head), batch)
        self.accelerator.backward(loss)
        step.figures["replayed"] = float(loss.detach())
        self._check_finite(task, step, step.figures["replayed"], "loss")
        self._finish_step(stage, method, optimizer, task, step)

    def _finish_step(
        self, stage: Stage, method: Method, optimizer: Any, task: Task, step: Step
    ) -> None:
        self.accelerator.unscale_gradients(optimizer)
        method.before_clip(stage, step)
        if self.config.clip_norm is not None:
            trained = [p for p in stage.learner.parameters() if p.grad is not None]
            self._check_gradient(
                task, step, nn.utils.clip_grad_norm_(trained, self.config.clip_norm)
            )
        elif (
            step.logged
        ):  # on the steps between, what a broken gradient did shows in the next loss or the weights
            found = [p.grad for p in stage.learner.parameters() if p.grad is not None]
            self._check_gradient(task, step, nn.utils.get_total_norm(found))
        for group in optimizer.param_groups:
            group["lr"] = step.learning_rate
        optimizer.step()
        method.after_step(stage, step)
        optimizer.zero_grad(set_to_none=True)

    def _check_gradient(self, task: Task, step: Step, norm: Tensor) -> None:
        if self.accelerator.scaler is None:  # a loss scaler skips such a step by itself
            self._check_finite(task, step, float(norm), "gradient")

    def _check_finite(self, task: Task, step: Step, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise DivergedError(
                f"the {what} is {value} at step {step.number} of {step.total} on {task.name}, learning rate "
                f"{step.learning_rate:.3g}: {REMEDY}"
            )

    def _refresh_batchnorm(self, stage: Stage, tasks: Sequence[Task]) -> None:
        """Let BatchNorm's running statistics follow the final weights: one pass over each task in train mode.

        It reads what an importance pass of unit `batch` reads: the same batches with the same random draws, in full
        precision. The statistics are those that such a pass over the network would leave behind, as it does in the
        EWC-DR release. All but the statistics is as it was afterwards.
        """
        learner = stage.learner
        if not any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in learner.modules()
        ):
            return
        with as_it_was(learner, {}, keep_buffers=True), torch.no_grad():
            learner.train()
            for task in tasks:
                for share in self._read_together(stage, task):
                    with holding(share.rows):
                        learner(_move(share.batch, self.accelerator.device), task.head)
        self._share_buffers(learner)

    def _read_together(self, stage: Stage, task: Task) -> Iterator[Share]:
        """This process's part of every batch of the training split."""
        loader = self.loader(stage.learner, task, "train")
        shares = (
            map(Share, loader) if self.accelerator.num_processes == 1 else share_batches(loader)
        )
        yield from tqdm(
            shares,
            f"refresh {task.name}",
            len(loader),
            unit="batch",
            leave=False,
            disable=_hidden(stage),
        )

    def _batches(self, tasks: Sequence[Task]) -> Batches:
        return Batches(
            [Source(task, task.examples("train"), number) for number, task in enumerate(tasks)],
            self._order,
            self._derive,
            self.config.accumulate,
            self.config.workers,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )

    def _order(self, examples: Dataset, epoch: int, purpose: int) -> Sampler:
        """All examples, shuffled anew for every stage, epoch and purpose, and the same way in every process."""
        return RandomSampler(
            examples, generator=torch.Generator().manual_seed(self._derive(epoch, purpose))
        )

    def _make_loader(
        self, learner, task: Task, split: str, batch_size: int, share=None, examples=None
    ) -> DataLoader:
        return DataLoader(
            task.examples(split) if examples is None else examples,
            batch_size=batch_size,
            sampler=share,
            collate_fn=functools.partial(task.collate, processor=learner.processor),
            num_workers=self.config.workers,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def _share_buffers(self, learner: nn.Module) -> None:
        """The main process's BatchNorm statistics for all: each updates its own, and they would score differently."""
        if self.accelerator.num_processes > 1:
            for buffer in learner.buffers():
                broadcast(buffer)

    def _size(self, task: Task, split: str) -> int:
        return (
            task.recipe.batch_size
            if split == "train"
            else self.config.eval_batch_size or task.eval_batch_size
        )

    def _derive(self, epoch: int, purpose: int) -> int:
        """A seed of its own for every stage, epoch and purpose."""
        return int(
            np.random.SeedSequence([self.seed, self.index, epoch, purpose]).generate_state(1)[0]
        )


def check_weights(learner: nn.Module, task: Task, taken: int, total: int) -> None:
    """What the latest steps did and no loss has shown yet, in weights and in BatchNorm's statistics."""
    trained = [(name, p) for name, p in learner.named_parameters() if p.requires_grad]
    broken = [
        name
        for name, tensor in (*trained, *learner.named_buffers())
        if not bool(tensor.isfinite().all())
    ]
    if broken:
        raise DivergedError(
            f"weights are no numbers after {taken} of {total} steps on {task.name} ({len(broken)} tensors, first "
            f"{broken[0]}), learning rate up to {task.recipe.learning_rate:.3g}: {REMEDY}"
        )


def _score_batch(task: Task, logits: Tensor, batch: Batch) -> float:
    """The score on a batch that was just learned from, for the progress bar."""
    metric = task.metric()
    metric.add_batch(
        **{name: values.tolist() for name, values in task.columns(logits, batch).items()}
    )
    return metric.compute()["score"]


def _hidden(stage: Stage) -> bool | None:
    """For tqdm: None shows a bar on a terminal and none in a file."""
    return None if stage.progress else True


def _move(batch: Batch, device: torch.device) -> Batch:
    return {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in batch.items()
    }
