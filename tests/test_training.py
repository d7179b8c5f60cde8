"""The inner loop: rates, optimizers, batches, accumulation, precision, scoring, and the release's own numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import (
    Points,
    assert_identical,
    assert_near,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    moved,
    write_world,
)
from torch import nn
from torch.testing import assert_close
from torch.utils.data import SequentialSampler

from mcit import training
from mcit.config import ConfigError, TrainingConfig, parse
from mcit.importance import measure_importance
from mcit.method import Method
from mcit.methods.ewc import Ewc
from mcit.methods.ewc_dr import EwcDr
from mcit.methods.finetune import Finetune
from mcit.methods.joint import Joint
from mcit.runner import batches
from mcit.task import Recipe
from mcit.training import DivergedError, Trainer, build_optimizer, learning_rate

FIXTURE = Path(__file__).parent / "fixtures" / "oracle"


def ignore(entry) -> None:
    pass


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


# Rates and optimizers


def test_linear_rates_rise_from_zero_to_the_peak_and_fall_to_zero():
    recipe = Recipe(epochs=1, batch_size=1, learning_rate=3.0, warmup=0.25)
    found = [learning_rate(recipe, step / 8, epoch=0) for step in range(8)]
    assert_close(found, [0.0, 1.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5])
    assert learning_rate(replace(recipe, warmup=0.0), 0.0, 0) == 3.0


def test_stepped_rates_fall_at_their_milestones_and_constant_ones_never():
    recipe = Recipe(
        epochs=6, batch_size=1, learning_rate=2.0, schedule="steps", milestones=(2, 5), factor=0.1
    )
    assert_close(
        [learning_rate(recipe, 0.9, epoch) for epoch in range(6)], [2.0, 2.0, 0.2, 0.2, 0.2, 0.02]
    )
    assert learning_rate(replace(recipe, schedule="constant"), 0.9, 5) == 2.0


class Rates(Finetune):
    """Remembers the rate and the weights of every step."""

    def __init__(self):
        self.rates, self.weights = [], []

    def before_clip(self, stage, step):
        self.weights.append(copy_state(stage.learner))

    def after_step(self, stage, step):
        self.rates.append(step.learning_rate)


def test_a_fit_follows_the_recipe_s_schedule_step_by_step():
    tasks = make_points([2], epochs=3, learning_rate=0.5, schedule="linear", warmup=1 / 3)
    stage, trainer = begin_points(tasks, method := Rates())
    assert (
        trainer.fit(stage, method, ignore) == 9
    )  # 18 points in batches of 8, 8 and 2, three times
    assert_close(method.rates, [0.0, 0.5 / 3, 1 / 3, 0.5, 2.5 / 6, 2 / 6, 1.5 / 6, 1 / 6, 0.5 / 6])
    assert_identical(method.weights[0], method.weights[1])  # a rate of 0 moves nothing
    assert moved(method.weights[1], method.weights[2])


def test_adamw_decays_matrices_only_and_sgd_everything():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(1, 1, 3))
    network[0].weight.requires_grad_(False)
    recipe = Recipe(
        epochs=1, batch_size=1, learning_rate=0.1, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-5
    )
    adamw = build_optimizer(recipe, network)
    decayed = {
        id(p) for group in adamw.param_groups if group["weight_decay"] for p in group["params"]
    }
    spared = {
        id(p) for group in adamw.param_groups if not group["weight_decay"] for p in group["params"]
    }
    assert decayed == {id(network[2].weight)}
    assert spared == {
        id(p) for p in (network[0].bias, network[1].weight, network[1].bias, network[2].bias)
    }
    assert all(
        group["betas"] == (0.8, 0.9) and group["eps"] == 1e-5 for group in adamw.param_groups
    )
    (group,) = build_optimizer(replace(recipe, optimizer="sgd", momentum=0.7), network).param_groups
    assert {id(p) for p in group["params"]} == decayed | spared
    assert (group["weight_decay"], group["momentum"]) == (0.3, 0.7)
    with pytest.raises(ValueError, match="nothing is left to train"):
        build_optimizer(recipe, network.requires_grad_(False))


def test_every_task_has_a_new_optimizer_that_knows_the_active_head_only(
    world, tmp_path, monkeypatch
):
    made = []

    def build(recipe, learner):
        optimizer = build_optimizer(recipe, learner)
        made.append((optimizer, {id(p): name for name, p in learner.named_parameters()}))
        return optimizer

    monkeypatch.setattr(training, "build_optimizer", build)
    learn(configure("snli-ve,nlvr2", "finetune", world), tmp_path)
    assert len({id(optimizer) for optimizer, _ in made}) == 2
    for (optimizer, names), head in zip(made, ["heads.snli-ve.", "heads.nlvr2."], strict=True):
        touched = {names[id(p)] for p in optimizer.state}
        assert {name for name in names.values() if name.startswith("encoder.")} <= touched
        assert {name.rsplit("layers", 1)[0] for name in touched if name.startswith("heads.")} == {
            head
        }
        assert {float(state["step"]) for state in optimizer.state.values()} == {
            3.0
        }  # this task's steps, no others


# Batches


def divide_among(order, batch_size, world, accumulate):
    """The parts of every process: process -> step -> parts."""
    found = []
    for rank in range(world):
        steps = [[]]
        for micro in batches.divide(order, batch_size, accumulate, rank, world):
            steps[-1].append(micro)
            if micro.last:
                steps.append([])
        assert steps.pop() == []
        found.append(steps)
    return found


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("count", "batch_size"), [(17, 8), (16, 8), (5, 8), (1, 4), (23, 5)])
def test_global_batches_are_the_same_for_any_number_of_processes_and_parts(
    count, batch_size, world, accumulate
):
    order = torch.randperm(count).tolist()
    shares = divide_among(order, batch_size, world, accumulate)
    whole = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    assert all(len(steps) == len(whole) for steps in shares)
    for number, batch in enumerate(whole):
        parts = [micro for steps in shares for micro in steps[number]]
        assert sorted(i for micro in parts if micro.weight for i in micro.indices) == sorted(batch)
        assert all(len(steps[number]) <= accumulate for steps in shares)
        # what processes average and a process adds up is the mean over the global batch
        counted = {
            i: micro.weight / len(micro.indices) / world
            for micro in parts
            if micro.weight
            for i in micro.indices
        }
        assert_close(counted, {i: 1 / len(batch) for i in batch})


class Places(Finetune):
    """Remembers which examples were learned from."""

    def __init__(self):
        self.places = []

    def extra_loss(self, stage, batch, logits):
        self.places.append(batch["places"].tolist())


def test_an_epoch_learns_from_every_example_once_in_an_order_of_its_own():
    stage, trainer = begin_points(make_points([3], epochs=2), method := Places())
    trainer.fit(stage, method, ignore)
    assert [len(batch) for batch in method.places] == [8, 8, 8, 3] * 2
    first, second = (
        [place for batch in half for place in batch]
        for half in (method.places[:4], method.places[4:])
    )
    assert sorted(first) == sorted(second) == list(range(27))
    assert first != second
    assert first != sorted(first)


def test_importance_reads_the_training_split_shuffled_and_whole():
    stage, _ = begin_points(
        make_points([3], each=16), Finetune()
    )  # sorted by class, two batches a class
    once, again = (
        [batch["places"].tolist() for batch in stage.loader(stage.task, "train")] for _ in range(2)
    )
    assert once == again
    assert sorted(place for batch in once for place in batch) == list(range(48))
    assert all(len({place // 16 for place in batch}) > 1 for batch in once)
    in_order = [
        place for batch in stage.loader(stage.task, "eval") for place in batch["places"].tolist()
    ]
    assert in_order == list(range(48))


def test_importance_by_example_does_not_depend_on_the_order():
    stage, _ = begin_points(make_points([3]), Finetune())
    forward = lambda learner, batch: (learner(batch, stage.task.head), batch["labels"])  # noqa: E731
    shuffled = measure_importance(stage.learner, stage.loader(stage.task, "train"), forward=forward)
    in_order = measure_importance(stage.learner, stage.loader(stage.task, "eval"), forward=forward)
    assert_near(shuffled.values, in_order.values, 1e-5)


# Steps


@pytest.mark.parametrize("accumulate", [2, 4])
def test_a_batch_in_parts_gives_the_weights_of_the_whole_batch(world, tmp_path, accumulate):
    smooth = {f"tasks__{name}__recipe__optimizer": "sgd" for name in ("vqa", "nlvr2")}
    smooth |= {f"tasks__{name}__recipe__learning_rate": 0.01 for name in ("vqa", "nlvr2")}
    whole = learn(configure("vqa,nlvr2", "finetune", world, **smooth), tmp_path / "whole")
    parts = learn(
        configure("vqa,nlvr2", "finetune", world, training__accumulate=accumulate, **smooth),
        tmp_path / "p",
    )
    assert_near(parts.state, whole.state, 1e-5)
    assert parts.rows == whole.rows
    assert moved(whole.states[0], whole.state)


@dataclass
class Push(Method):
    """Adds a constant to every gradient where a penalty would."""

    push: float = 0.0
    name = "push"

    def before_clip(self, stage, step):
        for parameter in stage.learner.parameters():
            parameter.grad += self.push


@pytest.mark.parametrize("push", [0.0, 100.0])
def test_clipping_bounds_the_step_penalty_included(push):
    tasks = make_points([2], each=4, momentum=0.0, learning_rate=0.5)  # one batch
    for clip in (None, 1e-3):
        stage, trainer = begin_points(tasks, method := Push(push), clip_norm=clip)
        before = copy_state(stage.learner)
        trainer.fit(stage, method, ignore)
        after = copy_state(stage.learner)
        length = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
        if clip is None:
            assert length > 0.5 * 1e-2
            assert (length > 100) == bool(push)
        else:
            assert_close(length, torch.tensor(0.5 * clip), rtol=1e-3, atol=0)


def test_half_precision_is_near_full_precision_and_leaves_the_learner_as_it_was(world, tmp_path):
    full = learn(configure("nlvr2,vcr", "ewc", world, method__strength=1.0), tmp_path / "full")
    half = learn(
        configure(
            "nlvr2,vcr", "ewc", world, method__strength=1.0, training__mixed_precision="bf16"
        ),
        tmp_path / "half",
    )
    assert all(tensor.dtype == torch.float32 for tensor in half.state.values())
    assert moved(full.state, half.state)  # it did run in another precision
    for name, truth in full.state.items():
        assert float((half.state[name] - truth).abs().max()) < 0.02, (
            name
        )  # 6 steps of AdamW at up to 2e-3
    batch = next(
        iter(
            Trainer(TrainingConfig(), None, 1)._make_loader(
                half.learner, half.result.plan.tasks[0], "eval", 4
            )
        )
    )
    assert half.learner(batch, half.result.plan.tasks[0].head).dtype == torch.float32
    assert "autocast" not in repr(half.learner.forward)


# Scores


def test_scoring_counts_every_example_once_over_all_classes_seen():
    tasks = make_points([2, 3], each=7)
    stage, trainer = begin_points(tasks, method := Finetune(), eval_batch_size=4)
    trainer.fit(stage, method, ignore)
    stage = go_on(stage, method, trainer)
    trainer.fit(stage, method, ignore)
    for task in tasks:
        score = trainer.evaluate(stage, task)
        x, y, _ = task.examples("eval").tensors
        with torch.no_grad():
            logits = stage.learner({"x": x}, task.head)
        assert logits.shape == (len(y), 5)
        assert score.examples == len(y)
        assert score.score == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))


# What can go wrong


@pytest.mark.parametrize("fate", ["loss", "last step", "gradient"])
def test_divergence_is_named_with_its_place(fate):
    class Breaks(Finetune):
        def before_clip(self, stage, step):
            if fate == "gradient" and step.number == 1:
                stage.learner.encoder.l1.weight.grad.fill_(torch.inf)

        def after_step(self, stage, step):
            if (fate, step.number) in (("loss", 1), ("last step", 2)):
                with torch.no_grad():
                    stage.learner.encoder.l1.weight.fill_(torch.nan)

    tasks = make_points([2], learning_rate=0.125)
    stage, trainer = begin_points(tasks, method := Breaks(), clip_norm=1.0)
    with pytest.raises(DivergedError) as caught:
        trainer.fit(stage, method, ignore)
    assert "points[0-1]" in str(caught.value)
    if fate == "loss":
        assert "loss is nan at step 2 of 3" in str(caught.value)
        assert "learning rate 0.125" in str(caught.value)
    elif fate == "gradient":
        assert "gradient is " in str(caught.value)
        assert "at step 1 of 3" in str(caught.value)
    else:
        assert "encoder.l1.weight" in str(caught.value)


def test_a_diverged_extra_batch_is_seen_too():
    class Poison(Finetune):
        def extra_batch(self, stage, step):
            batch = next(iter(stage.loader(stage.task, "train")))
            return stage.task, {**batch, "x": batch["x"] * torch.nan}

    stage, trainer = begin_points(make_points([2]), method := Poison())
    with pytest.raises(DivergedError, match="loss is nan at step 0"):
        trainer.fit(stage, method, ignore)


def test_tasks_that_need_different_optimizers_are_not_learned_together():
    class Both(Joint):
        def tasks_to_fit(self, stage):
            return list(stage.tasks)

    first, second = make_points([2, 2])
    tasks = [first, replace(second, recipe=replace(second.recipe, weight_decay=0.5))]
    stage, trainer = begin_points(tasks, method := Both())
    with pytest.raises(ConfigError, match=r"the same weight_decay, found 0\.0, 0\.5"):
        trainer.fit(stage, method, ignore)


# Parity with the EWC-DR release


class FileOrder(Trainer):
    """Reads every epoch in the order of the file, as the fixture was made."""

    def _order(self, examples, epoch, purpose):
        return SequentialSampler(examples)


NAMES = {"convnet.l1": "encoder.l1", "convnet.l2": "encoder.l2", "fc": "heads.classes.layers.0"}


def read_part(tensors, prefix):
    """A part of the fixture under the learner's names."""
    part = {
        key[len(prefix) + 1 :]: value
        for key, value in tensors.items()
        if key.startswith(prefix + "/")
    }
    for theirs, ours in NAMES.items():
        part = {key.replace(f"{theirs}.", f"{ours}."): value for key, value in part.items()}
    return part


@torch.no_grad()
def set_weights(learner, weights, known=0):
    """All weights, or those of the head's rows from `known` on."""
    for name, parameter in learner.named_parameters():
        if not known:
            parameter.copy_(weights[name])
        elif name.startswith("heads."):
            parameter[known:] = weights[name][known:]


def test_the_release_s_incremental_run_is_reproduced_by_task_method_and_trainer():
    about = json.loads((FIXTURE / "fixtures.json").read_text())["cases"]["inc_mlp_dr"]
    tensors = load_file(FIXTURE / "inc_mlp_dr.safetensors")
    recipe = Recipe(
        epochs=1,
        batch_size=about["batch_size"],
        learning_rate=about["lr"],
        weight_decay=about["weight_decay"],
        optimizer="sgd",
        momentum=about["momentum"],
        schedule="steps",
    )
    parts = [(task["known"], task["total"]) for task in about["tasks"]] + [(7, 9)]
    x, y = tensors["input/x"], tensors["input/y"]
    tasks = [
        Points(x, y, *part, recipe if part[0] else replace(recipe, epochs=0)) for part in parts
    ]
    estimator = {"unit": "batch", "mode": "train", "cap": about["omegamax"]}
    method = parse(EwcDr, {"strength": about["lamda"], "merge": "share", "estimator": estimator})
    fresh, measure = [], method.measure
    method.measure = lambda stage: fresh.append(measure(stage)) or fresh[-1]
    stage, trainer = begin_points(tasks, method, FileOrder)
    for number, (known, _) in enumerate(parts[:3]):
        stage = go_on(stage, method, trainer) if number else stage
        set_weights(stage.learner, read_part(tensors, f"task{number}/theta_start"), known)
        assert_near(
            copy_state(stage.learner),
            read_part(tensors, f"task{number}/theta_start"),
            1e-4,
            floor=0,
        )
        assert trainer.fit(stage, method, ignore) == (
            3 if number else 0
        )  # 18 points in batches of 8
        assert_near(
            copy_state(stage.learner), read_part(tensors, f"task{number}/theta_end"), 1e-4, floor=0
        )
        method.end_task(stage)
        assert_near(
            fresh[-1].values, read_part(tensors, f"task{number}/omega_fresh"), 1e-4, floor=0
        )
        assert_near(
            method.manager.importance,
            read_part(tensors, f"task{number}/omega_merged"),
            1e-4,
            floor=0,
        )
        assert_near(
            method.manager.anchor, read_part(tensors, f"task{number}/theta_end"), 1e-4, floor=0
        )
    stage = go_on(stage, method, trainer)
    set_weights(stage.learner, read_part(tensors, "final_perturbed_theta"))
    assert float(method.manager.penalty()) == pytest.approx(
        10000 * about["final_penalty_unscaled"], rel=1e-4
    )
    method.manager.add_gradient_()
    pulls = {
        name: parameter.grad / about["lamda"]
        for name, parameter in stage.learner.named_parameters()
    }
    assert_near(pulls, read_part(tensors, "final_penalty_grad"), 1e-4, floor=0)
    assert not pulls["heads.classes.layers.0.weight"][7:].any()


def test_a_penalty_too_stiff_for_sgd_is_warned_of():
    tasks = make_points([2, 2], learning_rate=0.1)
    for strength, warned in ((1e-6, False), (1e9, True)):
        method = Ewc(strength=strength)
        stage, trainer = begin_points(tasks, method)
        trainer.fit(stage, method, ignore)
        method.end_task(stage)
        go_on(stage, method, trainer)
        assert bool(method.warning) == warned
    assert "38" in method.warning  # 2 (1 + momentum) / learning rate
    assert "proximal" in method.warning
