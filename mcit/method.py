"""What a method is: a dataclass whose fields are its hyper-parameters, and a few hooks that do nothing by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from mcit.task import Batch, Task


@dataclass
class Method:
    """A continual-learning method. A file in `mcit/methods/` defines exactly one; the file's name is its label.

    The hooks arrive in this order, once per task, and around every optimizer step:
    begin_task, (extra_loss, before_clip, after_step)*, end_task.
    """

    def begin_task(self, learner: Any, task: Task) -> None:
        """The learner has its head for `task`; no step has been taken."""

    def extra_loss(self, learner: Any, task: Task, batch: Batch, logits: Tensor) -> Tensor | None:
        """A term that autograd must see, such as distillation; a quadratic penalty belongs in `before_clip`."""
        return None

    def before_clip(self, learner: Any, step: Any) -> None:
        """Gradients are synchronised, unscaled and not yet clipped: the place for a penalty's gradient."""

    def after_step(self, learner: Any, step: Any) -> None:
        """The optimizer has moved the weights."""

    def end_task(self, learner: Any, task: Task, loader: Any) -> None:
        """The weights are final for `task`: measure importance, fill a buffer."""

    def state_dict(self) -> Mapping[str, Any]:
        """All that a resumed run needs, tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The counterpart of `state_dict`."""

    def describe(self) -> str:
        """One line for reports: what was measured and how it was held."""
        return "no protection"
