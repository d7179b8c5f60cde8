"""Tensors by parameter name: whether they fit a model, and the safetensors files that hold them."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mcit.errors import FolderError
from mcit.parallel.sharded import full, is_sharded

# what torch.compile puts into the parameter names of a model that it has wrapped
COMPILED = "_orig_mod."


def bare_name(name: str) -> str:
    """Return the name that a parameter of a compiled model has in the bare model."""
    return name.replace(COMPILED, "")


def list_first(names: list[str]) -> str:
    """Return the first three names, and dots if there are more."""
    if len(names) > 3:
        names = [*names[:3], "..."]
    return ", ".join(names)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names and shapes."""
    lines = sorted(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Return a digest of the metadata and of name, type, shape and values of every tensor."""
    result = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        header = f"{name} {tensor.dtype} {list(tensor.shape)}\n"
        result.update(header.encode())
        result.update(tensor.flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def check_same_parameters(
    what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Raise a ValueError that lists the first differences in names and shapes."""
    differences = [f"{name} is missing" for name in expected if name not in found]
    differences += [f"{name} is not in the model" for name in found if name not in expected]
    for name in found.keys() & expected.keys():
        here = list(found[name].shape)
        there = list(expected[name].shape)
        if here != there:
            differences.append(f"{name} is {here}, the model has {there}")
    if not differences:
        return
    listed = sorted(differences)[:5]
    if len(differences) > 5:
        listed.append(f"and {len(differences) - 5} more")
    raise ValueError(f"{what} does not fit this model: {'; '.join(listed)}")


def write_tensors(
    tensors: Mapping[str, Tensor], path: str | Path, about: Mapping[str, str]
) -> None:
    """Write full tensors as a safetensors file, which appears complete or not at all.

    If any tensor is sharded, every process must call, and the first writes.
    """
    sharded = any(is_sharded(tensor) for tensor in tensors.values())
    writes = not sharded or dist.get_rank() == 0
    gathered = {}
    for name, tensor in tensors.items():
        # one at a time: processes that do not write never hold all of the model
        whole = full(tensor.detach())
        if writes:
            gathered[name] = whole.cpu().contiguous()
    if not writes:
        return
    draft = Path(f"{path}.tmp")
    try:
        write_file(gathered, draft, {**about, "digest": digest(gathered, about)})
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise FolderError(f"{path} could not be written: {reason}") from error


def write_file(
    tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file with the mode that new files have; its own is for the owner alone.

    Tensors must be contiguous, on the CPU, and no two in one memory.
    """
    path.unlink(missing_ok=True)
    # made as any file is, which tells the mode
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, None if about is None else dict(about))
    path.chmod(mode)


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file of the given kind.

    Raise a ValueError if it is of another kind or if any value has changed since it was written.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != kind:
                raise ValueError(
                    f"{path} is not a file of the format '{kind}', it says {about.get('format')!r}"
                )
            # the file is not a dictionary: it cannot be iterated itself
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({error}); make it again"
        ) from error
    if "digest" not in about:
        raise ValueError(
            f"{path} has no digest of its values: it was written by mcit 0.1; make it again"
        )
    written = about.pop("digest")
    if digest(tensors, about) != written:
        raise ValueError(
            f"{path} is damaged: its values are not those it was written with; make it again"
        )
    return tensors, about
