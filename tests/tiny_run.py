"""Whole runs in seconds: the embedded benchmark in small, a tiny ViLT that knows its words, a
narrow ResNet."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tiny_vilt import PATCH, make_model
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from transformers import BertTokenizer
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.checkpoint import digest_tensor
from mcit.config.options import Kind, option
from mcit.config.parse import override, parse
from mcit.config.schema import RunConfig, TrainingConfig
from mcit.data.image_folders import StoredImages
from mcit.data.scores import Accuracy
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.embedded.pretraining import SPECIAL, read_texts
from mcit.embedded.shapes import draw_shapes
from mcit.method import Method, Stage
from mcit.models.backbone import Backbone, Layer
from mcit.models.learner import Learner
from mcit.runner.plan import Plan
from mcit.runner.plan import resolve as resolve_plan
from mcit.runner.result import Result
from mcit.sequence import run
from mcit.session import begin_task
from mcit.task import ClassSpan, Head, Recipe, Task, Track
from mcit.training.trainer import Reader, Trainer

gc.freeze()  # what is imported by now need not be searched for garbage after every task

VISION_LANGUAGE = ("vqa", "nlvr2", "snli-ve", "vcr")
RECIPE = {"epochs": 1, "batch_size": 8, "learning_rate": 2e-3, "weight_decay": 1e-2}
SHAPES = {"train": 25, "eval": 10}  # images of each class
TRAIN, EVALUATION = 17, 13  # examples: the last batch of an epoch has one


@dataclass
class Run:
    """What a run left: its result, and the learner's state after every task."""

    result: Result
    states: list[dict[str, Tensor]]
    method: Method
    learner: nn.Module

    @property
    def rows(self) -> list[list[float]]:
        return [list(row) for row in self.result.matrix.rows]

    @property
    def state(self) -> dict[str, Tensor]:
        return self.states[-1]


def write_world(folder: Path) -> dict[str, str]:
    """Data and a checkpoint in `folder`, as the keys of a configuration that lead there."""
    os.environ["MCIT_CACHE"] = str(folder / "cache")
    root, vilt = folder / "data", folder / "vilt"
    write_benchmark(root, Sizes(train=TRAIN, evaluation=EVALUATION), seed=3)
    words = sorted(
        {word for text in read_texts(root) for word in re.findall(r"\w+|[^\w\s]", text.lower())}
    )
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    make_model(
        vocab_size=len(vocabulary), max_position_embeddings=40, initializer_range=0.1
    ).save_pretrained(vilt)
    BertTokenizer(vocab=vocabulary).save_pretrained(vilt)
    ViltImageProcessorPil(size={"shortest_edge": 2 * PATCH}, size_divisor=PATCH).save_pretrained(
        vilt
    )
    return {"data_root": str(root), "model.name": str(vilt)}


def configure(
    order: str, method: str = "finetune", world: Mapping[str, str] | None = None, **options: Any
) -> RunConfig:
    """The configuration of a tiny run; `options` are dotted keys with a double underscore for the
    dot."""
    data: dict[str, Any] = {
        "order": order,
        "method": {"name": method},
        "training": {"log_every": 2},
        # written at once: what comes before what does not depend on a thread
        "checkpoint": {"background": False},
    }
    if world is None:
        recipe = {"epochs": 1, "batch_size": 16, "learning_rate": 0.05, "weight_decay": 5e-4}
        data["tasks"] = {"shapes": {"classes": 6, "recipe": recipe}}
        data["model"] = {"name": "resnet18", "width": 4}
    else:
        data["tasks"] = {name: {"recipe": dict(RECIPE)} for name in VISION_LANGUAGE}
        data["tasks"]["vqa"]["minimum"] = 1
    changes = {**(world or {}), **{key.replace("__", "."): value for key, value in options.items()}}
    return parse(
        RunConfig, override(data, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    )


def resolve(config: RunConfig) -> Plan:
    """The plan of a configuration, with a few images of each class where it is about shapes."""
    # another precision may have been used in this process
    AcceleratorState._reset_state(reset_partial_state=False)
    plan = resolve_plan(config)
    if plan.tasks[0].dataset == "shapes":
        for split, count in SHAPES.items():
            few = _draw_few(split, count)
            plan.tasks[0].part.pool.load(split, lambda on_bad, few=few: few, "fail")
    return plan


@functools.cache
def _draw_few(split: str, count: int) -> StoredImages:
    pixels, labels = draw_shapes(split)
    rows = torch.cat([(labels == label).nonzero().squeeze(1)[:count] for label in labels.unique()])
    return StoredImages(pixels[rows], labels[rows])


def learn(
    config: RunConfig, output: Path, say: Any = lambda line: None, method: Method | None = None
) -> Run:
    """Run the sequence as the command line does, and keep the weights after every task."""
    plan = resolve(config)
    if method is not None:
        plan = replace(plan, method=method)
    plan.check_data()
    states: list[dict[str, Tensor]] = []
    learners: list[nn.Module] = []
    after_scoring = plan.method.after_scoring

    def keep(stage: Stage) -> None:
        after_scoring(stage)
        learners[:] = [stage.learner]
        states.append(copy_state(stage.learner))

    plan.method.after_scoring = keep
    result = run(plan, output, progress=False, say=say)
    return Run(result, states, plan.method, learners[0])


@dataclass(frozen=True, eq=False)
class Points(Task):
    """Class-incremental points in memory; a batch knows which of them it holds."""

    x: Tensor = option(help="points", kind=Kind.PLACE)
    y: Tensor = option(help="labels", kind=Kind.PLACE)
    known: int
    total: int
    recipe: Recipe
    root: None = None

    track = Track.CLASSES
    reads = frozenset({"images"})
    dataset = "points"

    @property
    def span(self) -> ClassSpan:
        return ClassSpan(self.known, self.total)

    @property
    def name(self) -> str:
        return f"points[{self.known}-{self.total - 1}]"

    @property
    def chance(self) -> float:
        return 100 / self.total

    @property
    def head(self) -> Head:
        return Head("classes", outputs=self.total, layout="linear")

    def check(self) -> None:
        pass

    def fingerprint(self) -> str:
        return digest_tensor(self.x) + digest_tensor(self.y)

    def examples(self, split: str) -> Dataset:
        mine = ((self.y >= self.known) & (self.y < self.total)).nonzero().squeeze(1)
        return TensorDataset(self.x[mine], self.y[mine], mine)

    def collate(self, examples: Any, processor: Any) -> dict[str, Tensor]:
        x, y, places = (torch.stack(column) for column in zip(*examples, strict=True))
        return {"x": x, "labels": y, "places": places}

    def loss(self, logits: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(logits[:, self.known : self.total], batch["labels"] - self.known)

    def target(self, batch: Any) -> Tensor:
        return batch["labels"]

    def metric_inputs(self, predicted: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"predictions": predicted.argmax(dim=1), "references": batch["labels"]}

    def metric(self) -> Accuracy:
        return Accuracy()


class Share:
    """The share of right answers, in percent; an evaluate.Metric takes longer than all else
    here."""

    def __init__(self):
        self.right: list[bool] = []

    def add_batch(self, predictions, references) -> None:
        self.right += [one == other for one, other in zip(predictions, references, strict=True)]

    def compute(self) -> dict[str, float]:
        return {"score": 100 * sum(self.right) / len(self.right)}


class Perceptron(Backbone):
    """Features of points: relu(l2(relu(l1(x))))."""

    reads = frozenset({"images"})

    def __init__(self, inputs: int = 6, hidden: int = 7, width: int = 5):
        super().__init__()
        self.l1, self.l2, self.width = nn.Linear(inputs, hidden), nn.Linear(hidden, width), width

    def forward(self, batch: Any) -> Tensor:
        return torch.relu(self.l2(torch.relu(self.l1(batch["x"])))).unsqueeze(1)

    def layers(self) -> list[Layer]:
        return [Layer("l1", ("l1.",), "all"), Layer("l2", ("l2.",), "all")]


def make_points(sizes: Sequence[int], each: int = 9, seed: int = 0, **recipe: Any) -> list[Points]:
    """Tasks of so many classes each, `each` points a class, sorted by class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(sum(sizes)).repeat_interleave(each)
    x = (
        torch.randn(len(y), 6, generator=generator)
        + torch.randn(sum(sizes), 6, generator=generator)[y]
    )
    settings = {
        "epochs": 1,
        "batch_size": 8,
        "learning_rate": 0.1,
        "optimizer": "sgd",
        "schedule": "constant",
    }
    ends = list(itertools.accumulate(sizes))
    made = Recipe(**{**settings, **recipe})
    return [Points(x, y, end - size, end, made) for size, end in zip(sizes, ends, strict=True)]


def begin_points(
    tasks: Sequence[Task], method: Method, trainer: type[Trainer] = Trainer, **training: Any
):
    """The first stage over points, begun, and the trainer that will fit it."""
    AcceleratorState._reset_state(reset_partial_state=False)
    config = TrainingConfig(**{"log_every": 1, **training})
    made = trainer(config, Accelerator(mixed_precision=config.mixed_precision, cpu=True), seed=1)
    made.seed_stage(0)
    learner = Learner(Perceptron())
    stage = Stage(learner, tasks, 0, 1, Reader(made, learner, 0), made.gradient_precision)
    begin_task(stage, method)
    return stage, made


def go_on(stage: Stage, method: Method, trainer: Trainer) -> Stage:
    """The next stage, begun."""
    index = stage.index + 1
    following = replace(stage, index=index, load=Reader(trainer, stage.learner, index))
    trainer.seed_stage(index)
    begin_task(following, method)
    return following


def copy_state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_identical(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], names: Iterable[str] = ()
) -> None:
    """Bit for bit, all or the named ones."""
    assert found.keys() == expected.keys()
    for name in names or expected:
        assert torch.equal(found[name], expected[name]), name


def assert_near(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float,
    floor: float = 1e-3,
) -> None:
    """Relative to the largest value of each tensor, or to `floor` where all are smaller."""
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        error = float((found[name].double() - truth.double()).abs().max())
        assert error <= tolerance * max(float(truth.abs().max()), floor), (
            f"{name} is off by {error:.3g}"
        )


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors that are no longer what they were."""
    return {name for name in before if not torch.equal(before[name], after[name])}
