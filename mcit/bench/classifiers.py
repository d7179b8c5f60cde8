"""`mcit bench classifiers`: what statistics and classifiers cost beside training and the head.

Statistics and classifier are computed from the features of all training images, for each classifier
by itself, and compared with an epoch of training on as many images, whose time is that of a few
steps. Reading the features is a pass of the network of its own, and is measured beside. Scoring
with a classifier is compared with scoring by the head, in turns. Projected steps are compared with
plain ones (mcit/bench/projection.py). Images are random: no number depends on what they show.
"""

from __future__ import annotations

import itertools
import statistics as middle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mcit.answering import HEAD
from mcit.bench.measuring import Goal, format_ratio, is_met
from mcit.bench.projection import PROJECTION_GOAL, measure_projection
from mcit.class_statistics import ClassStatistics, Features, Needs
from mcit.classifier import Classifier, Known, Scorer
from mcit.config.files import split_names
from mcit.config.parse import parse
from mcit.config.schema import ModelConfig, RunConfig
from mcit.data.class_incremental import ClassIncrementalTask, ImagePool
from mcit.data.image_folders import StoredImages
from mcit.method import Method
from mcit.methods.finetune import Finetune
from mcit.registry import (
    CLASSIFIER,
    METHOD,
    find_classifier,
    find_method,
    find_task,
    find_transport,
    list_names,
)
from mcit.reports.formats import print_whole
from mcit.runner.plan import Plan
from mcit.session import Session

FIT_GOAL: Goal = ("at most", 0.1)
SCORING_GOAL: Goal = ("at most", 1.1)
# iterative ones have no goal for their fit
CLOSED_FORMS = ("nearest_mean", "gaussian", "ridge")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    classes: int
    # training images of each class
    each: int
    # of the network's first stage; its features are eight times as many
    width: int
    batch: int
    steps: int
    rounds: int


FULL = Size(classes=100, each=100, width=64, batch=64, steps=2, rounds=3)
QUICK = Size(classes=20, each=20, width=16, batch=32, steps=2, rounds=2)


def measure(quick: bool = False, size: Size | None = None) -> dict[str, Any]:
    """Return all ratios and the bytes that are held, by name."""
    size = size or (QUICK if quick else FULL)
    torch.manual_seed(0)
    session = _make_session(size)
    features = _draw_features(size)
    images = size.classes * size.each
    epoch = images * _time_training(session, size)
    reading = images * _time_reading(session, size)
    rules = {name: find_classifier(name)() for name in list_names(CLASSIFIER) if name != HEAD}
    seconds = {name: _time_fit(rule, features, size) for name, rule in rules.items()}
    return {
        "threads": torch.get_num_threads(),
        "quick": quick,
        "classes": size.classes,
        "features": 8 * size.width,
        "images": images,
        "epoch_seconds": epoch,
        "features_over_epoch": reading / epoch,
        "fit_seconds": seconds,
        "fit_over_epoch": {name: each / epoch for name, each in seconds.items()},
        "scoring_over_head": _compare_scoring(session, rules, features, size),
        "bytes_held": _count_bytes(features, size),
        "network_bytes": sum(t.nbytes for t in session.learner.state_dict().values()),
        # in batches as large as the recipes', 128 images
        **measure_projection(size.width, size.steps * size.batch, size.rounds),
    }


def _make_session(size: Size) -> Session:
    """Return the first task of a run of finetune, with all classes in it."""
    cls: Any = find_task("cifar100")
    order = torch.tensor(cls(classes=size.classes).part.order)
    images = {}
    # one batch more, for a step that does not count
    counts = {"train": size.batch * (1 + size.steps), "eval": size.batch * size.steps}
    for split, count in counts.items():
        pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
        images[split] = StoredImages(pixels, order[torch.arange(count) % size.classes])
    options = {"classes": size.classes, "recipe": {"epochs": 1, "batch_size": size.batch}}
    pool = ImagePool(**images)
    tasks: list[ClassIncrementalTask] = cls.sequence(
        f"1x{size.classes}", options, seed=1, pool=pool
    )
    config = RunConfig(model=ModelConfig(name="resnet18", width=size.width))
    plan = Plan(config, tasks, Finetune(), tasks[0].track, embedded=False)
    session = Session(plan)
    session.begin(session.stage(0))
    return session


def _draw_features(size: Size) -> Features:
    """Return features like those of a ReLU, in file order."""
    labels = torch.arange(size.classes).repeat_interleave(size.each)
    centers = torch.rand(size.classes, 8 * size.width)
    noise = torch.randn(len(labels), 8 * size.width)
    return Features((centers[labels] + 0.3 * noise).clamp_min(0), labels)


def _time_training(session: Session, size: Size) -> float:
    """Return the seconds of an image in a training step."""
    moments: list[float] = []

    def note(taken: int, total: int, optimizer: torch.optim.Optimizer) -> None:
        moments.append(time.perf_counter())

    session.fit(session.stage(0), on_step=note)
    steps = [later - before for before, later in itertools.pairwise(moments)]
    return middle.median(steps) / size.batch


@torch.no_grad()
def _time_reading(session: Session, size: Size) -> float:
    """Return the seconds of an image's features."""
    stage = session.stage(0)
    batch = next(iter(stage.load(stage.task, "eval"))).batch
    session.learner.eval()

    def read() -> Tensor:
        return session.learner(batch, stage.task.head).features

    return _time(read, size.rounds) / len(read())


def _time_fit(rule: Classifier, features: Features, size: Size) -> float:
    """Return the seconds of statistics and classifier, from features."""

    def fit() -> None:
        found = ClassStatistics.measure(features, 0, size.classes, rule.needs())
        rule.fit(Known(found, features))

    begun = time.perf_counter()
    fit()
    seconds = time.perf_counter() - begun
    # what takes long is not repeated
    return seconds if seconds > 10 else min(seconds, _time(fit, size.rounds))


@torch.no_grad()
def _compare_scoring(
    session: Session, rules: dict[str, Classifier], features: Features, size: Size
) -> dict[str, float]:
    """Return by classifier the time of scoring a task over that of scoring it by the head."""
    stage = session.stage(0)
    every = Needs()
    for rule in rules.values():
        every |= rule.needs()
    found = ClassStatistics.measure(features, 0, size.classes, every)
    scorers: dict[str, Scorer | None] = {HEAD: None}
    for name, rule in rules.items():
        fitted = rule.fit(Known(found, features))
        scorers[name] = _bind(rule, fitted)
    ratios: dict[str, list[float]] = {name: [] for name in rules}
    for number in range(1 + size.rounds):
        for name in rules:
            head = _time_once(session, stage, None)
            own = _time_once(session, stage, scorers[name])
            # the first round warms up
            if number:
                ratios[name].append(own / head)
    return {name: middle.median(each) for name, each in ratios.items()}


def _bind(rule: Classifier, fitted: Any) -> Scorer:
    def score(features: Tensor) -> Tensor:
        return rule.score(fitted, features)

    return score


def _time_once(session: Session, stage: Any, scorer: Scorer | None) -> float:
    begun = time.perf_counter()
    session.trainer.evaluate(stage, stage.task, scorer)
    return time.perf_counter() - begun


def _count_bytes(features: Features, size: Size) -> dict[str, int]:
    """Return what is kept of classes by each method that is published with a classifier."""
    found = {}
    for name in list_names(METHOD):
        method = find_method(name)
        needs = _needs_of(method)
        if needs:
            kept = ClassStatistics.measure(features, 0, size.classes, needs)
            sensitivity = 4 * kept.width**2 if needs.sensitivity else 0
            found[name] = kept.bytes_held() + sensitivity
    return found


def _needs_of(method: type[Method]) -> Needs:
    """Return the statistics that a method's own classifier and transport look at."""
    needs = Needs()
    for name in split_names(method.answers):
        needs |= parse(find_classifier(name), method.answers.options).needs()
    if needs:
        needs |= parse(find_transport(method.carries.name), method.carries.options).needs()
    return needs


def _time(call: Callable[[], Any], rounds: int) -> float:
    """Return the median of so many rounds, in seconds."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return middle.median(seconds)


def print_result(result: dict[str, Any]) -> None:
    """Print the ratios with their goals, and what is held."""
    console = Console(highlight=False)
    title = (
        f"mcit bench classifiers: {result['classes']} classes, {result['features']} features, "
        f"{result['images']} images, {result['threads']} threads"
    )
    table = Table(title=title, title_justify="left")
    for name in ("measured", "ratio", "goal", "met"):
        table.add_column(name, justify="left" if name == "measured" else "right")
    missed = []
    for label, value, goal in list_figures(result):
        verdict = _judge(value, goal)
        table.add_row(label, format_ratio(value), *verdict)
        if "NO" in verdict:
            missed.append(label)
    print_whole(table, console)
    held = Table(title="kept between tasks", title_justify="left")
    held.add_column("by")
    held.add_column("MB", justify="right")
    for label, size in list_held(result):
        held.add_row(label, f"{size / 1e6:.1f}")
    print_whole(held, console)
    print(f"A copy of the network has {result['network_bytes'] / 1e6:.1f} MB.")
    if missed:
        print(f"Goals missed on this run: {'; '.join(missed)}.")


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what was measured, the ratio and its goal, if it has one."""
    yield "reading the features / epoch of training", result["features_over_epoch"], None
    for name, ratio in result["fit_over_epoch"].items():
        goal = FIT_GOAL if name in CLOSED_FORMS else None
        yield f"{name}: fit / epoch of training", ratio, goal
    for name, ratio in result["scoring_over_head"].items():
        yield f"{name}: scoring / scoring by the head", ratio, SCORING_GOAL
    for share, ratio in result["projection_over_step"].items():
        yield f"{_describe_projection(share)}: step / plain step", ratio, PROJECTION_GOAL


def list_held(result: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield what keeps something between tasks, and its bytes."""
    yield from result["bytes_held"].items()
    for share, size in result["projection_bytes"].items():
        yield _describe_projection(share), size


def _describe_projection(share: str) -> str:
    return f"projection, {float(share):.0%} of input directions taken"


def _judge(value: float, goal: Goal | None) -> tuple[str, str]:
    """Return a goal in words, and whether it was met."""
    if goal is None:
        return "", ""
    direction, limit = goal
    return f"{direction} {limit:g}", "yes" if is_met(value, goal) else "NO"
