"""How much each weight matters: one pass over data, an estimate with a name, a file to share."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from mcit.config import parse
from mcit.estimator import Estimator, score_examples
from mcit.per_example import PerExampleGradients, make_sum
from mcit.shares import budget, process_rank, share_loader, sum_over_processes

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]  # (model, batch) -> logits [batch, outputs], target
FORMAT = "mcit importance 1"


@dataclass(frozen=True)
class Importance:
    """Importance by parameter name, the estimator that made it, and how many examples it saw."""

    values: Mapping[str, Tensor]
    estimator: Estimator | None = None
    examples: int = 0
    note: str = ""  # what made it, where no estimator did
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)

    def describe(self) -> str:
        """The estimator's line, with the number of examples."""
        seen = f"; {self.examples} examples seen" if self.examples else ""
        return (self.estimator.describe() if self.estimator else self.note or "importance of unknown origin") + seen

    def save(self, path: str | Path, **extra: str) -> None:
        """Write a safetensors file that `load` reads and that tells by itself how it was made."""
        about = {
            "format": FORMAT,
            "estimator": json.dumps(dataclasses.asdict(self.estimator)) if self.estimator else "",
            "note": self.note,
            "examples": str(self.examples),
            "description": self.describe(),
            "fingerprint": fingerprint(self.values),
            **extra,
        }
        save_file({name: value.detach().cpu().contiguous() for name, value in self.values.items()}, path, about)

    @classmethod
    def load(cls, path: str | Path, parameters: Iterable[tuple[str, Tensor]] | None = None) -> Importance:
        """Read a file written by `save`; with named parameters, refuse one that was made for others."""
        values, about = read_tensors(path, FORMAT)
        if fingerprint(values) != about["fingerprint"]:
            raise ValueError(f"{path} is damaged: its tensors are not those it was written with; make it again")
        if parameters is not None:
            # what is frozen has no importance to fit
            present = {name: p for name, p in parameters if p.requires_grad or name in values}
            check_same_parameters(f"importance file {path}", values, present)
        estimator = parse(Estimator, json.loads(about["estimator"]), "estimator") if about["estimator"] else None
        return cls(values, estimator, int(about["examples"]), about["note"])


def measure_importance(
    model: nn.Module,
    loader: Iterable[Any],
    estimator: Estimator | None = None,
    *,
    forward: Forward | None = None,
    only: Callable[[str], bool] | None = None,
    progress: bool = False,
    **options: Any,
) -> Importance:
    """Measure the importance of every trainable parameter, or of those whose name passes `only`.

    The model comes back exactly as it was.

    `options` are the estimator's fields: `measure_importance(model, loader, score="reversed")`. With unit `example` a
    DataLoader's data are read in order, each example once, and shared out among processes without padding; other
    iterables, and all of them with unit `batch`, are read as they come. `forward(model, batch)` gives logits and
    target; without it, a batch is an `(inputs, target)` pair, or a dictionary with `labels` for a transformers model.
    """
    estimator = dataclasses.replace(estimator or Estimator(), **options)
    model = _unwrap(model)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and (only is None or only(n))}
    if not parameters:
        raise ValueError("the model has no trainable parameter; importance is measured where requires_grad is True")
    forward = forward or read_logits
    measure = _measure_examples if estimator.unit == "example" else _measure_batches
    with _as_it_was(model, parameters, estimator):
        _set_mode(model, estimator)
        batches = _read(loader, estimator, next(iter(parameters.values())).device, progress)
        sums, count, examples, paths = measure(model, parameters, batches, estimator, forward)
    sums, count, examples = _reduce(sums, count, examples)
    if not examples:
        raise ValueError("importance was asked for, but the loader gave no example; check the data and `samples`")
    values = {name: _finish(estimator, number, total.div_(count)) for number, (name, total) in enumerate(sums.items())}
    _check_finite(values)
    return Importance(values, estimator, examples, paths=paths)


def read_logits(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits and target of the two common kinds of batch: a pair, or a dictionary with `labels`."""
    if isinstance(batch, Mapping) and "labels" in batch:
        output = model(**{key: value for key, value in batch.items() if key != "labels"})
        return getattr(output, "logits", output), batch["labels"]
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        output = model(batch[0])
        return getattr(output, "logits", output), batch[1]
    raise TypeError(
        f"a batch is a {type(batch).__name__}: importance reads (inputs, target) pairs and dictionaries with 'labels'; "
        "for others give forward=lambda model, batch: (logits, target)"
    )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A digest of parameter names and shapes."""
    lines = sorted(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_same_parameters(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise an error that lists the first differences in names and shapes."""
    differences = [f"{name} is missing" for name in expected if name not in found]
    differences += [f"{name} is not in the model" for name in found if name not in expected]
    for name in found.keys() & expected.keys():
        if found[name].shape != expected[name].shape:
            differences.append(f"{name} is {list(found[name].shape)}, the model has {list(expected[name].shape)}")
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ValueError(f"{what} does not fit this model: {'; '.join(sorted(differences)[:5])}{more}")


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file of the given kind."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != kind:
                raise ValueError(f"{path} is no file of the form '{kind}', it says {about.get('format')!r}")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - not a dictionary
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); make it again") from error


def _measure_examples(model, parameters, batches: Iterable, estimator: Estimator, forward: Forward):
    gradients = PerExampleGradients(model, parameters, estimator.absolute)
    examples = 0
    for number, batch in enumerate(batches):
        examples += gradients.add(partial(_score_batch, model, batch, estimator, forward, number, examples))
    return gradients.sums, examples, examples, gradients.describe_paths()


def _measure_batches(model, parameters, batches: Iterable, estimator: Estimator, forward: Forward):
    sums = {name: make_sum(parameter) for name, parameter in parameters.items()}
    count = examples = 0
    for number, batch in enumerate(batches):
        (score,) = _score_batch(model, batch, estimator, forward, number, examples)
        found = torch.autograd.grad(score.mean(), list(parameters.values()), allow_unused=True)
        for total, gradient in zip(sums.values(), found, strict=True):
            if gradient is not None:
                gradient = gradient.to(total.dtype)
                total += gradient.abs() if estimator.absolute else gradient.square()
        count, examples = count + 1, examples + len(score)
    return sums, count, examples, dict.fromkeys(sums, "batch")


def _score_batch(model, batch, estimator: Estimator, forward: Forward, number: int, before: int) -> list[Tensor]:
    logits, target = forward(model, batch)
    rank, world = process_rank()
    count = len(logits) if logits.ndim else 0
    position = rank + world * (before + torch.arange(count))  # the place in the order of all processes together
    vectors = list(score_examples(estimator, logits, target, position))
    if not all(vector.isfinite().all() for vector in vectors):
        raise FloatingPointError(
            f"the {estimator.score} score of batch {number} is not finite; importance was not measured and the model "
            "is as it was: look for diverged weights (a lower learning rate) or broken inputs"
        )
    return vectors


def _read(loader: Iterable, estimator: Estimator, device: torch.device, progress: bool) -> Iterator[Any]:
    shared = share_loader(loader, estimator.samples, estimator.seed) if estimator.unit == "example" else None
    if shared is not None:
        batches = shared
    elif estimator.samples is None:
        batches = loader
    else:
        batches = _take(loader, estimator.samples)
    total = len(batches) if isinstance(batches, Sized) and not _is_stream(batches) else None
    for batch in tqdm(batches, "importance", total, unit="batch", leave=False, disable=None if progress else True):
        yield send_to_device(batch, device)


def _is_stream(batches: Any) -> bool:
    return isinstance(batches, DataLoader) and not isinstance(batches.dataset, Sized)  # its length is an error


def _take(loader: Iterable, samples: int | float) -> Iterator[Any]:
    """Whole batches until the budget is reached, from data that can only be read as they come."""
    data = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or not hasattr(data, "__len__") or not loader.batch_size:
        raise ValueError(
            "a sample budget needs a DataLoader with a known length and batch size; "
            "give one, or pass exactly the batches to measure"
        )
    wanted, world = budget(samples, len(data)), process_rank()[1]
    return itertools.islice(loader, math.ceil(wanted / (loader.batch_size * world)))


def _set_mode(model: nn.Module, estimator: Estimator) -> None:
    model.train(estimator.mode == "train")
    if estimator.unit == "batch":
        return
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None)
    ]
    if names:
        raise ValueError(
            f"BatchNorm that normalises by the batch makes examples depend on each other ({', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''}): unit 'example' is not defined there; use mode 'eval' with running "
            "statistics, or unit 'batch'"
        )


@contextmanager
def _as_it_was(model: nn.Module, parameters: Mapping[str, nn.Parameter], estimator: Estimator) -> Iterator[None]:
    """Modes, gradients, buffers, random states and what is trainable are put back, whatever happens."""
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    measured = set(parameters.values())
    others = [p for p in gradients if p.requires_grad and p not in measured]  # autograd need not see them
    # with the place where each is registered: a forward may change a buffer or put another in its place
    places = [(m._buffers, name) for m in model.modules() for name in m._buffers if not estimator.update_buffers]
    kept = [None if place[name] is None else place[name].clone() for place, name in places]
    buffers = [(place, name, place[name], copy) for (place, name), copy in zip(places, kept, strict=True)]
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


def _reduce(sums: dict[str, Tensor], count: int, examples: int) -> tuple[dict[str, Tensor], int, int]:
    counts = torch.tensor([count, examples], dtype=torch.float64, device=next(iter(sums.values())).device)
    sum_over_processes([*sums.values(), counts])
    return sums, int(counts[0]), int(counts[1])


def _finish(estimator: Estimator, number: int, value: Tensor) -> Tensor:
    if estimator.cap is not None:
        value.clamp_(max=estimator.cap)
    if estimator.shuffle:
        generator = torch.Generator().manual_seed(estimator.seed + number)
        value = value.flatten()[torch.randperm(value.numel(), generator=generator).to(value.device)].view_as(value)
    return value


def _check_finite(values: Mapping[str, Tensor]) -> None:
    broken = [name for name, value in values.items() if not value.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"importance is not finite in {len(broken)} of {len(values)} parameters, first {broken[0]}; nothing was "
            "changed: the squared gradients overflowed, look for diverged weights"
        )


def _unwrap(model: nn.Module) -> nn.Module:
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    return model
