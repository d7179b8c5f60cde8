"""The inner loop: fit and evaluate. The one file that knows the Accelerator."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast, gather_object, set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from tqdm.auto import tqdm

from mcit.config import ConfigError, TrainingConfig
from mcit.method import Method, Stage, Step
from mcit.task import Batch, Recipe, Task


class DivergedError(FloatingPointError):
    """A loss or gradient that is no number; the message says where and what to try."""


@dataclass(frozen=True)
class Score:
    """What a task scored, what else its metric says, and how many examples were counted."""

    score: float
    details: dict[str, float]
    examples: int


@dataclass(frozen=True)
class _Micro:
    """Part of a global batch on this process."""

    indices: list[int]
    weight: float  # what its mean loss counts in the global mean, times the number of processes
    last: bool  # completes a step


class Trainer:
    """Fits and evaluates the tasks of a stage, the same way for any number of processes."""

    def __init__(self, config: TrainingConfig, accelerator: Accelerator, seed: int):
        self.config, self.accelerator, self.seed = config, accelerator, seed
        self.index = 0

    def begin_stage(self, index: int) -> None:
        """Seed anew, so that what a method draws in one task cannot change the next."""
        self.index = index
        set_seed(self._derive(0, 0) % 2**32)

    def loader(self, learner: nn.Module, task: Task, split: str) -> DataLoader:
        """A split, whole; `measure_importance` shares it out among processes by itself.

        The training split is shuffled: files are often sorted by class, and a gradient that is averaged over a batch,
        or a budget of a few batches, must see what a training batch looks like.
        """
        examples = task.examples(split)
        order = self._order(examples, 0, 1) if split == "train" else None
        return self._make_loader(learner, task, split, self._size(task, split), order, examples)

    def fit(self, stage: Stage, method: Method, log: Any) -> int:
        """Train on what the method chooses for this stage; gives the number of steps."""
        tasks = method.tasks_to_fit(stage)
        if not tasks:
            return 0
        sources = [_Source(task, task.examples("train"), number) for number, task in enumerate(tasks)]
        total = sum(source.steps for source in sources)
        learner = stage.learner
        _check_together([task.recipe for task in tasks])
        optimizer = build_optimizer(tasks[-1].recipe, learner)
        # a step uses one head; where several train (replay, joint), processes must be told that some got no gradient
        unused = sum(any(p.requires_grad for p in head.parameters()) for head in learner.heads.values()) > 1
        self.accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=unused)
        model, optimizer = self.accelerator.prepare(learner, optimizer)
        learner.train()
        bar = tqdm(
            total=total,
            desc=f"fit {stage.task.name}",
            unit="step",
            leave=False,
            disable=_hidden(stage),
        )
        number = 0
        with bar:
            for source, epoch, micros in self._plan(sources, learner.processor):
                step = Step(number, total, 0.0, source.task.recipe, number % self.config.log_every == 0)
                step.learning_rate = learning_rate(source.task.recipe, number / total, epoch)
                self._take_step(stage, method, model, optimizer, source.task, micros, step)
                extra = method.extra_batch(stage, step)
                if extra is not None:
                    self._take_extra_step(stage, method, model, optimizer, *extra, step)
                if step.logged:
                    bar.set_postfix({name: f"{value:.4g}" for name, value in step.figures.items()})
                    log({"event": "step", "task": source.task.name, "step": number, **step.figures})
                bar.update()
                number += 1
        # the next stage, importance and scoring work on the learner itself
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        self._share_buffers(learner)
        _check_weights(learner, stage.task)
        return number

    @torch.no_grad()
    def evaluate(self, stage: Stage, task: Task) -> Score:
        """The score of a task on all of its examples, each counted once."""
        learner, accelerator, split = stage.learner, self.accelerator, self.config.split
        learner.to(accelerator.device).eval()
        self._share_buffers(learner)
        examples = task.examples(split)
        share = range(accelerator.process_index, len(examples), accelerator.num_processes)
        loader = self._make_loader(learner, task, split, self.config.eval_batch_size, share, examples)
        columns: dict[str, list] = {}
        for batch in tqdm(loader, f"score {task.name}", unit="batch", leave=False, disable=_hidden(stage)):
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

    def _take_step(self, stage, method: Method, model, optimizer, task: Task, micros, step: Step) -> None:
        losses = []
        for micro, batch in micros:
            batch = _move(batch, self.accelerator.device)
            synchronise = nullcontext() if micro.last else self.accelerator.no_sync(model)
            with synchronise, self.accelerator.autocast():
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

    def _take_extra_step(self, stage, method: Method, model, optimizer, task: Task, batch: Batch, step: Step) -> None:
        batch = _move(batch, self.accelerator.device)
        with self.accelerator.autocast():
            loss = task.loss(model(batch, task.head), batch)
        self.accelerator.backward(loss)
        step.figures["replayed"] = float(loss.detach())
        self._check_finite(task, step, step.figures["replayed"], "loss")
        self._finish_step(stage, method, optimizer, task, step)

    def _finish_step(self, stage: Stage, method: Method, optimizer: Any, task: Task, step: Step) -> None:
        self.accelerator.unscale_gradients(optimizer)
        method.before_clip(stage, step)
        if self.config.clip_norm is not None:
            trained = [p for p in stage.learner.parameters() if p.grad is not None]
            norm = float(nn.utils.clip_grad_norm_(trained, self.config.clip_norm))
            if self.accelerator.scaler is None:  # a loss scaler skips such a step by itself
                self._check_finite(task, step, norm, "gradient")
        for group in optimizer.param_groups:
            group["lr"] = step.learning_rate
        optimizer.step()
        method.after_step(stage, step)
        optimizer.zero_grad(set_to_none=True)

    def _check_finite(self, task: Task, step: Step, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise DivergedError(
                f"the {what} is {value} at step {step.number} of {step.total} on {task.name}, learning rate "
                f"{step.learning_rate:.3g}: lower the learning rate or the method's strength"
            )

    def _plan(self, sources: Sequence[_Source], processor: Any) -> Iterator[tuple[_Source, int, Iterator]]:
        """Every step of the stage: its source, its epoch, and its micro-batches with the data they stand for."""
        for epoch in range(max(source.task.recipe.epochs for source in sources)):
            running = [source for source in sources if epoch < source.task.recipe.epochs]
            streams = {source: self._stream(source, epoch, processor) for source in running}
            turns = [source for source in running for _ in range(source.batches)]
            if len(running) > 1:
                generator = torch.Generator().manual_seed(self._derive(epoch, 1))
                turns = [turns[i] for i in torch.randperm(len(turns), generator=generator)]
            for source in turns:
                yield source, epoch, _take(streams[source])

    def _stream(self, source: _Source, epoch: int, processor: Any) -> Iterator[tuple[_Micro, Batch]]:
        purpose = 2 + source.number
        order = list(self._order(source.examples, epoch, purpose))
        micros = list(self._divide(order, source.task.recipe.batch_size))
        loader = DataLoader(
            source.examples,
            batch_sampler=[micro.indices for micro in micros],
            collate_fn=functools.partial(source.task.collate, processor=processor),
            num_workers=self.config.workers,
            generator=torch.Generator().manual_seed(self._derive(epoch, purpose)),
        )
        return zip(micros, loader, strict=True)

    def _order(self, examples: Dataset, epoch: int, purpose: int) -> Sampler:
        """All examples, shuffled anew for every stage, epoch and purpose, and the same way in every process."""
        return RandomSampler(examples, generator=torch.Generator().manual_seed(self._derive(epoch, purpose)))

    def _divide(self, order: Sequence[int], batch_size: int) -> Iterator[_Micro]:
        """This process's parts of each global batch; their weighted losses add up to the mean over the global batch."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        for start in range(0, len(order), batch_size):
            whole = order[start : start + batch_size]
            mine = whole[rank::world]
            size = math.ceil(len(mine) / self.config.accumulate)
            parts = [mine[i : i + size] for i in range(0, len(mine), size)] if mine else [[]]
            for number, part in enumerate(parts, start=1):
                # a process without an example takes part with weight 0, so that all take the same steps
                weight = len(part) * world / len(whole)
                yield _Micro(part or whole[:1], weight, last=number == len(parts))

    def _make_loader(self, learner, task: Task, split: str, batch_size: int, share=None, examples=None) -> DataLoader:
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
        return task.recipe.batch_size if split == "train" else self.config.eval_batch_size

    def _derive(self, epoch: int, purpose: int) -> int:
        """A seed of its own for every stage, epoch and purpose."""
        return int(np.random.SeedSequence([self.seed, self.index, epoch, purpose]).generate_state(1)[0])


class _Source:
    """A task's training examples within a stage."""

    def __init__(self, task: Task, examples: Dataset, number: int):
        self.task, self.examples, self.number = task, examples, number
        self.batches = math.ceil(len(examples) / task.recipe.batch_size)  # per epoch
        self.steps = self.batches * task.recipe.epochs


def learning_rate(recipe: Recipe, progress: float, epoch: int) -> float:
    """The rate at a share `progress` of all steps, in an epoch counted from 0."""
    if recipe.schedule == "steps":
        return recipe.learning_rate * recipe.factor ** sum(epoch >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "linear":
        if progress < recipe.warmup:
            return recipe.learning_rate * progress / recipe.warmup
        return recipe.learning_rate * (1 - progress) / (1 - recipe.warmup)
    return recipe.learning_rate


def build_optimizer(recipe: Recipe, learner: nn.Module) -> torch.optim.Optimizer:
    """A new optimizer over all trainable parameters."""
    trained = [p for p in learner.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("nothing is left to train: every parameter is frozen")
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(trained, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], recipe.learning_rate, recipe.betas, recipe.eps)


def _check_together(recipes: Sequence[Recipe]) -> None:
    """One optimizer serves all tasks of a stage: what belongs to it must be the same in all recipes."""
    for name in ("optimizer", "weight_decay", "betas", "eps", "momentum"):
        found = sorted({str(getattr(recipe, name)) for recipe in recipes})
        if len(found) > 1:
            raise ConfigError([f"tasks learned together need recipes with the same {name}, found {', '.join(found)}"])


def _check_weights(learner: nn.Module, task: Task) -> None:
    """No later loss would show what the last step did."""
    broken = [n for n, p in learner.named_parameters() if p.requires_grad and not bool(p.isfinite().all())]
    if broken:
        raise DivergedError(
            f"weights are no numbers after the last step on {task.name} ({len(broken)} tensors, first {broken[0]}): "
            "lower the learning rate or the method's strength"
        )


def _take(stream: Iterator[tuple[_Micro, Batch]]) -> Iterator[tuple[_Micro, Batch]]:
    """The micro-batches of one step."""
    for micro, batch in stream:
        yield micro, batch
        if micro.last:
            return


def _score_batch(task: Task, logits: Tensor, batch: Batch) -> float:
    """The score on a batch that was just learned from, for the progress bar."""
    metric = task.metric()
    metric.add_batch(**{name: values.tolist() for name, values in task.columns(logits, batch).items()})
    return metric.compute()["score"]


def _hidden(stage: Stage) -> bool | None:
    """For tqdm: None shows a bar on a terminal and none in a file."""
    return None if stage.progress else True


def _move(batch: Batch, device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
