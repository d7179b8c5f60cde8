"""Dark experience replay (DER++): stored examples with their labels and the network's answers.

Buzzega et al., Dark experience for general continual learning: a strong, simple baseline,
NeurIPS 2020, https://arxiv.org/abs/2004.07211

loss = CE over all classes seen + alpha * MSE(z(x'), z') + beta * CE(z(x''), y'')

with (x', z') and (x'', y'') two draws from a buffer, each as large as the batch; z' are the logits
that were stored.

It keeps images: in tables it is not exemplar-free. Differs from the paper: the buffer, a uniform
sample of all that was seen, takes in a task when it ends, with the logits that the network ends the
task with, and not while it is learned. So the first task is finetuning, and a run continues with
the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mcit.class_statistics import find_device, gather_rows
from mcit.config.options import option
from mcit.config.schema import ModelConfig
from mcit.draws import draw_uniform
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage
from mcit.methods.replay import count_bytes
from mcit.models.teacher import eval_mode
from mcit.parallel.global_batch import draw_rows
from mcit.parallel.loading import SplitLoader, cut, load_examples
from mcit.task import Batch, Examples, Output, Task, Track, move


@dataclass
class Der(Method):
    """A buffer of examples, labels and logits."""

    name = "der"
    first_task_is_finetuning = True
    keeps_examples = True
    size: int = option(500, help="examples in the buffer")
    alpha: float = option(0.1, help="weight of the stored logits")
    beta: float = option(0.5, help="weight of the stored labels")
    # of each stored example: task, place in its training examples, random key, outputs, logits
    places: Tensor = field(init=False, repr=False)
    keys: Tensor = field(init=False, repr=False)
    logits: Tensor = field(init=False, repr=False)
    # examples seen so far, draws made in the present task, bytes of the stored images
    seen: int = field(default=0, init=False, repr=False)
    draws: int = field(default=0, init=False, repr=False)
    held: int = field(default=0, init=False, repr=False)
    memory: tuple[Examples, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if self.size < 1:
            problems.append(f"method.size must be at least 1, found {self.size}")
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if not value >= 0:
                problems.append(f"method.{name} must be at least 0, found {value:g}")
        if problems:
            raise ConfigError(problems)
        # [stored, 2], [stored] and [stored, outputs]; outputs that did not exist yet are NaN
        self.places = torch.zeros(0, 2, dtype=torch.long)
        self.keys = torch.zeros(0, dtype=torch.float64)
        self.logits = torch.zeros(0, 0)

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is Track.CLASSES:
            return []
        return [
            "method 'der' is for class-incremental orders such as shapes:5x4, whose tasks share "
            "one head; for tasks with heads of their own use 'replay'"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self.draws = 0
        self.memory = None
        return ()

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        return F.cross_entropy(output.logits, task.target(batch))

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        if stage.index == 0 or not len(self.keys):
            return None
        count = len(output.logits)
        total = output.logits.new_zeros((), dtype=torch.float32)
        if self.alpha:
            stored, picked = self._draw(stage, count)
            found = stage.learner(stored, stage.task.head).logits.float()
            total = total + self.alpha * compare_logits(found, self.logits[picked].to(found.device))
        if self.beta:
            stored, _ = self._draw(stage, count)
            found = stage.learner(stored, stage.task.head).logits.float()
            total = total + self.beta * F.cross_entropy(found, stage.task.target(stored))
        return total

    def _draw(self, stage: Stage, count: int) -> tuple[Batch, Tensor]:
        """Return augmented examples from the buffer and their numbers [count] in it."""
        examples, first = self._open(stage)
        sequence = np.random.SeedSequence([stage.seed, stage.index, self.draws])
        seed = int(sequence.generate_state(1)[0])
        self.draws += 1
        generator = torch.Generator().manual_seed(seed)
        picked = draw_rows(
            lambda rows: torch.randint(len(self.keys), (rows,), generator=generator), count
        )
        # random changes of images come from a state of their own, and batches are as without
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loaded = load_examples(examples, (first + picked).tolist())
        batch = stage.task.collate(loaded, stage.learner.processor)
        return move(batch, find_device(stage.learner)), picked

    def _open(self, stage: Stage) -> tuple[Examples, int]:
        """Return examples that end with the buffer's, and the place of its first."""
        if self.memory is None:
            kept = [(stage.tasks[task], [place]) for task, place in self.places.tolist()]
            joined = stage.task.with_examples(kept)
            if joined is None:
                raise RuntimeError(f"{stage.task.name} cannot learn examples of earlier tasks")
            examples = joined.examples("train")
            self.memory = examples, len(examples) - len(kept)
        return self.memory

    def end_task(self, stage: Stage) -> Outcome:
        count = len(stage.task.examples("plain"))
        # the smallest keys of all that was seen are a uniform sample of it
        new = draw_uniform(stage.seed, self.seen + torch.arange(count))
        order = torch.cat([self.keys, new]).argsort(stable=True)[: self.size].sort().values
        old = order[order < len(self.keys)]
        taken = order[order >= len(self.keys)] - len(self.keys)
        logits = self._answer(stage, taken.tolist())
        missing = logits.shape[1] - self.logits.shape[1]
        widened = F.pad(self.logits[old], (0, missing), value=torch.nan)
        places = torch.stack([torch.full_like(taken, stage.index), taken], dim=1)
        self.logits = torch.cat([widened, logits])
        self.places = torch.cat([self.places[old], places])
        self.keys = torch.cat([self.keys[old], new[taken]])
        self.seen += count
        self.held = self._count_bytes(stage)
        self.memory = None
        return Outcome()

    def _answer(self, stage: Stage, places: Sequence[int]) -> Tensor:
        """Return the network's logits [examples, outputs] for some of the task's examples."""
        task, learner = stage.task, stage.learner
        if not places:
            return torch.zeros(0, task.head.outputs)
        collate = functools.partial(task.collate, processor=learner.processor)
        loader = SplitLoader(task.examples("plain"), cut(places, task.recipe.batch_size), collate)
        with eval_mode(learner):
            return gather_rows(
                lambda batch: learner(batch, task.head).logits, task, loader, find_device(learner)
            )[0]

    def _count_bytes(self, stage: Stage) -> int:
        held = self.places.nbytes + self.logits.nbytes
        for index in self.places[:, 0].unique().tolist():
            places = self.places[self.places[:, 0] == index, 1].tolist()
            held += count_bytes(load_examples(stage.tasks[index].examples("plain"), places))
        return held

    def state_dict(self) -> Mapping[str, Any]:
        return {
            "places": self.places,
            "keys": self.keys,
            "logits": self.logits,
            "counts": [self.seen, self.draws, self.held],
        }

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.places = state["places"]
        self.keys = state["keys"]
        self.logits = state["logits"]
        self.seen, self.draws, self.held = state["counts"]
        self.memory = None

    def describe(self) -> str:
        weights = f"alpha {self.alpha:g}, beta {self.beta:g}"
        return f"replay of {self.size} examples with their logits (DER++): {weights}"

    def bytes_held(self) -> int:
        return self.held


def compare_logits(found: Tensor, stored: Tensor) -> Tensor:
    """Return the mean over examples of the mean squared difference of logits.

    stored: [examples, outputs], NaN for outputs that did not exist when they were stored.
    """
    known = ~stored.isnan()
    difference = found[:, : stored.shape[1]] - stored.nan_to_num()
    return ((difference.square() * known).sum(dim=1) / known.sum(dim=1)).mean()
