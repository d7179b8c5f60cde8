"""Tensors by name: whether they fit a model, and the safetensors files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mcit.errors import FolderError
from mcit.parallel.sharded import is_sharded, whole

# What torch.compile puts into the names of a model that it has wrapped.
COMPILED = "_orig_mod."


def bare_name(name: str) -> str:
    """Return the name that a parameter of a compiled model has in the bare model."""
    return name.replace(COMPILED, "")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A digest of parameter names and shapes."""
    lines = sorted(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Return a digest of the metadata and of names, types, shapes and every value of the tensors."""
    found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def check_same_parameters(
    what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Raise an error that lists the first differences in names and shapes."""
    differences = [f"{name} is missing" for name in expected if name not in found]
    differences += [f"{name} is not in the model" for name in found if name not in expected]
    for name in found.keys() & expected.keys():
        if found[name].shape != expected[name].shape:
            differences.append(
                f"{name} is {list(found[name].shape)}, the model has {list(expected[name].shape)}"
            )
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ValueError(
            f"{what} does not fit this model: {'; '.join(sorted(differences)[:5])}{more}"
        )


def write_tensors(
    tensors: Mapping[str, Tensor], path: str | Path, about: Mapping[str, str]
) -> None:
    """Write whole tensors as a safetensors file, which appears complete or not at all.

    Where any tensor is sharded all processes must call, and the first writes.
    """
    shared = any(is_sharded(tensor) for tensor in tensors.values())
    writes = not shared or dist.get_rank() == 0
    gathered = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())  # one at a time: the others need not hold all of it
        if writes:
            gathered[name] = full.cpu().contiguous()
    if writes:
        draft = Path(f"{path}.tmp")
        try:
            save_file(gathered, draft, {**about, "digest": digest(gathered, about)})
            draft.replace(path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise FolderError(
                f"{path} could not be written: {getattr(error, 'strerror', None) or error}"
            ) from error


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of a safetensors file of the given kind; raise if any value has changed."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != kind:
                raise ValueError(
                    f"{path} is not a file of the format '{kind}', it says {about.get('format')!r}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({error}); make it again"
        ) from error
    if "digest" not in about:
        raise ValueError(
            f"{path} has no digest of its values: it was written by mcit 0.1; make it again"
        )
    noted = about.pop("digest")
    if digest(tensors, about) != noted:
        raise ValueError(
            f"{path} is damaged: its values are not those it was written with; make it again"
        )
    return tensors, about
