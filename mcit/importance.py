"""How much each weight matters: one pass over data, an estimate with a name, a file to share."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from mcit.answer_scores import is_text, read_answers, score_answers
from mcit.config import parse, suggest
from mcit.estimator import Estimator, score_examples
from mcit.gradients.as_it_was import as_it_was, uncompiled
from mcit.gradients.mean_gradients import MeanGradients
from mcit.gradients.per_example import PerExampleGradients
from mcit.named_tensors import (
    bare_name,
    check_same_parameters,
    fingerprint,
    read_tensors,
    write_tensors,
)
from mcit.parallel.global_batch import BatchNorm2d, holding, process_rank
from mcit.parallel.sharded import combine, cut, is_sharded, local, whole, wrap
from mcit.parallel.shares import (
    Share,
    budget,
    join_batches,
    share_batches,
    share_loader,
    sum_over_processes,
)

__all__ = ["Estimator", "Importance", "fingerprint", "measure_importance", "read_logits"]

# (model, batch) -> logits [batch, outputs], target
Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
# (model, batch) -> one number per example, [batch]
ScoreFunction = Callable[[nn.Module, Any], Tensor]
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
        return (
            self.estimator.describe()
            if self.estimator
            else self.note or "importance of unknown origin"
        ) + seen

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
        write_tensors(self.values, path, about)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and JSON, for a checkpoint; `from_state_dict` is the counterpart."""
        estimator = dataclasses.asdict(self.estimator) if self.estimator else None
        return {
            "values": dict(self.values),
            "estimator": estimator,
            "examples": self.examples,
            "note": self.note,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Importance:
        estimator = (
            parse(Estimator, state["estimator"], "estimator") if state["estimator"] else None
        )
        return cls(state["values"], estimator, state["examples"], state["note"])

    @classmethod
    def load(
        cls, path: str | Path, parameters: Iterable[tuple[str, Tensor]] | None = None
    ) -> Importance:
        """Read a file written by `save`; with named parameters, refuse one that was made for others."""
        values, about = read_tensors(path, FORMAT)
        if fingerprint(values) != about["fingerprint"]:
            raise ValueError(
                f"{path} is damaged: its tensors are not those it was written with; make it again"
            )
        if parameters is not None:
            # what is frozen has no importance to fit
            present = {name: p for name, p in parameters if p.requires_grad or name in values}
            check_same_parameters(f"importance file {path}", values, present)
        estimator = (
            parse(Estimator, json.loads(about["estimator"]), "estimator")
            if about["estimator"]
            else None
        )
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

    The model comes back exactly as it was. One that torch.compile has wrapped is measured uncompiled, and its
    parameters have the names of the bare model.

    `options` are the estimator's fields: `measure_importance(model, loader, score="reversed")`. `score` may also be a
    function of one's own, score(model, batch) -> one number per example, [batch]. Several processes share
    out every batch of a DataLoader and find what one finds: with unit `example` its data are read in order, each
    example once; with unit `batch` its own batches are those that gradients are averaged over, whole. Other iterables
    are read as they come, and with unit `batch` the k-th batches of all processes are one. `forward(model, batch)`
    gives logits and target; without it, a batch is an `(inputs, target)` pair, or a dictionary with `labels` for a
    transformers model. A model that FSDP2 has sharded gives sharded importance; all processes must then call.
    """
    function = options.pop("score") if callable(options.get("score")) else None
    if function is not None:
        options.update(
            score="custom", function=getattr(function, "__qualname__", type(function).__name__)
        )
    estimator = _choose_estimator(estimator, options)
    model = _unwrap(model)
    parameters = _choose_parameters(model, only)
    score = _choose_score(estimator, function, forward)
    sharded = any(is_sharded(parameter) for parameter in model.parameters())
    measure = _measure_examples
    if sharded:
        measure = _measure_sharded
    if estimator.unit == "batch":
        measure = _measure_batches
    with as_it_was(model, parameters, keep_buffers=estimator.update_buffers), uncompiled(model):
        _set_mode(model, estimator)
        device = local(next(iter(parameters.values()))).device
        shares = _read(
            loader, estimator, device, progress, together=sharded or estimator.unit == "batch"
        )
        sums, count, examples, paths = measure(model, parameters, shares, estimator, score)
    if not examples:
        raise ValueError(
            "importance was asked for, but the loader gave no example; check the data and `samples`"
        )
    values = {}
    for number, (name, total) in enumerate(sums.items()):
        values[name] = _finish(
            estimator, number, wrap(total.div_(count), parameters[name].detach())
        )
    _check_finite(values)
    return Importance(values, estimator, examples, paths=paths)


def read_logits(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and target of the two common kinds of batch: a pair, or a dictionary with `labels`.

    Labels of tokens (causal and seq2seq language models, vision-language models, token classifiers) are aligned with
    the logits that speak of them.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        target = batch["labels"]
        if target.ndim == 2 and not target.is_floating_point():
            return read_answers(model, batch)
        output = model(**{key: value for key, value in batch.items() if key != "labels"})
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        output = model(batch[0])
        target = batch[1]
    else:
        found = (
            f"a dictionary of {', '.join(map(str, batch))}"
            if isinstance(batch, Mapping)
            else type(batch).__name__
        )
        raise TypeError(
            f"a batch is {found}: importance reads (inputs, target) pairs and dictionaries with "
            "'labels'; for others give forward=lambda model, batch: (logits, target), or, as for the start and end of "
            "an answer in a text, score=lambda model, batch: one number per example"
        )
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__} without logits; give forward=lambda model, batch: "
            "(logits, target), or score=lambda model, batch: one number per example"
        )
    return logits, target


def _choose_estimator(estimator: Estimator | None, options: Mapping[str, Any]) -> Estimator:
    known = [field.name for field in dataclasses.fields(Estimator)]
    for name in options:
        if name not in known:
            near = suggest(name, known)
            raise TypeError(
                f"measure_importance has no option {name!r}{near} (options: {', '.join(known)})"
            )
    return dataclasses.replace(estimator or Estimator(), **options)


def _choose_parameters(
    model: nn.Module, only: Callable[[str], bool] | None
) -> dict[str, nn.Parameter]:
    """Return what is measured, by its names in the bare model."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "importance needs gradients and cannot be measured inside torch.inference_mode()"
        )
    named = (
        (bare_name(name), parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )
    parameters = {name: parameter for name, parameter in named if only is None or only(name)}
    if not parameters:
        raise ValueError(
            "the model has no trainable parameter; importance is measured where requires_grad is True"
        )
    empty = [name for name, parameter in parameters.items() if parameter.is_meta]
    if empty:
        raise ValueError(
            f"{empty[0]!r} is on the meta device and has no values: load the model's weights first"
        )
    return parameters


def _choose_score(
    estimator: Estimator, function: ScoreFunction | None, forward: Forward | None
) -> _Score:
    """Return what gives the vectors to differentiate: of the user's own function, or of logits and target."""
    if function is None:
        return _LogitScore(estimator, forward or read_logits)
    if forward is not None:
        raise ValueError("score=function reads the batch itself: leave forward out")
    return _OwnScore(estimator, function)


class _Score(Protocol):
    """Vectors [batch] whose per-example gradients, squared and added up, are the estimate for a batch."""

    estimator: Estimator

    def __call__(self, model: nn.Module, share: Share, before: int) -> list[Tensor]: ...


@dataclass(frozen=True)
class _LogitScore:
    """The estimator's score of logits and target."""

    estimator: Estimator
    forward: Forward

    def __call__(self, model: nn.Module, share: Share, before: int) -> list[Tensor]:
        logits, target = self.forward(model, share.batch)
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            raise TypeError(
                f"forward must give two tensors, logits and target; found a {type(logits).__name__} and a "
                f"{type(target).__name__}"
            )
        position = share.number_examples(len(logits) if logits.ndim else 0, before)
        if is_text(logits, target):
            return [score_answers(self.estimator, logits, target, position)]
        return list(score_examples(self.estimator, logits, target, position))


@dataclass(frozen=True)
class _OwnScore:
    """A function of the user's own."""

    estimator: Estimator
    function: ScoreFunction

    def __call__(self, model: nn.Module, share: Share, before: int) -> list[Tensor]:
        vector = self.function(model, share.batch)
        if not isinstance(vector, Tensor) or vector.ndim != 1:
            found = (
                list(vector.shape) if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
            )
            name = self.estimator.function
            raise ValueError(
                f"score={name} must give one number per example, [batch]; found {found}"
            )
        return [vector]


def _measure_examples(
    model, parameters, shares: Iterable[Share], estimator: Estimator, score: _Score
):
    gradients = PerExampleGradients(model, parameters, estimator.absolute)
    examples = 0
    for number, share in enumerate(shares):
        if share.rows is None or share.rows.counted:
            with holding(share.rows):
                examples += gradients.add(
                    partial(_score_batch, model, share, score, number, examples)
                )
    counts = torch.tensor(
        [examples], dtype=torch.float64, device=next(iter(gradients.sums.values())).device
    )
    sum_over_processes([*gradients.sums.values(), counts])
    return gradients.sums, int(counts), int(counts), gradients.describe_paths()


def _measure_batches(
    model, parameters, shares: Iterable[Share], estimator: Estimator, score: _Score
):
    gradients = MeanGradients(parameters, estimator.absolute)
    before = 0
    for number, share in enumerate(shares):
        with holding(share.rows):
            (vector,) = _score_batch(model, share, score, number, before)
            gradients.add_mean(vector, share.rows is None or share.rows.counted)
        before += len(vector)
    return gradients.sums, gradients.batches, gradients.examples, dict.fromkeys(parameters, "batch")


def _measure_sharded(
    model, parameters, shares: Iterable[Share], estimator: Estimator, score: _Score
):
    """One backward pass per example, of all processes together: a sharded weight has its gradient only in the sum."""
    gradients = MeanGradients(parameters, estimator.absolute)
    before = 0
    for number, share in enumerate(shares):
        with holding(share.rows):
            vectors = _score_batch(model, share, score, number, before)
            gradients.add_each(vectors, share.rows is None or share.rows.counted)
        before += len(vectors[0])
    return (
        gradients.sums,
        gradients.examples,
        gradients.examples,
        dict.fromkeys(parameters, "network"),
    )


def _score_batch(
    model: nn.Module, share: Share, score: _Score, number: int, before: int
) -> list[Tensor]:
    vectors = score(model, share, before)
    if not all(vector.isfinite().all() for vector in vectors):
        raise FloatingPointError(
            f"the {score.estimator.score} score of batch {number} is not finite; importance was not measured and the "
            "model is as it was: look for diverged weights (a lower learning rate) or broken inputs"
        )
    return vectors


def _read(
    loader: Iterable, estimator: Estimator, device: torch.device, progress: bool, together: bool
):
    """This process's part of every batch; `together` if all processes must come to each of them."""
    alone = process_rank()[1] == 1
    if estimator.unit == "example":
        shares = share_loader(loader, estimator.samples, estimator.seed)
    else:
        shares = None if alone else share_batches(loader, estimator.samples)
    if shares is None:
        batches = loader if estimator.samples is None else _take(loader, estimator.samples)
        shares = join_batches(batches, device) if together and not alone else map(Share, batches)
        total = len(batches) if isinstance(batches, Sized) and not _is_stream(batches) else None
    else:
        total = len(shares)
    for share in tqdm(
        shares, "importance", total, unit="batch", leave=False, disable=None if progress else True
    ):
        yield dataclasses.replace(share, batch=send_to_device(share.batch, device))


def _is_stream(batches: Any) -> bool:
    return isinstance(batches, DataLoader) and not isinstance(
        batches.dataset, Sized
    )  # its length is an error


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
    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and (module.training or module.running_mean is None)
    }
    if estimator.unit == "example" and norms:
        raise ValueError(
            f"BatchNorm that normalises by the batch makes examples depend on each other ({_list(norms)}): unit "
            "'example' is not defined there; use mode 'eval' with running statistics, or unit 'batch'"
        )
    apart = {
        name: m for name, m in norms.items() if not isinstance(m, (BatchNorm2d, nn.SyncBatchNorm))
    }
    if apart and process_rank()[1] > 1:
        raise ValueError(
            f"BatchNorm that normalises by one process's rows does not see the whole batch ({_list(apart)}): use mode "
            "'eval', mcit.parallel.global_batch.BatchNorm2d, nn.SyncBatchNorm on GPUs, or measure in one process"
        )


def _list(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _finish(estimator: Estimator, number: int, value: Tensor) -> Tensor:
    if estimator.cap is not None:
        local(value).clamp_(max=estimator.cap)
    if estimator.shuffle:
        generator = torch.Generator().manual_seed(estimator.seed + number)
        full = whole(value)
        order = torch.randperm(full.numel(), generator=generator).to(full.device)
        value = wrap(cut(full.flatten()[order].view_as(full), value), value)
    return value


def _check_finite(values: Mapping[str, Tensor]) -> None:
    broken = {
        name: torch.logical_not(local(value).isfinite()).any() for name, value in values.items()
    }
    if float(combine((values[name], wrong) for name, wrong in broken.items())):
        names = [name for name, wrong in broken.items() if wrong]
        raise FloatingPointError(
            f"importance is not finite in {len(names)} of {len(values)} parameters, first {_list(names[:1])}; nothing "
            "was changed: the squared gradients overflowed, look for diverged weights"
        )


def _unwrap(model: nn.Module) -> nn.Module:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "the model is sharded by FSDP1, which flattens its parameters: importance needs FSDP2 (fully_shard, or "
            "fsdp_version: 2 for accelerate), or a copy of the model that is not sharded"
        )
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":
            # what torch.compile(model) returns; by its name, because importing the class takes a second
            model = model._orig_mod
        else:
            return model
