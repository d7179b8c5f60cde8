"""What a run is made of at a moment: weights, method, optimizer and random states, taken down and put back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mcit.checkpoint import Snapshot, pack, unpack
from mcit.importance import Importance
from mcit.method import Method
from mcit.parallel.processes import gather


@dataclass
class RunState:
    """Learner, method and random states of a run; all processes take it down, and all put it back."""

    learner: nn.Module
    method: Method
    scaler: Any = None  # of fp16
    rank: int = 0

    def take(
        self,
        method_state: Mapping[str, Any],
        optimizer: Optimizer | None = None,
        importance: Importance | None = None,
        **about: Any,
    ) -> Snapshot:
        """All that a run needs to go on, with `about` beside it; for other runs also what the method measured."""
        parts: dict[str, dict[str, Tensor]] = {
            "learner": dict(self.learner.state_dict()),
            "method": {},
            "optimizer": {},
            "importance": {},
        }
        return Snapshot(
            {
                **about,
                "frozen": [
                    name
                    for name, parameter in self.learner.named_parameters()
                    if not parameter.requires_grad
                ],
                "training": self.learner.training,
                "method": pack(method_state, parts["method"]),
                # what else an optimizer knows comes from the recipe; the rate is set anew at every step
                "optimizer": None
                if optimizer is None
                else pack(optimizer.state_dict()["state"], parts["optimizer"]),
                "importance": None
                if importance is None
                else pack(importance.state_dict(), parts["importance"]),
                "scaler": None if self.scaler is None else self.scaler.state_dict(),
                "random": gather(capture_random()),
            },
            parts,
        )

    def put_back(self, snapshot: Snapshot) -> None:
        """Weights, buffers, what is trainable and the mode, of a learner that has its heads; and the loss scaler."""
        self.learner.load_state_dict(snapshot.parts["learner"])
        frozen = set(snapshot.about["frozen"])
        for name, parameter in self.learner.named_parameters():
            parameter.requires_grad_(name not in frozen)
        self.learner.train(snapshot.about["training"])
        if self.scaler is not None and snapshot.about["scaler"] is not None:
            self.scaler.load_state_dict(snapshot.about["scaler"])

    def put_back_method(self, snapshot: Snapshot) -> None:
        self.method.load_state_dict(read_method(snapshot))

    def put_back_random(self, snapshot: Snapshot) -> None:
        restore_random(snapshot.about["random"][self.rank])


def read_method(snapshot: Snapshot) -> Mapping[str, Any]:
    """The state of the method that was taken."""
    return unpack(snapshot.about["method"], snapshot.parts.get("method", {}))


def read_importance(snapshot: Snapshot) -> Importance | None:
    """What the method had measured, where it was taken too."""
    if snapshot.about["importance"] is None:
        return None
    return Importance.from_state_dict(
        unpack(snapshot.about["importance"], snapshot.parts.get("importance", {}))
    )


def restore_optimizer(snapshot: Snapshot, optimizer: Optimizer) -> None:
    """The state of every parameter that the optimizer has moved."""
    found = unpack(snapshot.about["optimizer"], snapshot.parts.get("optimizer", {}))
    whole = optimizer.state_dict()
    optimizer.load_state_dict({**whole, "state": found})
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(
                    value
                )  # in the weight's layout


def capture_random() -> dict[str, Any]:
    """The random states of this process, as JSON."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, keys.tolist(), position, has_gauss, cached],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": _to_text(torch.cuda.get_rng_state())
        if torch.cuda.is_available()
        else None,  # of its own device
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """The counterpart of `capture_random`."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_text(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_text(state["cuda"]))


def _to_text(state: Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_text(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
