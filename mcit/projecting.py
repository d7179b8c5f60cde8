"""The base class of methods whose steps leave the outputs of earlier inputs unchanged.

A linear layer computes y = W x, and a convolution does so for every patch x of its input. After a
step dW the outputs of earlier inputs differ by dW x, which is 0 if the rows of dW are orthogonal to
all x. So every finished step of the optimizer, momentum, weight decay and all, is projected:

    W = W_before + dW P,   P x = 0 for the inputs x of earlier tasks

What is shared and cannot be projected does not move from the second task on: biases, norms with
their statistics, embeddings, convolutions in groups, and the rows of earlier classes in a head that
widens. Adapters (LoRA) are linear layers, and are projected as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcit.class_statistics import find_device
from mcit.config.schema import ModelConfig
from mcit.method import Method, Outcome, Stage, Step
from mcit.models.learner import Learner
from mcit.parallel.loading import load_examples
from mcit.task import Batch, Task, Track, move

# Takes the name of a layer, the layer, and its input for a batch.
See = Callable[[str, nn.Module, Tensor], None]
# parameters, and how many of their first rows must not move
Rows = Sequence[tuple[Tensor, int]]


@dataclass(frozen=True)
class Projector:
    """What is left of a step: its part in the directions, or its part outside of them."""

    # [inputs, directions], orthonormal columns
    directions: Tensor
    # whether steps stay within the directions, or avoid them
    within: bool
    scale: float = 1.0

    @classmethod
    def avoid(cls, directions: Tensor) -> Projector:
        """Return a projector onto all that is orthogonal to the directions, as thin as can be."""
        inputs, taken = directions.shape
        if 2 * taken <= inputs:
            return cls(directions, within=False)
        complete = torch.linalg.qr(directions.double(), mode="complete").Q
        return cls(complete[:, taken:].to(directions.dtype), within=True)

    def __call__(self, step: Tensor) -> Tensor:
        """Return the projected step [outputs, inputs]."""
        inside = (step @ self.directions) @ self.directions.T
        kept = inside if self.within else step - inside
        return kept if self.scale == 1.0 else kept * self.scale

    def to(self, weight: Tensor) -> Projector:
        """Return the projector on the device and in the precision of a weight."""
        return Projector(self.directions.to(weight), self.within, self.scale)


class Projection:
    """Projects the steps of a learner's layers, and puts held rows back."""

    def __init__(self, learner: Learner, projectors: Mapping[str, Projector], rows: Rows = ()):
        self.layers: list[tuple[Tensor, Projector]] = []
        for name, layer in find_layers(learner).items():
            if name in projectors:
                weight = layer.weight
                self.layers.append((weight, projectors[name].to(weight)))
        self.rows = list(rows)
        self._before: list[Tensor] = []

    @torch.no_grad()
    def remember(self) -> None:
        """Keep the weights as they are before the step."""
        moving = [weight for weight, _ in self.layers]
        moving += [parameter[:count] for parameter, count in self.rows]
        if not self._before:
            self._before = [torch.empty_like(tensor) for tensor in moving]
        for kept, tensor in zip(self._before, moving, strict=True):
            kept.copy_(tensor)

    @torch.no_grad()
    def project(self) -> None:
        """Replace the step that was taken since by what the projectors leave of it."""
        count = len(self.layers)
        for (weight, projector), before in zip(self.layers, self._before[:count], strict=True):
            step = (weight - before).flatten(1)  # [outputs, inputs]
            weight.copy_(before + projector(step).view(weight.shape))
        for (parameter, rows), before in zip(self.rows, self._before[count:], strict=True):
            parameter[:rows] = before


@dataclass
class ProjectingMethod(Method):
    """Sees the inputs of layers after each task, and projects the steps of later ones."""

    first_task_is_finetuning = True
    comes_last = True
    projection: Projection | None = field(default=None, init=False, repr=False)

    def projects(self) -> bool:
        """Whether steps are projected at all; if not, the method is finetuning."""
        raise NotImplementedError

    def see_inputs(self, stage: Stage) -> Sequence[str]:
        """Take in the inputs of the task that has ended, and return notes."""
        raise NotImplementedError

    def make_projectors(self) -> Mapping[str, Projector]:
        """Return the projector of each layer that was seen."""
        raise NotImplementedError

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        if tasks[0].track is not Track.TEXT:
            return []
        return [
            f"method {self.name!r} projects the steps of layers, and the answers of a language "
            "model come from embeddings that all tasks share; choose another method"
        ]

    def begin_task(self, stage: Stage) -> Sequence[str]:
        self._make_projection(stage)
        if self.projection is not None:
            _freeze_rest(stage, set(self.make_projectors()))
        return ()

    def begin_fit(self, stage: Stage) -> None:
        if self.projection is None:
            return
        for module in stage.learner.encoder.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        if self.projection is not None:
            self.projection.remember()

    def after_step(self, stage: Stage, step: Step) -> None:
        if self.projection is not None:
            self.projection.project()

    def end_task(self, stage: Stage) -> Outcome:
        # after the last task nothing comes that could be held
        if not stage.later or not self.projects():
            return Outcome()
        return Outcome(notes=self.see_inputs(stage))

    def _make_projection(self, stage: Stage) -> None:
        self.projection = None
        if stage.index > 0 and self.projects():
            rows = _find_held_rows(stage)
            self.projection = Projection(stage.learner, self.make_projectors(), rows)


def find_layers(learner: Learner) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the backbone's layers that train and can be projected, by name."""
    found: dict[str, nn.Linear | nn.Conv2d] = {}
    for name, module in learner.encoder.named_modules():
        if not isinstance(module, (nn.Linear, nn.Conv2d)) or not module.weight.requires_grad:
            continue
        if isinstance(module, nn.Conv2d):
            plain = module.groups == 1 and module.padding_mode == "zeros"
            if not plain or isinstance(module.padding, str):
                continue
        found[name] = module
    return found


def list_patches(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return what a layer multiplies its weights with, [vectors, inputs], example by example."""
    if not isinstance(layer, nn.Conv2d):
        return inputs.reshape(-1, inputs.shape[-1])
    # a tuple: padding in words was left out
    padding = tuple(int(size) for size in layer.padding)
    columns = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
    return columns.mT.reshape(-1, columns.shape[1])


def read_plain(stage: Stage, batches: Iterable[Sequence[int]]) -> Iterator[Batch]:
    """Yield whole batches of the task's training examples without augmentation, by their places."""
    task = stage.task
    examples = task.examples("plain")
    device = find_device(stage.learner)
    for batch in batches:
        collated = task.collate(load_examples(examples, batch), stage.learner.processor)
        yield move(collated, device)


@torch.no_grad()
def watch_layers(stage: Stage, batches: Iterable[Batch], see: See) -> None:
    """Show `see` the input of every layer for every batch, in eval mode."""
    learner = stage.learner
    handles = []
    for name, layer in find_layers(learner).items():

        def show(module: nn.Module, arguments: tuple[Tensor, ...], name: str = name) -> None:
            seen = arguments[0].detach()
            see(name, module, seen.to(torch.promote_types(seen.dtype, torch.float32)))

        handles.append(layer.register_forward_pre_hook(show))
    training = learner.training
    learner.eval()
    try:
        for batch in batches:
            learner(batch, stage.task.head)
    finally:
        for handle in handles:
            handle.remove()
        learner.train(training)


def _freeze_rest(stage: Stage, projected: set[str]) -> None:
    """Freeze what earlier tasks share and no projector holds."""
    learner = stage.learner
    for name, parameter in learner.encoder.named_parameters():
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or layer not in projected:
            parameter.requires_grad_(False)
    head = stage.task.head.name
    if any(task.head.name == head for task in stage.earlier):
        answering = {id(parameter) for parameter, _ in _find_held_rows(stage)}
        for parameter in learner.heads[head].parameters():
            if id(parameter) not in answering:
                parameter.requires_grad_(False)


def _find_held_rows(stage: Stage) -> Rows:
    """Return the rows of earlier classes of a head that has widened: weight and bias."""
    learner = stage.learner
    head = stage.task.head
    before = [task.head.outputs for task in stage.earlier if task.head.name == head.name]
    if not before:
        return []
    weight = learner.classifier_weight(head)
    names = (weight, weight.removesuffix("weight") + "bias")
    parameters = dict(learner.named_parameters())
    return [(parameters[name], before[-1]) for name in names]
