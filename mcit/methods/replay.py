"""Experience replay: a few examples of every earlier task, learned again every so often by the same optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from mcit.config import ConfigError
from mcit.method import Method, Stage, Step
from mcit.task import Batch, Task


@dataclass
class Replay(Method):
    """Keeps `fraction` of each task's examples; every `frequency` steps one batch of an earlier task is learned."""

    name = "replay"
    looks_ahead = False
    fraction: float = 0.01
    frequency: int = 100
    buffers: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    examples: dict[int, Dataset] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.fraction <= 1:
            problems.append(
                f"method.fraction must lie above 0 and up to 1, found {self.fraction:g}"
            )
        if self.frequency < 1:
            problems.append(f"method.frequency counts steps from 1, found {self.frequency}")
        if problems:
            raise ConfigError(problems)

    def begin_task(self, stage: Stage) -> None:
        for task in stage.earlier:
            stage.learner.heads[task.head.name].requires_grad_(True)  # replayed tasks keep learning

    def extra_batch(self, stage: Stage, step: Step) -> tuple[Task, Batch] | None:
        if not stage.index or (step.number + 1) % self.frequency:
            return None
        # drawn from a generator of its own: finetuning and replay see the same batches in between
        generator = torch.Generator().manual_seed(stage.seed + 1009 * stage.index + step.number)
        chosen = int(torch.randint(stage.index, (), generator=generator))
        task, buffer = stage.tasks[chosen], self.buffers[chosen]
        picked = torch.randperm(len(buffer), generator=generator)[: task.recipe.batch_size].tolist()
        examples = self._open(chosen, task)
        return task, _read(stage, task, examples, [buffer[i] for i in picked])

    def _open(self, index: int, task: Task) -> Dataset:
        if index not in self.examples:
            self.examples[index] = task.examples("train")
        return self.examples[index]

    def end_task(self, stage: Stage) -> None:
        count = len(stage.task.examples("train"))
        generator = torch.Generator().manual_seed(stage.seed + stage.index)
        kept = torch.randperm(count, generator=generator)[: max(1, round(self.fraction * count))]
        self.buffers[stage.index] = kept.sort().values.tolist()

    def fit_key(self, stage: Stage) -> Mapping[str, Any] | None:
        return None if stage.index else {}  # nothing to replay yet

    def state_dict(self) -> Mapping[str, Any]:
        return {"buffers": {str(index): kept for index, kept in self.buffers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.buffers = {int(index): list(kept) for index, kept in state.get("buffers", {}).items()}

    def describe(self) -> str:
        return f"replay: {self.fraction:.2%} of each earlier task, one batch every {self.frequency} steps"


def _read(stage: Stage, task: Task, examples: Dataset, indices: Sequence[int]) -> Batch:
    fetch = getattr(examples, "__getitems__", lambda chosen: [examples[i] for i in chosen])
    return task.collate(fetch(indices), stage.learner.processor)
