"""Hugging Face checkpoints: hub names or folders, safetensors only, no remote code."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub.constants import ENDPOINT
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import logging

from mcit.errors import DataError

FILES = (
    "give a hub name, or a folder with config.json, model.safetensors, "
    "preprocessor_config.json and, "
    "for a model that reads text, tokenizer.json or vocab.txt"
)


def read_config(name: str, remedy: str = FILES) -> Any:
    """Return the configuration of a checkpoint; raise a DataError if there is none.

    remedy: what would do instead, for the error.
    """
    try:
        return AutoConfig.from_pretrained(
            name, local_files_only=is_local(name), trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{name}: no checkpoint ({first_line(error)}); {remedy}") from error


def load_weights(
    cls: Any,
    name: str,
    config: Any,
    *,
    unused: Sequence[str] = (),
    parts: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Return the model of a checkpoint; raise a DataError if a weight would start at random.

    unused: prefixes of weights that may be missing. parts: prefixes of weights that must find a
    place in the model; weights of other names, such as a task's head, may be left over.
    """
    try:
        with quiet_transformers():
            model, report = cls.from_pretrained(
                name,
                config=config,
                use_safetensors=True,
                local_files_only=is_local(name),
                trust_remote_code=False,
                # reported below, with their shapes
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **{"dtype": torch.float32, **options},
            )
    except (ImportError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{name}: the weights cannot be loaded ({first_line(error)}); {FILES}"
        ) from error
    problem = _find_loss(report, tuple(unused), tuple(parts), config.model_type)
    if problem is not None:
        raise DataError(f"{name}: {problem}")
    return model


def is_local(name: str) -> bool:
    """Whether a checkpoint can only be on this machine: a folder is named, or the hub is away."""
    return os.path.isdir(name) or _hub_has_no_address()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' report of unused heads: what matters in it becomes an error here."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """Return the first line of an error; the advice that follows is about another API."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


@functools.cache
def _hub_has_no_address() -> bool:
    """Whether the hub has no address here; its library would retry for half a minute.

    With a proxy it is the proxy that knows addresses, so that nothing is known here.
    """
    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except socket.gaierror:
        return True
    return False


def _find_loss(
    report: Mapping[str, Any], unused: tuple[str, ...], parts: tuple[str, ...], prefix: str
) -> str | None:
    """Return what would start at random or be thrown away; unused heads are neither."""
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(unused))
    if missing:
        return (
            f"the checkpoint lacks {len(missing)} weights of the model ({_few(missing)}), which "
            "would start at random; use a checkpoint that was saved from the whole model"
        )
    unfit = []
    for key, found, due in sorted(report["mismatched_keys"]):
        unfit.append(f"{key} is {list(found)}, not {list(due)}")
    for key in sorted(report["unexpected_keys"]):
        own = key.removeprefix(f"{prefix}.").startswith(parts)
        # older versions saved a table of indices along with the weights
        if own and not key.endswith("position_ids"):
            unfit.append(f"{key} has no place")
    if unfit:
        return (
            f"{len(unfit)} weights do not fit config.json ({_few(unfit)}); use the config.json "
            "that was saved with them"
        )
    return None


def _few(keys: Sequence[str]) -> str:
    listed = ", ".join(keys[:3])
    return listed if len(keys) <= 3 else f"{listed}, ..."
