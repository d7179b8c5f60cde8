"""Experience replay: a few examples of every earlier task are learned again every so often.

Chaudhry et al., On tiny episodic memories in continual learning, 2019,
https://arxiv.org/abs/1902.10486; as CLiMB does it (https://arxiv.org/abs/2206.09059): every
`frequency` steps one more step of the same optimizer, on a batch of one earlier task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mcit.config.options import option
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage, Step
from mcit.parallel.loading import load_examples
from mcit.task import Batch, Examples, Task


@dataclass
class Replay(Method):
    """A buffer of examples, chosen at random from every task."""

    name = "replay"
    works_sharded = True
    keeps_examples = True
    first_task_is_finetuning = True
    fraction: float = option(0.01, help="fraction of the examples of each task that is kept")
    frequency: int = option(100, help="steps between two batches of earlier tasks")
    buffers: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    examples: dict[int, Examples] = field(default_factory=dict, init=False, repr=False)
    held: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.fraction <= 1:
            problems.append(
                f"method.fraction must be above 0 and at most 1, found {self.fraction:g}"
            )
        if self.frequency < 1:
            problems.append(f"method.frequency must be at least 1, found {self.frequency}")
        if problems:
            raise ConfigError(problems)

    def begin_task(self, stage: Stage) -> Sequence[str]:
        for task in stage.earlier:
            # the heads of replayed tasks keep learning
            stage.learner.let_train(task.head)
        return ()

    def extra_batch(self, stage: Stage, step: Step) -> tuple[Task, Batch] | None:
        if stage.index == 0 or (step.number + 1) % self.frequency:
            return None
        # a generator of its own: finetuning and replay see the same batches in between
        seed = stage.seed + 1009 * stage.index + step.number
        generator = torch.Generator().manual_seed(seed)
        chosen = int(torch.randint(stage.index, (), generator=generator))
        task = stage.tasks[chosen]
        buffer = self.buffers[chosen]
        order = torch.randperm(len(buffer), generator=generator).tolist()
        picked = [buffer[place] for place in order[: task.recipe.batch_size]]
        examples = load_examples(self._open(chosen, task), picked)
        return task, task.collate(examples, stage.learner.processor)

    def end_task(self, stage: Stage) -> Outcome:
        examples = self._open(stage.index, stage.task)
        generator = torch.Generator().manual_seed(stage.seed + stage.index)
        wanted = max(1, round(self.fraction * len(examples)))
        kept = torch.randperm(len(examples), generator=generator)[:wanted].sort().values.tolist()
        self.buffers[stage.index] = kept
        self.held += count_bytes(load_examples(stage.task.examples("plain"), kept))
        return Outcome()

    def state_dict(self) -> Mapping[str, Any]:
        buffers = {str(index): kept for index, kept in self.buffers.items()}
        return {"buffers": buffers, "held": self.held}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        self.buffers = {int(index): list(kept) for index, kept in state["buffers"].items()}
        self.held = state["held"]

    def describe(self) -> str:
        kept = f"{self.fraction:.2%} of each earlier task"
        return f"replay: {kept}, one batch every {self.frequency} steps"

    def bytes_held(self) -> int:
        return self.held

    def _open(self, index: int, task: Task) -> Examples:
        if index not in self.examples:
            self.examples[index] = task.examples("train")
        return self.examples[index]


def count_bytes(example: Any) -> int:
    """Return the size of stored examples: pixels, texts and numbers, uncompressed."""
    if isinstance(example, Tensor):
        return example.nbytes
    if isinstance(example, Image.Image):
        return example.width * example.height * len(example.getbands())
    if isinstance(example, str):
        return len(example.encode())
    if isinstance(example, Mapping):
        return sum(count_bytes(value) for value in example.values())
    if isinstance(example, Sequence):
        return sum(count_bytes(value) for value in example)
    return 8
