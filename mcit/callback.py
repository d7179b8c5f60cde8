"""The manager inside `transformers.Trainer`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mcit.consolidation import ConsolidationManager


class ConsolidationCallback(TrainerCallback):
    """Adds the manager's gradient before every optimizer step of a Trainer.

        Trainer(..., callbacks=[ConsolidationCallback(manager)])

    The Trainer calls it when the gradients of an accumulation are complete and clipped: clipping
    sees the task's gradient alone, and a path integral (SI) sees the clipped one unless
    `max_grad_norm` is 0.
    """

    def __init__(self, manager: ConsolidationManager):
        self.manager = manager
        self._handle: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Follow the optimizer if the manager has a path integral."""
        if self.manager.path is not None:
            self._handle = self.manager.path.attach(kwargs["optimizer"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the gradient of the penalty."""
        self.manager.add_gradient_()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop following the optimizer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
