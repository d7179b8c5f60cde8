"""A model that is measured comes back in the state it was in, compiled or not."""

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
def preserve_state(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], keep_buffers: bool = False
) -> Iterator[None]:
    """Restore modes, gradients, buffers, random states and `requires_grad` at the end.

    Within, only `parameters` require gradients, and those have none yet. With `keep_buffers`,
    buffers such as BatchNorm's statistics keep the values they get.
    """
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    measured = set(parameters.values())
    # autograd need not see the others; FSDP would not notice a change of requires_grad
    others = [p for p in gradients if p.requires_grad and p not in measured and not is_sharded(p)]
    buffers = [] if keep_buffers else _copy_buffers(model)
    with preserve_random_states(), torch.enable_grad():
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
            for registered, name, buffer, copy in buffers:
                # a forward may have changed a buffer, or put another in its place
                registered[name] = buffer
                if buffer is not None:
                    buffer.copy_(copy)


@contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore the states of all global generators at the end."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and each of its parts back into the mode it was in."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _copy_buffers(model: nn.Module) -> list[tuple]:
    """Return, for every buffer, the dictionary it is registered in, its name, itself and a copy."""
    copies = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            copy = None if buffer is None else buffer.clone()
            copies.append((module._buffers, name, buffer, copy))
    return copies


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run the model without torch.compile, whose code does not call the hooks that see layers."""
    # Module.compile() leaves a callable that is called instead of forward
    compiled = {}
    for module in model.modules():
        if module._compiled_call_impl is not None:
            compiled[module] = module._compiled_call_impl
            module._compiled_call_impl = None
    # for functions and modules that torch.compile has wrapped: none, if dynamo was never imported
    eager = nullcontext()
    if "torch._dynamo" in sys.modules:
        eager = torch.compiler.set_stance("force_eager")
    try:
        with eager:
            yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call
