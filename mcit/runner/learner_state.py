"""The state of a learner: what may have changed is stored, a frozen base by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from mcit.checkpoint import CheckpointError, LearnerState, digest_tensor
from mcit.models.learner import Learner
from mcit.parallel.sharded import distribute, full, gather_state


class LearnerStore:
    """Takes and restores the state of a learner that was just built, without heads.

    The weights it was built with, its base, are known as objects, since an adapter that is put next
    to a layer changes the names of the layer's weights.
    """

    def __init__(self, learner: Learner):
        self.learner = learner
        self.base = {id(parameter): parameter for parameter in learner.parameters()}
        # weights of the base that have trained in this run
        self.trained: set[int] = set()
        self._digests: dict[int, str] = {}

    def take(self, keep: bool = True) -> LearnerState:
        """Return the state as it is now, with whole tensors of sharded weights.

        Of a sharded learner all processes must call, and those that are not to keep such tensors
        get None in their place.
        """
        parameters = dict(self.learner.named_parameters(remove_duplicate=False))
        self.trained |= {id(p) for p in parameters.values() if p.requires_grad}
        untouched = {}
        for name, parameter in parameters.items():
            if id(parameter) in self.base and id(parameter) not in self.trained:
                untouched[name] = parameter
        tensors = {}
        for name, tensor in self.learner.state_dict().items():
            if name not in untouched:
                tensors[name] = gather_state(tensor, keep)
        return LearnerState(
            structure=self.learner.structure(),
            tensors=tensors,
            frozen=[name for name, p in parameters.items() if not p.requires_grad],
            training=self.learner.training,
            base=self._digest(untouched),
        )

    def restore(self, state: LearnerState) -> None:
        """Bring the learner to a state, and let train what trained then."""
        learner = self.learner
        learner.rebuild(state.structure)
        tensors = dict(state.tensors)
        for name, tensor in learner.state_dict().items():
            if name in tensors:
                tensors[name] = distribute(tensors[name], tensor)
        missing, unexpected = learner.load_state_dict(tensors, strict=False)
        parameters = dict(learner.named_parameters(remove_duplicate=False))
        untouched = {}
        for name in missing:
            if name not in parameters or id(parameters[name]) not in self.base:
                unexpected.append(name)
            else:
                untouched[name] = parameters[name]
        if unexpected:
            odd = sorted(unexpected)[0]
            raise CheckpointError(f"the checkpoint does not fit the network: see {odd}")
        if self._digest(untouched) != state.base:
            raise CheckpointError(
                "the network's frozen weights are not those with which the run began: use the same "
                "model.name, with the same files"
            )
        self.trained = set(self.base) - {id(parameter) for parameter in untouched.values()}
        frozen = set(state.frozen)
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in frozen)
        learner.train(state.training)

    def _digest(self, parameters: Mapping[str, Tensor]) -> str | None:
        """Return a digest of weights that do not change in a run; None if there are none."""
        if not parameters:
            return None
        whole = hashlib.sha256()
        for name in sorted(parameters):
            parameter = parameters[name]
            if id(parameter) not in self._digests:
                self._digests[id(parameter)] = digest_tensor(full(parameter.detach()))
            whole.update(f"{name} {self._digests[id(parameter)]}\n".encode())
        return whole.hexdigest()
