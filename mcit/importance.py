"""Importance of every weight: one pass over data, an estimate with a name, a file to keep it in.

The formulas and papers are in mcit/estimator.py; gradients of single examples are formed in
mcit/gradients/.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from mcit.answer_scores import is_text, read_answers, score_answers
from mcit.config.parse import parse
from mcit.estimator import Estimator, score_examples
from mcit.gradients.audit import Scores
from mcit.gradients.mean_gradients import MeanGradients
from mcit.gradients.per_example import PerExampleGradients
from mcit.gradients.preserve_state import preserve_random_states, preserve_state, uncompiled
from mcit.named_tensors import (
    bare_name,
    check_same_parameters,
    fingerprint,
    list_first,
    read_tensors,
    write_tensors,
)
from mcit.parallel.global_batch import BatchNorm2d, global_batch_rows, process_rank
from mcit.parallel.loading import (
    BatchPart,
    SplitLoader,
    budget,
    join_batches,
    read_batches,
    read_in_order,
    sum_over_processes,
)
from mcit.parallel.sharded import from_local, full, is_sharded, reduce_parts, shard_like, to_local
from mcit.spelling import suggest

# (model, batch) -> logits [batch, outputs], target
Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
# (model, batch) -> one number per example, [batch]
ScoreFunction = Callable[[nn.Module, Any], Tensor]
FORMAT = "mcit importance 1"
# examples that the audit of a first batch takes: one would not show the order of rows
AUDITED_EXAMPLES = 2


@dataclass(frozen=True)
class Importance:
    """Importance by parameter name, and how it was obtained.

    values: A tensor for each parameter, of its shape.
    estimator: What measured it, or None.
    examples: How many examples were read.
    note: What made it if no estimator did.
    paths: How the per-example gradients of each parameter were formed: rule, module or network.
    """

    values: Mapping[str, Tensor]
    estimator: Estimator | None = None
    examples: int = 0
    note: str = ""
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)

    def describe(self) -> str:
        """Return the estimator's line with the number of examples."""
        origin = self.note or "importance of unknown origin"
        if self.estimator is not None:
            origin = self.estimator.describe()
        if self.examples:
            return f"{origin}; {self.examples} examples seen"
        return origin

    def save(self, path: str | Path, **extra: str) -> None:
        """Write a safetensors file that `load` reads and whose metadata says how it was made."""
        state = self.state_dict()
        about = {
            "format": FORMAT,
            "estimator": json.dumps(state["estimator"]) if self.estimator else "",
            "note": self.note,
            "examples": str(self.examples),
            "description": self.describe(),
            "fingerprint": fingerprint(self.values),
            **extra,
        }
        write_tensors(self.values, path, about)

    @classmethod
    def load(
        cls, path: str | Path, parameters: Iterable[tuple[str, Tensor]] | None = None
    ) -> Importance:
        """Return what `save` wrote; raise a ValueError if it does not fit the named parameters."""
        values, about = read_tensors(path, FORMAT)
        if fingerprint(values) != about["fingerprint"]:
            raise ValueError(
                f"{path} is damaged: its tensors are not those it was written with; make it again"
            )
        if parameters is not None:
            # frozen parameters have no importance
            expected = {name: p for name, p in parameters if p.requires_grad or name in values}
            check_same_parameters(f"importance file {path}", values, expected)
        state = {
            "values": values,
            "estimator": json.loads(about["estimator"] or "null"),
            "examples": int(about["examples"]),
            "note": about["note"],
        }
        return cls.from_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and JSON for a checkpoint."""
        return {
            "values": dict(self.values),
            "estimator": dataclasses.asdict(self.estimator) if self.estimator else None,
            "examples": self.examples,
            "note": self.note,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Importance:
        """Return the importance of which `state_dict` returned this."""
        estimator = None
        if state["estimator"]:
            estimator = parse(Estimator, state["estimator"], "estimator")
        return cls(state["values"], estimator, state["examples"], state["note"])


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
    """Return the importance of every trainable parameter, or of those whose name passes `only`.

    Choices of the estimator may be given as options: `measure_importance(model, loader,
    score="reversed")`. `score` may also be a function, score(model, batch) -> one number per
    example, [batch]. Where neither an estimator nor a score is given, classes have score `plain`
    and answers in words `log_odds`. `forward(model, batch)` returns logits and target; without it,
    a batch is an `(inputs, target)` pair, or a dictionary with `labels` for a transformers model.

    Several processes divide every batch of a DataLoader and get what one process gets: with unit
    `example` its data are read in order, each example once; with unit `batch` its own batches are
    kept. Other iterables are read as they come, and with unit `batch` the k-th batches of all
    processes are one. A model sharded by FSDP2 gets sharded importance; all processes must call.
    """
    function = None
    if callable(options.get("score")):
        function = options["score"]
        name = getattr(function, "__qualname__", type(function).__name__)
        options = {**options, "score": "custom", "function": name}
    chosen = estimator is not None or "score" in options
    estimator = _choose_estimator(estimator, options)
    if function is not None and forward is not None:
        raise ValueError("score=function reads the batch itself: leave forward out")
    model = _unwrap(model)
    parameters = _choose_parameters(model, only)
    scorer = _Scorer(model, estimator, forward or read_logits, function=function, chosen=chosen)
    with preserve_state(model, parameters, estimator.update_buffers), uncompiled(model):
        _set_mode(model, estimator)
        sharded = any(is_sharded(parameter) for parameter in model.parameters())
        together = sharded or estimator.unit == "batch"
        device = to_local(next(iter(parameters.values()))).device
        shares = _read(loader, estimator, device, progress=progress, together=together)
        measure = _measure_together if together else _measure_examples
        totals = measure(parameters, scorer, shares)
    if not totals.examples:
        raise ValueError(
            "importance was asked for, but the loader yielded no example; check the data and "
            "`samples`"
        )
    values = {}
    for number, (name, total) in enumerate(totals.sums.items()):
        mean = from_local(total.div_(totals.count), parameters[name].detach())
        values[name] = _finish(estimator, number, mean)
    _check_finite(values)
    return Importance(values, scorer.estimator, totals.examples, paths=totals.paths)


def read_logits(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and target of a pair (inputs, target) or a dictionary with `labels`.

    Labels of tokens (language and vision-language models, token classifiers) are aligned with the
    logits that predict them.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        target = batch["labels"]
        if target.ndim == 2 and not target.is_floating_point():
            return read_answers(model, batch)
        output = model(**{key: value for key, value in batch.items() if key != "labels"})
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        target = batch[1]
        output = model(batch[0])
    else:
        found = type(batch).__name__
        if isinstance(batch, Mapping):
            found = f"a dictionary of {', '.join(map(str, batch))}"
        raise TypeError(
            f"a batch is {found}: importance reads (inputs, target) pairs and dictionaries with "
            "'labels'; for others give forward=lambda model, batch: (logits, target), or, as for "
            "the start and end of an answer in a text, score=lambda model, batch: one number per "
            "example"
        )
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__} without logits; give forward=lambda "
            "model, batch: (logits, target), or score=lambda model, batch: one number per example"
        )
    return logits, target


def _choose_estimator(estimator: Estimator | None, options: Mapping[str, Any]) -> Estimator:
    known = [option.name for option in dataclasses.fields(Estimator)]
    for name in options:
        if name not in known:
            near = suggest(name, known)
            raise TypeError(
                f"measure_importance has no option {name!r}{near} (options: {', '.join(known)})"
            )
    if estimator is None and "odds" in options:
        # only log-odds have this choice
        options = {"score": "log_odds", **options}
    return dataclasses.replace(estimator or Estimator(), **options)


def _choose_parameters(
    model: nn.Module, only: Callable[[str], bool] | None
) -> dict[str, nn.Parameter]:
    """Return the parameters to measure, by their names in the bare model."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "importance needs gradients and cannot be measured inside torch.inference_mode()"
        )
    parameters = {}
    for name, parameter in model.named_parameters():
        name = bare_name(name)
        if parameter.requires_grad and (only is None or only(name)):
            parameters[name] = parameter
            if parameter.is_meta:
                raise ValueError(
                    f"{name!r} is on the meta device and has no values: load the model's weights "
                    "first"
                )
    if not parameters:
        raise ValueError(
            "the model has no trainable parameter; importance is measured where requires_grad is "
            "True"
        )
    return parameters


def _unwrap(model: nn.Module) -> nn.Module:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "the model is sharded by FSDP1, which flattens its parameters: importance needs FSDP2 "
            "(fully_shard, or fsdp_version: 2 for accelerate), or a copy of the model that is not "
            "sharded"
        )
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":
            # the result of torch.compile(model); importing its class would take a second
            model = model.get_submodule("_orig_mod")
        else:
            return model


def _set_mode(model: nn.Module, estimator: Estimator) -> None:
    model.train(estimator.mode == "train")
    norms = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            norms[name] = module
    if norms and estimator.unit == "example":
        raise ValueError(
            "BatchNorm that normalizes by the batch makes examples depend on each other "
            f"({list_first(list(norms))}): unit 'example' is not defined there; use mode 'eval' "
            "with running statistics, or unit 'batch'"
        )
    global_norms = (BatchNorm2d, nn.SyncBatchNorm)
    apart = [name for name, module in norms.items() if not isinstance(module, global_norms)]
    if apart and process_rank()[1] > 1:
        raise ValueError(
            "BatchNorm that normalizes by one process's rows does not see the whole batch "
            f"({list_first(apart)}): use mode 'eval', mcit.parallel.global_batch.BatchNorm2d, "
            "nn.SyncBatchNorm on GPUs, or measure in one process"
        )


# --- reading data


def _read(
    loader: Iterable, estimator: Estimator, device: torch.device, progress: bool, together: bool
) -> Iterator[BatchPart]:
    """Yield this process's part of every batch; all processes come to each if `together`."""
    alone = process_rank()[1] == 1
    parts: Any = None
    if estimator.unit == "example":
        parts = read_in_order(loader, estimator.samples, estimator.seed)
    elif isinstance(loader, SplitLoader) or not alone:
        parts = read_batches(loader, estimator.samples)
    total = _count(parts)
    if parts is None:
        batches = loader if estimator.samples is None else _take(loader, estimator.samples)
        total = _count(batches)
        parts = map(BatchPart, batches) if alone or not together else join_batches(batches, device)
    # None: in a terminal only
    hidden = None if progress else True
    for part in tqdm(parts, "importance", total, unit="batch", leave=False, disable=hidden):
        batch = send_to_device(part.batch, device, non_blocking=device.type == "cuda")
        yield dataclasses.replace(part, batch=batch)


def _count(batches: Any) -> int | None:
    """Return the number of batches, or None if it is not known."""
    try:
        return len(batches)
    except TypeError:
        return None


def _take(loader: Iterable, samples: int | float) -> Iterator[Any]:
    """Return whole batches until the budget is reached, from data that cannot be indexed."""
    data = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or not isinstance(data, Sized) or not loader.batch_size:
        raise ValueError(
            "a sample budget needs a DataLoader with a known length and batch size; "
            "give one, or pass exactly the batches to measure"
        )
    examples = loader.batch_size * process_rank()[1]
    return itertools.islice(loader, math.ceil(budget(samples, len(data)) / examples))


# --- the pass


@dataclass
class _Scorer:
    """Scores of a batch: vectors [batch] whose per-example gradients make up the estimate."""

    model: nn.Module
    estimator: Estimator
    forward: Forward
    function: ScoreFunction | None
    # whether the user chose the score; if not, the first batch shows whether it is text
    chosen: bool

    def __call__(self, part: BatchPart, number: int, before: int) -> list[Tensor]:
        """Score batch `number`, which comes after `before` examples of this process."""
        if self.function is None:
            vectors = self._score_logits(part, before)
        else:
            vectors = [self._call_function(self.function, part)]
        if not all(vector.isfinite().all() for vector in vectors):
            raise FloatingPointError(
                f"the {self.estimator.score} score of batch {number} is not finite; importance "
                f"was not measured and the model is unchanged: look for diverged weights (a lower "
                "learning rate) or broken inputs"
            )
        return vectors

    def _score_logits(self, part: BatchPart, before: int) -> list[Tensor]:
        logits, target = self.forward(self.model, part.batch)
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            raise TypeError(
                "forward must return two tensors, logits and target; found a "
                f"{type(logits).__name__} and a {type(target).__name__}"
            )
        position = part.number_examples(len(logits) if logits.ndim else 0, before)
        text = is_text(logits, target)
        if not self.chosen:
            self.chosen = True
            if text:
                self.estimator = dataclasses.replace(self.estimator, score="log_odds")
        if text:
            return [score_answers(self.estimator, logits, target, position)]
        return score_examples(self.estimator, logits, target, position)

    def _call_function(self, function: ScoreFunction, part: BatchPart) -> Tensor:
        vector = function(self.model, part.batch)
        if isinstance(vector, Tensor) and vector.ndim == 1:
            return vector
        found = f"a {type(vector).__name__}"
        if isinstance(vector, Tensor):
            found = str(list(vector.shape))
        raise ValueError(
            f"score={self.estimator.function} must return one number per example, [batch]; "
            f"found {found}"
        )


@dataclass(frozen=True)
class _Totals:
    """Sums of squares or absolute values, and how many were added up."""

    sums: Mapping[str, Tensor]
    count: int
    examples: int
    paths: Mapping[str, str]


def _measure_examples(
    parameters: dict[str, nn.Parameter], scorer: _Scorer, parts: Iterable[BatchPart]
) -> _Totals:
    """Return sums over examples: each process measures its own, and totals are added up."""
    gradients = PerExampleGradients(scorer.model, parameters, scorer.estimator.absolute)
    examples = 0
    device = next(iter(gradients.sums.values())).device
    for number, part in enumerate(parts):
        if part.counted:
            few = None
            if not gradients.paths:
                few = _score_few(scorer, part, device)
            scores = partial(scorer, part, number, examples)
            with global_batch_rows(part.rows):
                examples += gradients.add(scores, few)
    sums = gradients.sums
    count = torch.tensor([examples], dtype=torch.float64, device=device)
    sum_over_processes([*sums.values(), count])
    return _Totals(sums, int(count), int(count), gradients.describe_paths())


def _score_few(scorer: _Scorer, part: BatchPart, device: torch.device) -> Scores | None:
    """Return scores of a few examples of a batch, or None if it is not known which are theirs."""
    if part.read_first is None:
        batch = take_first(part.batch, AUDITED_EXAMPLES)
    elif part.rows is None or len(part.rows.places) <= AUDITED_EXAMPLES:
        return None
    else:
        # what is drawn for the batch itself must not change
        with preserve_random_states(), global_batch_rows(None):
            batch = part.read_first(AUDITED_EXAMPLES)
    if batch is None:
        return None
    few = BatchPart(send_to_device(batch, device))

    def score() -> list[Tensor]:
        with global_batch_rows(None):
            return scorer(few, 0, 0)

    return score


def take_first(batch: Any, count: int) -> Any:
    """Return the first examples of a batch in which every tensor has one row per example.

    None for others, such as flat lists of image patches, and for batches that are not larger.
    """
    if isinstance(batch, UserDict):
        # what tokenizers and processors of transformers return
        data = take_first(batch.data, count)
        if data is None:
            return None
        first = copy.copy(batch)
        first.data = data
        return first
    leaves, spec = tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    rows = {len(leaf) if leaf.ndim else 0 for leaf in tensors}
    others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if len(rows) != 1 or max(rows) <= count or any(leaf is not None for leaf in others):
        return None
    cut = [leaf[:count] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tree_unflatten(cut, spec)


def _measure_together(
    parameters: dict[str, nn.Parameter], scorer: _Scorer, parts: Iterable[BatchPart]
) -> _Totals:
    """Return sums over batch means, or over the examples of a sharded model.

    All processes take part in each gradient: a sharded weight has one only in their sum.
    """
    by_batch = scorer.estimator.unit == "batch"
    gradients = MeanGradients(parameters, scorer.estimator.absolute)
    before = 0
    for number, part in enumerate(parts):
        with global_batch_rows(part.rows):
            vectors = scorer(part, number, before)
            if by_batch:
                gradients.add_mean(vectors[0], part.counted)
            else:
                gradients.add_each(vectors, part.counted)
        before += len(vectors[0])
    gradients.finish()
    count = gradients.batches if by_batch else gradients.examples
    path = "batch" if by_batch else "network"
    return _Totals(gradients.sums, count, gradients.examples, dict.fromkeys(parameters, path))


def _finish(estimator: Estimator, number: int, value: Tensor) -> Tensor:
    """Return the importance of the `number`-th parameter, capped and shuffled if asked for."""
    if estimator.cap is not None:
        to_local(value).clamp_(max=estimator.cap)
    if not estimator.shuffle:
        return value
    generator = torch.Generator().manual_seed(estimator.seed + number)
    whole = full(value)
    order = torch.randperm(whole.numel(), generator=generator).to(whole.device)
    shuffled = whole.flatten()[order].view_as(whole)
    return from_local(shard_like(shuffled, value), value)


def _check_finite(values: Mapping[str, Tensor]) -> None:
    wrong = []
    for value in values.values():
        wrong.append((value, torch.logical_not(to_local(value).isfinite()).any()))
    # every process raises if one of them has found something
    if float(reduce_parts(wrong)):
        names = [name for name, (_, found) in zip(values, wrong, strict=True) if found]
        raise FloatingPointError(
            f"importance is not finite in {len(names)} of {len(values)} parameters, first "
            f"{list_first(names[:1])}; nothing was changed: the squared gradients overflowed, look "
            "for diverged weights"
        )
