"""Where importance lies: by layer and by modality, how it is spread, and whether tasks need the same weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mcit.checkpoint import list_checkpoints, read_checkpoint
from mcit.consolidation import FORMAT as HELD
from mcit.diagnosis import NEAR_ZERO
from mcit.errors import DataError
from mcit.importance import FORMAT as MEASURED
from mcit.importance import Importance
from mcit.named_tensors import read_tensors
from mcit.reports.classifier import ClassView, classifier_importance, view_classifier
from mcit.reports.places import Place, locate
from mcit.runner.run_folder import CHECKPOINTS, IMPORTANCE
from mcit.runner.snapshot import read_method

__all__ = [
    "ClassView",
    "Layer",
    "Overlap",
    "Source",
    "Summary",
    "add_up",
    "classifier_importance",
    "compare",
    "read_sources",
    "summarise",
    "view_classifier",
    "weigh_layers",
]

TOP = 0.1  # the share of weights that matter most, when tasks are compared
BINS = np.arange(-24, 6.25, 0.25)  # of the logarithm


@dataclass(frozen=True, eq=False)
class Source:
    """Importance to look into, and where it comes from."""

    label: str
    values: Mapping[str, Tensor]
    description: str
    cap: float | None = None
    capped: Mapping[str, float] | None = None  # by name, where shares are known and the cap is not


@dataclass(frozen=True)
class Layer:
    """What a layer has of the importance. `weights` counts numbers; `capped` is None where none could be."""

    place: Place
    weights: int
    total: float
    zero: int
    near_zero: int
    capped: int | None


@dataclass(frozen=True)
class Summary:
    """The layers of a source in the order of the network, and its histogram over `BINS`."""

    label: str
    description: str
    cap: float | None
    layers: tuple[Layer, ...]
    top: float
    counts: np.ndarray  # [bins], without the weights that have no importance at all

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def total(self) -> float:
        return sum(layer.total for layer in self.layers)

    def share(self, layer: Layer) -> float:
        """The percent of all importance that is in a layer."""
        return 100 * layer.total / self.total if self.total else 0.0

    def share_of(self, count: str) -> float | None:
        """The percent of weights that are `zero`, `near_zero` or `capped`."""
        counts = [getattr(layer, count) for layer in self.layers]
        return None if None in counts else 100 * sum(counts) / self.weights

    def parts(self) -> dict[str, float]:
        """Percent of the importance, by modality or stage."""
        return add_up({layer.place: self.share(layer) for layer in self.layers})


@dataclass(frozen=True, eq=False)
class Overlap:
    """How alike sources are, over the weights that all of them have."""

    labels: tuple[str, ...]
    weights: int
    cosine: np.ndarray  # [sources, sources]
    top: np.ndarray  # [sources, sources], the share of the top weights that two have in common


def read_sources(paths: Iterable[str | Path]) -> list[Source]:
    """Files of importance, files of a manager's state, and folders of runs that hold either; in the order given.

    Tasks that several runs learned are told apart by the folders of the runs.
    """
    read = [(Path(path), source) for path in paths for source in _read_path(Path(path))]
    labels = [source.label for _, source in read]
    found = [
        replace(source, label=f"{path.resolve().name} {source.label}")
        if path.is_dir() and labels.count(source.label) > 1
        else source
        for path, source in read
    ]
    labels = [source.label for source in found]
    twice = {label for label in labels if labels.count(label) > 1}
    if twice:
        raise DataError(
            f"several sources are called {sorted(twice)[0]!r}; rename the files so that they can be told apart"
        )
    return found


@torch.no_grad()
def summarise(source: Source) -> Summary:
    """Shares by layer, and the histogram."""
    if not source.values:
        raise DataError(f"{source.label} holds no importance: nothing was consolidated yet")
    places = locate(source.values)
    weights = sum(value.numel() for value in source.values.values())
    mean = sum(float(value.sum(dtype=torch.float64)) for value in source.values.values()) / weights
    counts, layers = np.zeros(len(BINS) - 1, dtype=np.int64), {}
    for name in places:
        value = source.values[name]
        _add(layers, places[name], value, NEAR_ZERO * mean, _count_capped(source, name))
        positive = value[value > 0].double().log10().clamp(BINS[0], BINS[-1])
        counts += np.histogram(positive.numpy(), BINS)[0]
    made = tuple(Layer(place, *sums) for place, sums in layers.items())
    top = max(float(value.max()) for value in source.values.values() if value.numel())
    return Summary(source.label, source.description, source.cap, made, top, counts)


def weigh_layers(summaries: Sequence[Summary]) -> dict[Place, float]:
    """The percent of the weights in each layer of the whole network: a head that grew counts as large as it became."""
    largest: dict[Place, int] = {}
    for layer in (layer for each in summaries for layer in each.layers):
        largest[layer.place] = max(layer.weights, largest.get(layer.place, 0))
    total = sum(largest.values())
    return {place: 100 * weights / total for place, weights in largest.items()}


def add_up(shares: Mapping[Place, float]) -> dict[str, float]:
    """Percents of layers as those of the parts of the network that they belong to."""
    found: dict[str, float] = {}
    for place, share in shares.items():
        found[place.part] = found.get(place.part, 0.0) + share
    return found


@torch.no_grad()
def compare(sources: Sequence[Source]) -> Overlap:
    """Cosine and overlap of the top weights of every pair, over what all have in common: a head may have grown."""
    shared = _share_out(sources)
    count, total = len(sources), sum(values[0].numel() for values in shared.values())
    dots, common = np.zeros((count, count)), np.zeros((count, count))
    limits = [
        _find_limit([values[number] for values in shared.values()]) for number in range(count)
    ]
    for values in shared.values():
        members = [_belong(value, *limit) for value, limit in zip(values, limits, strict=True)]
        for a in range(count):
            for b in range(a, count):
                dots[a, b] += float(
                    torch.dot(values[a].flatten().double(), values[b].flatten().double())
                )
                common[a, b] += float(
                    torch.minimum(members[a], members[b]).sum(dtype=torch.float64)
                )
    dots, common = (np.triu(matrix) + np.triu(matrix, 1).T for matrix in (dots, common))
    lengths = np.sqrt(np.diag(dots))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = dots / np.outer(lengths, lengths)
    return Overlap(
        tuple(source.label for source in sources), total, cosine, common / _count_top(total)
    )


def _read_path(path: Path) -> list[Source]:
    if path.is_file():
        return [_read_file(path)]
    if not path.is_dir():
        raise DataError(f"there is no importance at {path}: give a file, or the folder of a run")
    files = sorted((path / IMPORTANCE).glob("*.safetensors")) or sorted(path.glob("*.safetensors"))
    if files:
        return [_read_file(file) for file in files]
    for checkpoint in list_checkpoints(path / CHECKPOINTS):
        return [_read_checkpoint(checkpoint, path.name)]
    raise DataError(
        f"{path} holds neither a folder {IMPORTANCE}/ nor a checkpoint with a manager's state: "
        "give a file that Importance.save or ConsolidationManager.save wrote, or run the order again"
    )


def _read_file(path: Path) -> Source:
    label = re.sub(r"^\d+-", "", path.stem)  # files of a run are numbered in the order of its tasks
    try:
        with safe_open(path, framework="pt") as file:
            kind = (file.metadata() or {}).get("format")
    except SafetensorError as error:
        raise DataError(
            f"{path} is damaged or no safetensors file ({error}); make it again"
        ) from None
    if kind == MEASURED:
        found = _load(path)
        return Source(
            label, found.values, found.describe(), found.estimator.cap if found.estimator else None
        )
    if kind != HELD:
        raise DataError(
            f"{path} is of the form {kind!r}; what can be looked into is {MEASURED!r} and {HELD!r}"
        )
    tensors, about = read_tensors(path, HELD)
    parts = (name.partition("/") for name in tensors)
    held = {name: tensors[f"{part}/{name}"] for part, _, name in parts if part == "importance"}
    return _make_held(label, held, json.loads(about["about"]))


def _load(path: Path) -> Importance:
    try:
        return Importance.load(path)
    except ValueError as error:
        raise DataError(str(error)) from None


def _read_checkpoint(path: Path, run: str) -> Source:
    snapshot = read_checkpoint(path)
    state = read_method(snapshot)
    if not state or "importance" not in state:
        raise DataError(
            f"{run} is a run of a method that holds no importance; there is nothing to look into"
        )
    return _make_held(f"{run} (held)", state["importance"], state["about"])


def _make_held(label: str, values: Mapping[str, Tensor], about: Mapping[str, Any]) -> Source:
    latest = about["history"][-1] if about["history"] else "nothing consolidated"
    told = f"held by a manager, {len(about['history'])} tasks merged by {about['merge']!r}; the latest: {latest}"
    return Source(label, values, told, capped=about["capped"] or None)


def _count_capped(source: Source, name: str) -> int | None:
    if source.capped is not None:
        return round(source.capped.get(name, 0.0) * source.values[name].numel())
    return None if source.cap is None else int((source.values[name] >= source.cap).sum())


def _add(layers: dict, place: Place, value: Tensor, low: float, capped: int | None) -> None:
    sums = layers.setdefault(place, [0, 0.0, 0, 0, None if capped is None else 0])
    sums[0] += value.numel()
    sums[1] += float(value.sum(dtype=torch.float64))
    sums[2] += int((value == 0).sum())
    sums[3] += int((value <= low).sum())
    if capped is not None:
        sums[4] += capped


def _share_out(sources: Sequence[Source]) -> dict[str, list[Tensor]]:
    """The tensors of all sources, by name, cut to the rows that all have."""
    shared = {}
    for name in sources[0].values:
        found = [source.values[name] for source in sources if name in source.values]
        if len(found) < len(sources) or len({value.shape[1:] for value in found}) > 1:
            continue
        rows = min(value.shape[0] if value.ndim else 1 for value in found)
        shared[name] = [value[:rows] if value.ndim else value.reshape(1) for value in found]
    if not shared:
        labels = ", ".join(source.label for source in sources)
        raise DataError(
            f"{labels} have no parameter in common: they are of different networks and cannot be compared"
        )
    return shared


def _count_top(total: int) -> int:
    return max(1, round(TOP * total))


def _find_limit(values: Sequence[Tensor]) -> tuple[float, float]:
    """The importance from which a weight is one of the top ones, and what a weight that has just that counts.

    Where many are tied, as at a cap, each of them is a top weight in part, so that all together are as many as asked.
    """
    flat = torch.cat([value.flatten() for value in values])
    count = _count_top(flat.numel())
    limit = flat.kthvalue(flat.numel() - count + 1).values
    above, tied = int((flat > limit).sum()), int((flat == limit).sum())
    return float(limit), (count - above) / tied


def _belong(value: Tensor, limit: float, part: float) -> Tensor:
    """How much each weight belongs to the top ones, from 0 to 1."""
    return (value > limit).float() + part * (value == limit).float()
