"""What is kept of classes instead of their images: counts, means and covariances of features.

n_c, mu_c = mean of f, Sigma_c = sum (f - mu_c)(f - mu_c)' / (n_c - 1), over the training images of
class c as they are scored, without augmentation. One covariance for all classes is the mean of
theirs, weighted by n_c - 1.

Features are gathered in file order, so that the numbers do not depend on how many processes
computed them, and everything is computed in double precision and kept in single.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcit.gradients.preserve_state import eval_mode
from mcit.parallel.global_batch import draw_rows, process_rank
from mcit.parallel.loading import SplitLoader, gather_counts, sum_over_processes
from mcit.task import Batch, Task, move

if TYPE_CHECKING:
    from mcit.models.learner import Learner

# Returns [rows, width] of a batch that is on the device.
Read = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Needs:
    """What somebody wants to know of the classes seen; nothing by default."""

    # counts and means
    means: bool = False
    # one covariance for all classes
    shared: bool = False
    # a covariance of each class, of its features raised to these powers
    powers: frozenset[float] = frozenset()
    # how fast the head's answers change with the features, see ClassStatistics.sensitivity
    sensitivity: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.means or other.means,
            self.shared or other.shared,
            self.powers | other.powers,
            self.sensitivity or other.sensitivity,
        )

    def __bool__(self) -> bool:
        return self != Needs()


@dataclass(frozen=True)
class Features:
    """Features of the examples of a task, in file order; the same in every process."""

    # [examples, width]
    values: Tensor
    # [examples], counted over all classes in the order of learning
    labels: Tensor

    def of_class(self, label: int) -> Tensor:
        """Return the features [examples, width] of one class."""
        return self.values[self.labels == label]


@dataclass(frozen=True)
class ClassStatistics:
    """What is known of the features of the classes seen, class 0 first."""

    # [classes]
    counts: Tensor
    # [classes, width]
    means: Tensor
    # [width, width]; not kept where it follows from the covariances of the classes
    shared: Tensor | None = None
    # [classes, width, width] of the features raised to a power
    covariances: Mapping[float, Tensor] = field(default_factory=dict)
    # [classes]: how far Ledoit and Wolf shrink each of them towards a multiple of the identity
    shrinkages: Mapping[float, Tensor] = field(default_factory=dict)
    # [width, width]: see `find_sensitivity`, of the latest task
    sensitivity: Tensor | None = None

    @classmethod
    def measure(cls, features: Features, known: int, total: int, needs: Needs) -> ClassStatistics:
        """Return the statistics of the classes from `known` up to, and without, `total`."""
        classes = [features.of_class(label).double() for label in range(known, total)]
        counts = torch.tensor([len(values) for values in classes])
        means = torch.stack([_mean(values) for values in classes])
        covariances = {}
        shrinkages = {}
        for power in sorted(needs.powers):
            raised = [raise_features(values, power) for values in classes]
            covariances[power] = torch.stack([find_covariance(v) for v in raised]).float()
            shrinkages[power] = torch.stack([find_shrinkage(v) for v in raised]).float()
        shared = None
        if needs.shared and 1.0 not in needs.powers:
            matrices = torch.stack([find_covariance(values) for values in classes])
            shared = _pool(matrices, counts).float()
        return cls(counts, means.float(), shared, covariances, shrinkages)

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def width(self) -> int:
        return self.means.shape[1]

    def join(self, later: ClassStatistics) -> ClassStatistics:
        """Return the statistics of these classes and of those that were learned after them."""
        shared = None
        if self.shared is not None and later.shared is not None:
            parts = torch.stack([self.shared.double(), later.shared.double()])
            freedom = torch.stack([_freedom(self.counts).sum(), _freedom(later.counts).sum()])
            shared = _average(parts, freedom).float()
        return ClassStatistics(
            torch.cat([self.counts, later.counts]),
            torch.cat([self.means, later.means]),
            shared,
            _join(self.covariances, later.covariances),
            _join(self.shrinkages, later.shrinkages),
            later.sensitivity,
        )

    def map_features(self, matrix: Tensor, shift: Tensor | None = None) -> ClassStatistics:
        """Return the statistics of f M + b for features f: mu M + b and M' Sigma M, exactly.

        matrix: [width, width], or one for each class [classes, width, width]; shift: [width].
        """
        matrix = matrix.double()
        if matrix.dim() == 3 and self.shared is not None:
            raise ValueError(
                "a covariance that all classes share cannot follow a separate map for each class"
            )
        each = matrix.expand(self.classes, *matrix.shape[-2:])
        means = torch.einsum("cd,cde->ce", self.means.double(), each)
        if shift is not None:
            means = means + shift.double()
        covariances = {
            power: (each.mT @ values.double() @ each).float()
            for power, values in self.covariances.items()
        }
        shared = self.shared
        if shared is not None:
            shared = (matrix.T @ shared.double() @ matrix).float()
        return replace(self, means=means.float(), shared=shared, covariances=covariances)

    def shift_means(self, shifts: Tensor) -> ClassStatistics:
        """Return the statistics with means moved by [classes, width]; covariances stay."""
        return replace(self, means=(self.means.double() + shifts.double()).float())

    def shared_covariance(self) -> Tensor:
        """Return the covariance [width, width] within classes, in double precision."""
        if self.shared is not None:
            return self.shared.double()
        return _pool(self.covariances[1.0].double(), self.counts)

    def gram(self) -> Tensor:
        """Return the sums of f f' [classes, width, width] of every class, in double precision."""
        means = self.means.double()
        within = _freedom(self.counts).view(-1, 1, 1) * self.covariances[1.0].double()
        counts = self.counts.double().view(-1, 1, 1)
        return within + counts * means.unsqueeze(2) * means.unsqueeze(1)

    def total_gram(self) -> Tensor:
        """Return the sum of f f' [width, width] over all classes, in double precision."""
        means = self.means.double()
        counts = self.counts.double().view(-1, 1)
        within = _freedom(self.counts).sum() * self.shared_covariance()
        return within + means.T @ (counts * means)

    def bytes_held(self) -> int:
        """Return the size of all that is kept."""
        kept = [self.counts, self.means, *self.covariances.values(), *self.shrinkages.values()]
        kept += [matrix for matrix in (self.shared, self.sensitivity) if matrix is not None]
        return sum(tensor.nbytes for tensor in kept)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, tensors by name."""
        state: dict[str, Any] = {
            "counts": self.counts,
            "means": self.means,
            "covariances": {str(power): value for power, value in self.covariances.items()},
            "shrinkages": {str(power): value for power, value in self.shrinkages.items()},
        }
        if self.shared is not None:
            state["shared"] = self.shared
        if self.sensitivity is not None:
            state["sensitivity"] = self.sensitivity
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> ClassStatistics:
        """Return what `state_dict` was made of."""
        return cls(
            state["counts"],
            state["means"],
            state.get("shared"),
            {float(power): value for power, value in state["covariances"].items()},
            {float(power): value for power, value in state["shrinkages"].items()},
            state.get("sensitivity"),
        )


def raise_features(features: Tensor, power: float) -> Tensor:
    """Return features raised to a power (Tukey's transform), which makes skewed ones rounder."""
    if power == 1.0:
        return features
    return features.clamp_min(0).pow(power)


@torch.no_grad()
def read_features(learner: Learner, task: Task, loader: SplitLoader) -> Features:
    """Return the learner's features of a loader's examples in eval mode, gathered in order."""

    def read(batch: Batch) -> Tensor:
        return learner(batch, task.head).features

    with eval_mode(learner):
        values, labels = gather_rows(read, task, loader, find_device(learner))
    return Features(values, labels)


@torch.no_grad()
def gather_rows(
    read: Read, task: Task, loader: SplitLoader, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return what `read` finds for every example, and its label, on the CPU in file order."""
    values: list[Tensor] = []
    labels: list[Tensor] = []
    places: list[Tensor] = []
    total = 0
    for part in loader:
        total += part.rows.total if part.rows is not None else 0
        if not part.counted:
            continue
        batch = move(part.batch, device)
        values.append(read(batch).float().cpu())
        labels.append(task.target(batch).cpu())
        places.append(part.number_examples(len(labels[-1]), before=sum(map(len, labels[:-1]))))
    if process_rank()[1] == 1:
        return torch.cat(values), torch.cat(labels)
    # a process may have read nothing, and does not know how wide the rows are
    widths = gather_counts(values[0].shape[1] if values else 0, device)
    found = torch.zeros(total, max(widths), dtype=torch.float32, device=device)
    found_labels = torch.zeros(total, dtype=torch.int64, device=device)
    if places:
        rows = torch.cat(places).to(device)
        found[rows] = torch.cat(values).to(device)
        found_labels[rows] = torch.cat(labels).to(device)
    # every row is zero in all processes but one, so that the sum is exact
    sum_over_processes([found, found_labels])
    return found.cpu(), found_labels.cpu()


def find_device(learner: Learner) -> torch.device:
    """Return where the learner's weights are."""
    return next(learner.parameters()).device


def find_covariance(features: Tensor) -> Tensor:
    """Return the unbiased covariance [width, width]; that of a single example is 0."""
    values = features.double()
    centered = values - _mean(values)
    return centered.T @ centered / max(len(values) - 1, 1)


def find_sensitivity(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the mean over examples of W' (diag p - p p') W [width, width].

    p are the probabilities of a linear head with weights W [classes, width]: the Fisher information
    of its answers about the features.
    """
    values = features.double()
    weight = weight.double()
    logits = values @ weight.T
    if bias is not None:
        logits = logits + bias.double()
    probabilities = logits.softmax(dim=1)  # [examples, classes]
    pairs = probabilities.T @ probabilities / len(values)
    inner = torch.diag(probabilities.mean(dim=0)) - pairs
    return weight.T @ inner @ weight


def find_shrinkage(features: Tensor) -> Tensor:
    """Return how far to shrink the covariance of features towards mean(diag) I, from 0 to 1.

    Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance matrices,
    Journal of Multivariate Analysis 2004: the share that minimizes the expected squared error.
    """
    values = features.double()
    count, width = values.shape
    if count < 2:
        return torch.ones((), dtype=torch.float64)
    centered = values - values.mean(dim=0)
    covariance = centered.T @ centered / count
    scale = covariance.diagonal().mean()
    # squared distance of the covariance from its target, and its expected squared error
    distance = covariance.square().sum() - width * scale.square()
    error = (centered.square().sum(dim=1).square().mean() - covariance.square().sum()) / count
    if not bool(distance > 0):
        return torch.ones((), dtype=torch.float64)
    return (error / distance).clamp(0, 1)


def draw_prototypes(means: Tensor, count: int, radius: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return `count` features around the means of random classes, and their labels.

    feature = mu_c + radius * N(0, I), c uniform over the rows of `means` [classes, width]. It draws
    for the examples of a batch that processes share.
    """
    uniform = draw_rows(torch.rand, count)
    labels = (uniform.double() * len(means)).long()
    features = means[labels.to(means.device)]
    if radius:
        width = means.shape[1]
        noise = draw_rows(lambda rows: torch.randn(rows, width), count)
        features = features + radius * noise.to(features)
    return features, labels.to(means.device)


def draw_normal(mean: Tensor, covariance: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return draws [count, width] from a normal distribution; the covariance may be singular."""
    values, vectors = torch.linalg.eigh(covariance.double())
    root = vectors * values.clamp_min(0).sqrt()
    noise = torch.randn(count, len(mean), generator=generator, dtype=torch.float64)
    return (mean.double() + noise @ root.T).float()


def _mean(values: Tensor) -> Tensor:
    """Return the mean row; zeros if there is none, as for a class that a dry run does not meet."""
    return values.sum(dim=0) / max(len(values), 1)


def _freedom(counts: Tensor) -> Tensor:
    """Return the degrees of freedom [classes] of the covariances of classes."""
    return (counts - 1).clamp_min(0).double()


def _pool(covariances: Tensor, counts: Tensor) -> Tensor:
    """Return one covariance of all classes from theirs [classes, width, width]."""
    return _average(covariances, _freedom(counts))


def _average(matrices: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the first dimension; the plain one if all weights are 0."""
    if not bool(weights.any()):
        weights = torch.ones_like(weights)
    return torch.einsum("c,cde->de", weights / weights.sum(), matrices)


def _join(before: Mapping[float, Tensor], later: Mapping[float, Tensor]) -> dict[float, Tensor]:
    return {power: torch.cat([value, later[power]]) for power, value in before.items()}
