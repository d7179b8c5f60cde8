"""A model that is measured comes back as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from mcit.parallel.sharded import is_sharded


@contextmanager
def as_it_was(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], keep_buffers: bool = False
) -> Iterator[None]:
    """Modes, gradients, random states and what is trainable are put back, whatever happens; so are buffers, unless
    what became of them is to be kept. Within, only `parameters` have gradients, and those begin empty."""
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    measured = set(parameters.values())
    # autograd need not see the others; FSDP would not notice a change of what is trainable
    others = [p for p in gradients if p.requires_grad and p not in measured and not is_sharded(p)]
    # with the place where each is registered: a forward may change a buffer or put another in its place
    places = [
        (m._buffers, name) for m in model.modules() for name in m._buffers if not keep_buffers
    ]
    kept = [None if place[name] is None else place[name].clone() for place, name in places]
    buffers = [
        (place, name, place[name], copy) for (place, name), copy in zip(places, kept, strict=True)
    ]
    random_states = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        for parameter in gradients:
            parameter.grad = None
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)
            for module, mode in modes.items():
                module.training = mode
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for place, name, buffer, copy in buffers:
                place[name] = buffer if copy is None else buffer.copy_(copy)
            random.setstate(random_states[0])
            np.random.set_state(random_states[1])


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run the model without torch.compile: compiled code does not call the hooks by which layers are seen."""
    # what Module.compile() leaves; a module calls it instead of its forward
    compiled = {
        m: m._compiled_call_impl for m in model.modules() if m._compiled_call_impl is not None
    }
    for module in compiled:
        module._compiled_call_impl = None
    # functions and modules that torch.compile has wrapped; nothing is, where dynamo was never imported
    eager = (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )
    try:
        with eager:
            yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call
