"""The random states of a process, as JSON."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture_random() -> dict[str, Any]:
    """Return the random states of this process."""
    version, numbers, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    twister = numpy["state"]
    cuda = None
    if torch.cuda.is_available():
        # of this process's own device
        cuda = _to_text(torch.cuda.get_rng_state())
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [
            numpy["bit_generator"],
            twister["key"].tolist(),
            twister["pos"],
            numpy["has_gauss"],
            numpy["gauss"],
        ],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": cuda,
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """Restore what `capture_random` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    keys = np.array(keys, dtype=np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))
    torch.set_rng_state(_from_text(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_text(state["cuda"]))


def _to_text(state: Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_text(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
