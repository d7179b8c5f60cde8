"""Where importance lies: by layer and modality, how it is spread, and what tasks share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from mcit.diagnosis import NEAR_ZERO
from mcit.errors import DataError
from mcit.importance import Importance
from mcit.reports.formats import COUNT, SIGNIFICANT, Cell, Column, Note, Row, Table, TableKind
from mcit.reports.layer_groups import LayerGroup, find_layer_groups
from mcit.runner.run_folder import IMPORTANCE

# the share of weights that matter most, when tasks are compared
TOP = 0.1
# edges of the histogram's bins, as powers of ten
BINS = np.arange(-24, 6.25, 0.25)


@dataclass(frozen=True, eq=False)
class Source:
    """Importance to look into, usually of a task."""

    label: str
    importance: Importance

    @property
    def values(self) -> Mapping[str, Tensor]:
        return self.importance.values

    @property
    def cap(self) -> float | None:
        """The largest importance that the estimator gives a weight; None if it has no limit."""
        return self.importance.estimator.cap if self.importance.estimator else None


@dataclass(frozen=True, eq=False)
class SourceSummary:
    """How much importance there is, where, and how it is spread."""

    source: Source
    # number of weights and sum of importance of each layer group, from input to output
    sizes: Mapping[LayerGroup, int]
    sums: Mapping[LayerGroup, float]
    largest: float
    # percent of the weights; `capped` is NaN if no weight could be
    zero: float
    near_zero: float
    capped: float
    # percent of the weights in each bin; those without any importance are in none
    histogram: np.ndarray

    @property
    def label(self) -> str:
        return self.source.label

    @property
    def weights(self) -> int:
        return sum(self.sizes.values())

    @property
    def mean(self) -> float:
        return sum(self.sums.values()) / self.weights


@dataclass(frozen=True, eq=False)
class Overlap:
    """How similar sources are, over the weights that all of them have."""

    labels: list[str]
    weights: int
    # [sources, sources]
    cosine: np.ndarray
    # [sources, sources], the share of the top weights that two have in common
    top: np.ndarray


def read_sources(paths: Sequence[str | Path]) -> list[Source]:
    """Return the importance in files and in folders of runs; labels tell several folders apart."""
    sources = []
    for path in map(Path, paths):
        for source in _read_path(path):
            if len(paths) > 1 and path.is_dir():
                source = replace(source, label=f"{path.resolve().name} {source.label}")
            sources.append(source)
    return sources


@torch.no_grad()
def summarize_source(source: Source) -> SourceSummary:
    """Return sums by layer group, and the histogram."""
    if not source.values:
        raise DataError(f"{source.label} holds no importance")
    sizes: dict[LayerGroup, int] = {}
    sums: dict[LayerGroup, float] = {}
    for name, group in find_layer_groups(source.values).items():
        value = source.values[name]
        sizes[group] = sizes.get(group, 0) + value.numel()
        sums[group] = sums.get(group, 0.0) + float(value.sum(dtype=torch.float64))
    flat = torch.cat([value.flatten() for value in source.values.values()])
    mean = sum(sums.values()) / len(flat)
    exponents = flat[flat > 0].log10().clamp(BINS[0], BINS[-1])
    return SourceSummary(
        source,
        sizes,
        sums,
        largest=float(flat.max()),
        zero=_percent_of(flat == 0),
        near_zero=_percent_of(flat <= NEAR_ZERO * mean),
        capped=math.nan if source.cap is None else _percent_of(flat >= source.cap),
        histogram=100 * np.histogram(exponents.numpy(), BINS)[0] / len(flat),
    )


def list_shares(summaries: Sequence[SourceSummary]) -> list[dict[LayerGroup, float]]:
    """Return the percent of the weights in each layer group, and of the importance of each source.

    A head counts with as many weights as it has in the end.
    """
    largest: dict[LayerGroup, int] = {}
    for summary in summaries:
        for group, size in summary.sizes.items():
            largest[group] = max(size, largest.get(group, 0))
    return [_to_percent(values) for values in (largest, *(each.sums for each in summaries))]


def add_by_part(shares: Mapping[LayerGroup, float]) -> dict[str, float]:
    """Return percents of layer groups as those of the parts of the network."""
    parts: dict[str, float] = {}
    for group, share in shares.items():
        parts[group.part] = parts.get(group.part, 0.0) + share
    return parts


@torch.no_grad()
def compare_sources(sources: Sequence[Source]) -> Overlap:
    """Return cosine and overlap of the top weights of every pair, over what all have in common."""
    vectors = _find_shared(sources)
    # squares of small numbers would vanish in single precision
    scaled = F.normalize(vectors / vectors.amax(dim=1, keepdim=True), dim=1)
    top = torch.stack([_find_top(vector) for vector in vectors])
    common = torch.stack([torch.minimum(each, top).sum(dim=1) for each in top])
    return Overlap(
        [source.label for source in sources],
        vectors.shape[1],
        cosine=(scaled @ scaled.T).numpy(),
        top=(common / common.diag()).numpy(),
    )


def tabulate_sources(summaries: Sequence[SourceSummary]) -> Table:
    """Return how large importance is, and how many weights have none or all they can have."""
    forms = {"weights": COUNT, "mean": SIGNIFICANT, "largest": SIGNIFICANT}
    forms |= {"zero %": ".2f", "near zero %": ".2f", "capped %": ".2f"}
    rows = []
    notes = [
        Note("Near zero is at most a thousandth of the mean; capped is at the estimator's cap.")
    ]
    for each in summaries:
        numbers = (each.weights, each.mean, each.largest, each.zero, each.near_zero, each.capped)
        rows.append(Row(each.label, [Cell(number) for number in numbers]))
        described = each.source.importance.describe()
        notes.append(Note(f"{each.label}: {described}", detail=True))
    columns = [Column("importance")]
    columns += [Column(name, form) for name, form in forms.items()]
    return _make_table("importance", "Importance", columns, rows, notes)


def tabulate_parts(summaries: Sequence[SourceSummary]) -> Table:
    """Return percents of the importance by modality or stage, next to those of the weights."""
    columns = [add_by_part(shares) for shares in list_shares(summaries)]
    rows = [Row(part, _pick(columns, part)) for part in columns[0]]
    heads = [Column("part"), *_percent_columns(summaries)]
    return _make_table("importance-parts", "Importance by part of the network", heads, rows)


def tabulate_layers(summaries: Sequence[SourceSummary]) -> Table:
    """Return percents of the importance by layer, next to those of the weights."""
    columns = list_shares(summaries)
    rows = []
    for group in columns[0]:
        rows.append(Row(group.layer, [group.part, *_pick(columns, group)]))
    heads = [Column("layer"), Column("part"), *_percent_columns(summaries)]
    return _make_table("importance-layers", "Importance by layer", heads, rows)


def tabulate_overlap(overlap: Overlap) -> Table:
    """Return for every pair of sources the cosine, and how many of the top weights are the same."""
    rows = []
    for pair in combinations(range(len(overlap.labels)), 2):
        label = " and ".join(overlap.labels[place] for place in pair)
        cosine = Cell(overlap.cosine[pair])
        common = Cell(100 * overlap.top[pair])
        rows.append(Row(label, [cosine, common]))
    share = f"{100 * TOP:.0f} %"
    note = Note(
        f"Over the {overlap.weights:,} weights that all have in common. Unrelated tasks would "
        f"have {share} of "
        "their top weights in common by chance; ties, as at a cap, are shared out."
    )
    columns = [
        Column("pair"),
        Column("cosine", ".3f"),
        Column(f"top {share} in common, %", ".1f"),
    ]
    return _make_table("importance-overlap", "Overlap between tasks", columns, rows, [note])


def _make_table(name: str, title: str, columns: Any, rows: Any, notes: Any = ()) -> Table:
    return Table(TableKind.IMPORTANCE, name, title, columns, rows, notes)


def _percent_columns(summaries: Sequence[SourceSummary]) -> list[Column]:
    return [Column("weights %"), *(Column(f"{each.label} %") for each in summaries)]


def _pick(columns: Sequence[Mapping[Any, float]], key: Any) -> list[Cell]:
    return [Cell(column.get(key, math.nan)) for column in columns]


def _percent_of(chosen: Tensor) -> float:
    return 100 * int(chosen.sum()) / len(chosen)


def _to_percent(values: Mapping[LayerGroup, float]) -> dict[LayerGroup, float]:
    total = sum(values.values()) or 1.0
    return {group: 100 * value / total for group, value in values.items()}


def _read_path(path: Path) -> list[Source]:
    files = [path]
    if path.is_dir():
        files = sorted((path / IMPORTANCE).glob("*.safetensors"))
        files = files or sorted(path.glob("*.safetensors"))
    if not files or not path.exists():
        raise DataError(
            f"there is no importance at {path}: give a file that Importance.save wrote, or the "
            f"folder of a run that has {IMPORTANCE}/"
        )
    return [_read_file(file) for file in files]


def _read_file(path: Path) -> Source:
    # files of a run are numbered in the order of its tasks
    number, _, name = path.stem.partition("-")
    label = name if number.isdecimal() and name else path.stem
    try:
        return Source(label, Importance.load(path))
    except (SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not a file of importance, or damaged: {error}") from None


def _find_shared(sources: Sequence[Source]) -> Tensor:
    """Return the weights that all sources have, [sources, weights], in the rows that all have."""
    shared = []
    for name in sources[0].values:
        found = [source.values[name] for source in sources if name in source.values]
        values = [torch.atleast_1d(value) for value in found]
        shapes = {value.shape[1:] for value in values}
        if len(values) == len(sources) and len(shapes) == 1:
            rows = min(len(value) for value in values)
            shared.append(torch.stack([value[:rows].flatten() for value in values]))
    if not shared:
        labels = ", ".join(source.label for source in sources)
        raise DataError(f"{labels} have no parameter in common: they belong to different networks")
    return torch.cat(shared, dim=1)


def _find_top(values: Tensor) -> Tensor:
    """Return 1 for each top weight; those tied with the last one, as at a cap, share its place."""
    count = max(1, round(TOP * len(values)))
    limit = values.kthvalue(len(values) - count + 1).values
    above = (values > limit).double()
    tied = (values == limit).double()
    return above + tied * (count - above.sum()) / tied.sum()
