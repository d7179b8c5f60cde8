"""A learner as it was: old weights in the place of those it has now, without a second network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from mcit.gradients.preserve_state import eval_mode
from mcit.models.learner import Learner
from mcit.task import Batch, Head, Output


class Teacher:
    """Answers as a learner did when this was made, in eval mode and without gradients.

    Of the backbone only what trains is copied, and buffers; a frozen base is shared, so that with
    LoRA a teacher is as small as the adapters. Heads are copied whole.
    """

    def __init__(self, learner: Learner):
        self.learner = learner
        self.tensors = {name: tensor.detach().clone() for name, tensor in _list_tensors(learner)}

    @torch.no_grad()
    def __call__(self, batch: Batch, head: Head) -> Output:
        """Return features and logits of that head."""
        with eval_mode(self.learner):
            return functional_call(self.learner, self.tensors, (batch, head))

    @torch.no_grad()
    def answer(self, features: Tensor, head: Head) -> Tensor:
        """Return the logits of another head for features that `__call__` returned."""
        prefix = f"heads.{head.name}."
        own = {}
        for name, tensor in self.tensors.items():
            if name.startswith(prefix):
                own[name.removeprefix(prefix)] = tensor
        module = self.learner.heads[head.name]
        with eval_mode(module):
            return functional_call(module, own, (features.unflatten(1, (head.views, -1)),))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copied tensors by name."""
        return dict(self.tensors)

    @classmethod
    def from_state_dict(cls, learner: Learner, state: Mapping[str, Tensor]) -> Teacher:
        """Return the teacher whose `state_dict` this is, in the memory layout of the weights."""
        teacher = cls(learner)
        present = {**dict(learner.named_parameters()), **dict(learner.named_buffers())}
        teacher.tensors = {
            name: torch.empty_like(present[name]).copy_(saved).detach()
            for name, saved in state.items()
        }
        return teacher

    def bytes_held(self) -> int:
        """Return the size of the copies."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def _list_tensors(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Yield what a run may change: what trains, heads, and the buffers that a checkpoint has."""
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad or learner.head_of(name) is not None:
            yield name, parameter
    stored = learner.state_dict()
    for name, buffer in learner.named_buffers():
        if name in stored:
            yield name, buffer
